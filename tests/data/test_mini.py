import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import graddiv.data
from graddiv.data import load

PROJECT = Path(__file__).parents[2]


def test_is_balanced() -> None:
    assert load("mnist-mini", "train+validation").labels.bincount().tolist() == [500] * 10
    assert load("mnist-mini", "train").labels.bincount().tolist() == [450] * 10
    assert load("mnist-mini", "validation").labels.bincount().tolist() == [50] * 10
    assert load("mnist-mini", "test").labels.bincount().tolist() == [100] * 10


@pytest.mark.parametrize("split", ["train+validation", "test"])
def test_ids_are_rounds_of_the_first_of_each_class(split: str) -> None:
    data = load("mnist-mini", split)
    assert len(set(data.ids.tolist())) == len(data)
    assert data.ids.max() < 55_000  # none of the paper's validation part
    rounds = data.ids.view(-1, 10)
    assert (rounds.diff(dim=1) > 0).all()
    for label in range(10):
        assert (data.ids[data.labels == label].diff() > 0).all()
    assert data.ids[:2].tolist() == [0, 1]


def test_images_are_digits() -> None:
    """Dark corners, and a mean near MNIST's 0.1307."""
    images, _ = load("mnist-mini", "train").batch(slice(None))
    assert images.shape == (4500, 1, 28, 28)
    assert images[..., :2, :2].max() == 0
    assert abs(images.mean().item() - 0.1307) < 0.003
    assert images.max() == 1


def test_balanced_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "scripts"))
    from cut_mnist_mini import balanced_rows

    monkeypatch.delitem(sys.modules, "cut_mnist_mini")
    labels = np.array([1, 1, 0, 1, 0, *range(2, 10), *range(2, 10), 0])
    assert balanced_rows(labels, 2).tolist() == [0, 2, *range(5, 13), 1, 4, *range(13, 21)]


def test_ships_with_its_attribution() -> None:
    text = (Path(graddiv.data.__file__).parent / "MNIST_LICENSE.txt").read_text()
    for word in ("Yann LeCun", "Corinna Cortes", "Burges", "CC BY-SA 3.0", "mnist_mini.npz"):
        assert word in text


@pytest.mark.realdata
def test_equals_the_cut_of_the_official_files(official: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    official("mnist")
    monkeypatch.syspath_prepend(str(PROJECT / "scripts"))
    from cut_mnist_mini import cut

    monkeypatch.delitem(sys.modules, "cut_mnist_mini")
    with np.load(Path(graddiv.data.__file__).parent / "mnist_mini.npz") as committed:
        again = cut()
        assert set(committed.files) == set(again)
        for name in again:
            assert committed[name].dtype == again[name].dtype
            np.testing.assert_array_equal(committed[name], again[name])
    for split in ("train+validation", "test"):
        part, whole = load("mnist-mini", split), load("mnist", split)
        assert (part.images == whole.images[part.ids]).all()
        assert (part.labels == whole.labels[part.ids]).all()
