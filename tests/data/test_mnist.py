import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from graddiv.data import SOURCES, load
from graddiv.data.files import located
from graddiv.data.sources import read_mnist
from tests.data.fake_files import idx, pixels, write


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_reads_images_and_labels(tmp_path: Path, suffix: str) -> None:
    images, labels = pixels(12, 28, 28), np.arange(12) % 10
    paths = [write(tmp_path / f"images{suffix}", idx(images)), write(tmp_path / f"labels{suffix}", idx(labels))]
    found, classes, ids = read_mnist("train", paths)
    np.testing.assert_array_equal(found, images[:, None])
    np.testing.assert_array_equal(classes, labels)
    np.testing.assert_array_equal(ids, np.arange(12))


@pytest.mark.realdata
def test_official_files(official: Callable[[str], None]) -> None:
    official("mnist")
    train, test = load("mnist", "train+validation"), load("mnist", "test")
    assert train.images.shape == (60_000, 1, 28, 28)
    assert test.images.shape == (10_000, 1, 28, 28)
    assert train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert round(train.images.sum().item() / train.images.numel() / 255, 4) == 0.1307


@pytest.mark.realdata
def test_official_files_unpacked(official: Callable[[str], None], tmp_path: Path) -> None:
    official("mnist")
    for copy in located(SOURCES["mnist"]).values():
        assert copy is not None
        write(tmp_path / copy.name.removesuffix(".gz"), gzip.decompress(copy.path.read_bytes()))
    assert load("mnist", "test", tmp_path).checksum == load("mnist", "test").checksum
    assert load("mnist", "train", tmp_path).checksum == load("mnist", "train").checksum


@pytest.mark.realdata
def test_paper_split(official: Callable[[str], None]) -> None:
    official("mnist")
    train, validation = load("mnist", "train"), load("mnist", "validation")
    assert train.ids.tolist() == list(range(55_000))
    assert validation.ids.tolist() == list(range(55_000, 60_000))
