from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from graddiv.data import load, stl10
from graddiv.errors import GradDivError
from tests.data.fake_files import pixels, write


def test_columns_become_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stl10, "CHUNK", 2)  # so that three images take two chunks
    stored = pixels(3, 3, 96, 96)
    paths = [write(tmp_path / "X.bin", stored.tobytes()), write(tmp_path / "y.bin", bytes([1, 10, 2]))]
    examples = stl10.read("train", paths, 3)
    np.testing.assert_array_equal(examples.images, stored.transpose(0, 1, 3, 2))
    assert examples.images.flags.c_contiguous
    assert examples.labels.tolist() == [0, 9, 1]
    assert examples.ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize("size", [0, 3, 2 * 27648, 3 * 27648 - 1, 4 * 27648])
def test_bad_size(tmp_path: Path, size: int) -> None:
    paths = [write(tmp_path / "X.bin", bytes(size)), write(tmp_path / "y.bin", bytes([1, 2, 3]))]
    with pytest.raises(GradDivError, match=rf"X\.bin holds {size} bytes, expected 82944 for shape \(3, 3, 96, 96\)"):
        stl10.read("train", paths, 3)


@pytest.mark.parametrize("label", [0, 11])
def test_label_out_of_range(tmp_path: Path, label: int) -> None:
    paths = [write(tmp_path / "X.bin", bytes(27648)), write(tmp_path / "y.bin", bytes([label]))]
    with pytest.raises(GradDivError, match=rf"y\.bin holds label {label} at position 0, expected 1\.\.10"):
        stl10.read("train", paths, 1)


@pytest.mark.realdata
def test_official_files(official: Callable[[str], None]) -> None:
    official("stl10")
    train, test = load("stl10", "train+validation"), load("stl10", "test")
    assert train.images.shape == (5_000, 3, 96, 96)
    assert test.images.shape == (8_000, 3, 96, 96)
    assert train.labels.bincount().tolist() == [500] * 10
    assert test.labels.bincount().tolist() == [800] * 10
    assert train.labels[:10].tolist() == [1, 5, 1, 6, 3, 9, 7, 4, 5, 8]
    assert test.labels[:10].tolist() == [6, 7, 5, 0, 3, 1, 1, 1, 4, 4]


@pytest.mark.realdata
def test_images_are_upright(official: Callable[[str], None]) -> None:
    """In photographs of aeroplanes and ships the sky is above: the top rows are brighter than the bottom ones."""
    official("stl10")
    train = load("stl10", "train")
    outdoors = train.images[(train.labels == 0) | (train.labels == 8)].float()
    above_below = outdoors[:, :, :16].mean() - outdoors[:, :, -16:].mean()
    left_right = outdoors[..., :16].mean() - outdoors[..., -16:].mean()
    assert above_below > 10 * left_right.abs()
