from pathlib import Path

import numpy as np
import pytest
import torch

from graddiv.data import SOURCES, SPLITS, Dataset, load, status
from graddiv.errors import GradDivError
from tests.data.fake_files import adopt, idx, pixels, write

LABELS = np.arange(20) % 10


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small MNIST of 20 + 5 images whose files pass for the official ones."""
    raw = tmp_path / "downloads" / "MNIST" / "raw"
    write(raw / "train-images-idx3-ubyte.gz", idx(pixels(20, 28, 28)))
    write(raw / "train-labels-idx1-ubyte.gz", idx(LABELS))
    write(raw / "t10k-images-idx3-ubyte", idx(pixels(5, 28, 28)))
    write(raw / "t10k-labels-idx1-ubyte", idx(LABELS[:5]))
    monkeypatch.setitem(SOURCES, "mnist", adopt(SOURCES["mnist"], raw.parents[1], train=20, test=5, held_out=3))
    return raw.parents[1]


def test_splits(root: Path) -> None:
    splits = {split: load("mnist", split, root) for split in SPLITS}
    assert splits["train"].ids.tolist() == list(range(17))
    assert splits["validation"].ids.tolist() == [17, 18, 19]
    assert splits["train+validation"].ids.tolist() == list(range(20))
    assert splits["test"].ids.tolist() == list(range(5))
    for split, data in splits.items():
        assert (data.name, data.split) == ("mnist", split)
        assert data.labels.tolist() == LABELS[data.ids].tolist()
        official = pixels(5, 28, 28) if split == "test" else pixels(20, 28, 28)
        assert torch.equal(data.images[:, 0], torch.from_numpy(official)[data.ids])


def test_validation_does_not_keep_the_training_images(root: Path) -> None:
    validation = load("mnist", "validation", root)
    assert validation.images.untyped_storage().nbytes() == 3 * 784


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mnist", (55_000, 5_000, 10_000)),
        ("cifar10", (45_000, 5_000, 10_000)),
        ("stl10", (4_500, 500, 8_000)),
        ("mnist-mini", (4_500, 500, 1_000)),
        ("synthetic", (450, 50, 200)),
    ],
)
def test_sizes_of_the_paper(name: str, sizes: tuple[int, int, int]) -> None:
    source = SOURCES[name]
    assert (source.sizes["train"] - source.held_out, source.held_out, source.sizes["test"]) == sizes
    assert name in SOURCES
    assert len(source.classes) == 10


@pytest.mark.parametrize("name", ["synthetic", "mnist-mini"])
def test_what_is_loaded_is_what_is_announced(name: str) -> None:
    source = SOURCES[name]
    for part in ("train+validation", "test"):
        data = load(name, part)
        assert isinstance(data, Dataset)
        assert data.images.shape[1:] == source.shape
        assert len(data) == source.sizes["test" if part == "test" else "train"]


def test_unknown_name() -> None:
    with pytest.raises(GradDivError, match=r"unknown data set 'cifar-10', did you mean 'cifar10'\? expected one of"):
        load("cifar-10")
    with pytest.raises(GradDivError, match=r"unknown data set 'imagenet22k', expected one of mnist-mini, mnist,"):
        load("imagenet22k")


def test_unknown_split() -> None:
    with pytest.raises(GradDivError, match=r"unknown split 'valid', did you mean 'validation'\?"):
        load("synthetic", "valid")


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(GradDivError) as caught:
        load("stl10", root=tmp_path)
    message = str(caught.value)
    assert message == (
        f"data set 'stl10' is missing: no stl10_binary/train_X.bin in {tmp_path}; "
        f"get it with 'graddiv data fetch stl10 --data-root {tmp_path}'"
    )


def test_swapped_files_are_named(root: Path) -> None:
    raw = root / "MNIST" / "raw"
    images, labels = raw / "train-images-idx3-ubyte.gz", raw / "train-labels-idx1-ubyte.gz"
    held = images.read_bytes()
    images.write_bytes(labels.read_bytes())
    labels.write_bytes(held)
    with pytest.raises(
        GradDivError, match=r"train-images\S+ has md5 \w+ \(the official train-labels\S+\), expected \w+;"
    ):
        load("mnist", "train", root)
    assert len(load("mnist", "test", root)) == 5  # whose files are right


def test_changed_file_is_refused(root: Path) -> None:
    load("mnist", "train", root)
    labels = root / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    write(labels, idx(LABELS[::-1]))
    with pytest.raises(
        GradDivError, match=r"train-labels\S+ has md5 \w+, expected \w+; get it again with 'graddiv data"
    ):
        load("mnist", "train", root)


def test_status(root: Path) -> None:
    assert status(SOURCES["synthetic"]) == "generated"
    assert status(SOURCES["mnist-mini"]) == "embedded in the package"
    assert status(SOURCES["cifar10"]) == "missing; get it with 'graddiv data fetch cifar10'"
    assert status(SOURCES["mnist"], root) == f"found in {root}"
    (root / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    assert status(SOURCES["mnist"], root).startswith(
        "1 of 4 files missing; get it with 'graddiv data fetch mnist --data-root"
    )
