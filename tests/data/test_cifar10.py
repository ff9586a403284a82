import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from graddiv.data import load
from graddiv.data.sources import read_cifar10
from graddiv.errors import GradDivError
from tests.data.fake_files import cifar_batch, pixels, short, write


def test_reads_batches_in_order(tmp_path: Path) -> None:
    data, labels = pixels(6, 3072), np.array([3, 1, 4, 1, 5, 9])
    paths = []
    for number in range(3):
        rows = slice(2 * number, 2 * number + 2)
        content = cifar_batch(b"training batch %d of 3" % (number + 1), labels[rows].tolist(), data[rows])
        paths.append(write(tmp_path / str(number), content))
    found, classes, ids = read_cifar10("train", paths)
    np.testing.assert_array_equal(found, data.reshape(6, 3, 32, 32))
    np.testing.assert_array_equal(classes, labels)
    np.testing.assert_array_equal(ids, np.arange(6))


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
    with pytest.raises(GradDivError, match=r"a pickle asks for '\w+\.\w+' and was refused"):
        read_cifar10("train", [write(tmp_path / "data_batch_1", content)])
    assert not trace.exists()


@pytest.mark.parametrize("name", [b"numpy\nload", b"numpy.core.multiarray\nfromfile", b"numpy\ndtype.type.mro"])
def test_other_numpy_names_are_refused(tmp_path: Path, name: bytes) -> None:
    path = write(tmp_path / "data_batch_1", b"\x80\x02c" + name + b"\n" + short(b"x") + b"\x85R.")
    with pytest.raises(GradDivError, match="was refused"):
        read_cifar10("train", [path])


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
