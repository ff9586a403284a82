from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from graddiv.data import load, sources
from tests.data.fake_files import pixels, write


def test_columns_become_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK", 2)  # so that three images take two chunks
    stored = pixels(3, 3, 96, 96)
    paths = [write(tmp_path / "X.bin", stored.tobytes()), write(tmp_path / "y.bin", bytes([1, 10, 2]))]
    images, labels, ids = sources.read_stl10("train", paths)
    np.testing.assert_array_equal(images, stored.transpose(0, 1, 3, 2))
    assert images.flags.c_contiguous
    assert labels.tolist() == [0, 9, 1]
    assert ids.tolist() == [0, 1, 2]


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
