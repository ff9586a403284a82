import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from graddiv.data import cifar10, load
from graddiv.errors import GradDivError
from tests.data.fake_files import cifar_batch, pixels, short, write

TITLE = "training batch 1 of 5"


def test_reads_batches_in_order(tmp_path: Path) -> None:
    data, labels = pixels(6, 3072), np.array([3, 1, 4, 1, 5, 9])
    paths = []
    for number in range(3):
        rows = slice(2 * number, 2 * number + 2)
        content = cifar_batch(b"training batch %d of 3" % (number + 1), labels[rows].tolist(), data[rows])
        paths.append(write(tmp_path / str(number), content))
    examples = cifar10.read("train", paths, 6)
    np.testing.assert_array_equal(examples.images, data.reshape(6, 3, 32, 32))
    np.testing.assert_array_equal(examples.labels, labels)
    np.testing.assert_array_equal(examples.ids, np.arange(6))


GOOD = cifar_batch(TITLE.encode(), [0, 1], pixels(2, 3072))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (GOOD[:-10], "cannot be unpickled"),
        (b"", "cannot be unpickled"),
        (b"\xff" * 100, "cannot be unpickled"),
        (cifar_batch(b"testing batch 1 of 1", [0, 1], pixels(2, 3072)), "titled 'testing batch 1 of 1', expected"),
        (cifar_batch(TITLE.encode(), [0, 1], pixels(2, 1024)), r"shape \(2, 1024\) and 2 labels, expected 6144 bytes"),
        (cifar_batch(TITLE.encode(), [0, 1, 2], pixels(3, 3072)), r"shape \(3, 3072\) and 3 labels"),
        (cifar_batch(TITLE.encode(), [0], pixels(2, 3072)), "and 1 labels"),
        (cifar_batch(TITLE.encode(), [0, 10], pixels(2, 3072)), r"label 10 at position 1, expected 0\.\.9"),
        (pickle.dumps({"labels": [0, 1]}, protocol=2), "another kind of pickle"),
        (pickle.dumps([1, 2], protocol=2), "another kind of pickle"),
        (GOOD.replace(b"K\x00K\x01e", b"K\x00Ne"), "another kind of pickle"),
        (GOOD.replace(b"U\x02u1", b"U\x02f4"), "another kind of pickle"),
    ],
    ids=range(12),
)
def test_bad_file(tmp_path: Path, content: bytes, found: str) -> None:
    assert cifar10.read_batch(write(tmp_path / "good", GOOD), TITLE, 2)[1].tolist() == [0, 1]
    with pytest.raises(GradDivError, match=f"data_batch_1 .*{found}"):
        cifar10.read_batch(write(tmp_path / "data_batch_1", content), TITLE, 2)


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(("function", "argument"), [(os.mkdir, "{}"), (eval, "__import__('os').mkdir('{}')")])
def test_malicious_pickle_runs_nothing(
    tmp_path: Path, protocol: int, function: Callable[..., object], argument: str
) -> None:
    trace = tmp_path / "it-ran"
    content = pickle.dumps(Call(function, argument.format(trace)), protocol)
    pickle.loads(content)  # the payload works where it is trusted
    trace.rmdir()
    with pytest.raises(GradDivError, match=r"data_batch_1 asks for '\w+\.\w+' and was refused"):
        cifar10.read_batch(write(tmp_path / "data_batch_1", content), TITLE, 2)
    assert not trace.exists()


@pytest.mark.parametrize("name", [b"numpy\nload", b"numpy.core.multiarray\nfromfile", b"numpy\ndtype.type.mro"])
def test_other_numpy_names_are_refused(tmp_path: Path, name: bytes) -> None:
    path = write(tmp_path / "data_batch_1", b"\x80\x02c" + name + b"\n" + short(b"x") + b"\x85R.")
    with pytest.raises(GradDivError, match="was refused"):
        cifar10.read_batch(path, TITLE, 2)


def test_admitted_names_are_not_numpy(tmp_path: Path) -> None:
    """A dtype whose flags say that bytes are object pointers would crash numpy; here it is only a record."""
    value = cifar10.unpickle(write(tmp_path / "dtype", b"\x80\x02cnumpy\ndtype\nU\x02V8\x85R."))
    assert not isinstance(value, np.dtype)
    assert vars(value) == {"arguments": (b"V8",)}


@pytest.mark.realdata
def test_official_files(official: Callable[[str], None]) -> None:
    official("cifar10")
    train, test = load("cifar10", "train+validation"), load("cifar10", "test")
    assert train.images.shape == (50_000, 3, 32, 32)
    assert test.images.shape == (10_000, 3, 32, 32)
    assert train.labels.bincount().tolist() == [5000] * 10
    assert test.labels.bincount().tolist() == [1000] * 10
    assert [train.classes[label] for label in train.labels[:4]] == ["frog", "truck", "truck", "deer"]
    assert test.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    channels = train.images.sum(dim=(0, 2, 3)) / (50_000 * 1024 * 255)
    np.testing.assert_allclose(channels, [0.4914, 0.4822, 0.4465], atol=5e-5)
