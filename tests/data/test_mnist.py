import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from graddiv.data import load, mnist
from graddiv.data.files import locate
from graddiv.errors import GradDivError
from tests.data.fake_files import idx, pixels, write


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_reads_images_and_labels(tmp_path: Path, suffix: str) -> None:
    images, labels = pixels(12, 28, 28), np.arange(12) % 10
    paths = [write(tmp_path / f"images{suffix}", idx(images)), write(tmp_path / f"labels{suffix}", idx(labels))]
    examples = mnist.read("train", paths, 12)
    np.testing.assert_array_equal(examples.images, images[:, None])
    np.testing.assert_array_equal(examples.labels, labels)
    np.testing.assert_array_equal(examples.ids, np.arange(12))


GOOD = idx(pixels(3, 28, 28))


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("truncated", GOOD[:-1], "2351 bytes of data, expected 2352"),
        ("trailing", GOOD + b"!", "2353 bytes of data, expected 2352"),
        ("empty", b"", r"the bytes \(none\)"),
        ("labels", idx(np.zeros(3)), r"an idx header of shape \(3,\)"),
        ("swapped", idx(pixels(2, 28, 28)), r"shape \(2, 28, 28\), expected an idx header of shape \(3, 28, 28\)"),
        ("size", idx(pixels(3, 32, 32)), r"shape \(3, 32, 32\)"),
        ("float", b"\0\0\x0d\x03" + GOOD[4:], "the bytes 00 00 0d 03"),
        ("cut-header", GOOD[:9], "the bytes 00 00 08 03"),
        ("truncated.gz", gzip.compress(GOOD)[:-20], "cannot be read"),
        ("corrupt.gz", gzip.compress(GOOD)[:-8] + b"\0" * 8, "cannot be read"),
        ("plain.gz", GOOD, "cannot be read"),
    ],
)
def test_bad_file(tmp_path: Path, name: str, content: bytes, found: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GradDivError, match=f"{name} .*{found}"):
        mnist.read_idx(tmp_path / name, (3, 28, 28))


def test_label_out_of_range(tmp_path: Path) -> None:
    paths = [write(tmp_path / "images", idx(pixels(2, 28, 28))), write(tmp_path / "labels", idx(np.array([3, 10])))]
    with pytest.raises(GradDivError, match=r"labels holds label 10 at position 1, expected 0\.\.9"):
        mnist.read("train", paths, 2)


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
    for file in mnist.SOURCE.all_files:
        copy = locate(mnist.SOURCE, file)
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
