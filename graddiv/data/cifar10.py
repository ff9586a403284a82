"""CIFAR-10: Python 2 pickles, read without trusting them."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from graddiv.data.dataset import Download, File, Part, RawExamples, Source, class_labels
from graddiv.errors import GradDivError

PIXELS = 3 * 32 * 32


def read(part: Part, paths: Sequence[Path], count: int) -> RawExamples:
    """Read the batch files of a part into one array."""
    each = count // len(paths)
    pixels, labels = np.empty((count, PIXELS), np.uint8), np.empty(count, np.int64)
    for number, path in enumerate(paths):
        title = f"{'training' if part == 'train' else 'testing'} batch {number + 1} of {len(paths)}"
        rows = slice(number * each, (number + 1) * each)
        pixels[rows], labels[rows] = read_batch(path, title, each)
    return RawExamples(pixels.reshape(count, 3, 32, 32), labels, np.arange(count, dtype=np.int64))


def read_batch(path: Path, title: str, count: int) -> tuple[UInt8[np.ndarray, "n p"], Int64[np.ndarray, " n"]]:
    """Read one batch file, which must carry this title and hold `count` images."""
    match unpickle(path):
        case {
            b"batch_label": bytes() as found,
            b"labels": list() as labels,
            b"data": _Inert(state=(_, shape, _Inert(arguments=(b"u1", *_)), False, bytes() as pixels)),
        } if all(isinstance(label, int) for label in labels):
            pass
        case _:
            raise GradDivError(f"{path} holds another kind of pickle, expected a CIFAR-10 batch '{title}'")
    if found.decode("latin1") != title:
        raise GradDivError(f"{path} is titled '{found.decode('latin1')}', expected '{title}'")
    if (shape, len(pixels), len(labels)) != ((count, PIXELS), count * PIXELS, count):
        raise GradDivError(
            f"{path} holds {len(pixels)} bytes of shape {shape} and {len(labels)} labels, "
            f"expected {count * PIXELS} bytes of shape {(count, PIXELS)} and {count} labels"
        )
    return np.frombuffer(pixels, np.uint8).reshape(count, PIXELS), class_labels(path, np.asarray(labels))


def unpickle(path: Path) -> object:
    """Return the pickled value, with numpy's objects as inert records; anything else in it is refused."""
    try:
        with path.open("rb") as stream:
            return _Unpickler(stream, encoding="bytes").load()
    except GradDivError as error:
        raise GradDivError(f"{path} {error}") from None
    except Exception as error:  # a malformed pickle can raise anything
        raise GradDivError(f"{path} cannot be unpickled ({error}), expected a CIFAR-10 batch") from error


class _Inert:
    """Takes the place of a numpy object and keeps its pickled arguments, so that none of numpy's code runs."""

    arguments: tuple[Any, ...]
    state: tuple[Any, ...]

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Admits only the three numpy names that the official batches use, and replaces them by inert records."""

    ADMITTED = frozenset({("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> type[_Inert]:
        if (module, name) not in self.ADMITTED:
            raise GradDivError(
                f"asks for '{module}.{name}' and was refused, expected a pickle of numbers and arrays only"
            )
        return _Inert


MD5S = {
    "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
    "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
    "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
    "cifar-10-batches-py/batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
FILES = tuple(File({path: md5}) for path, md5 in MD5S.items())

SOURCE = Source(
    name="cifar10",
    title="CIFAR-10",
    shape=(3, 32, 32),
    sizes={"train": 50_000, "test": 10_000},
    held_out=5_000,
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    read=read,
    files={"train": FILES[:5], "test": FILES[5:6], "meta": FILES[6:]},
    downloads=(
        Download(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            md5="c58f30108f718f92721af3b95e74349a",
            path="cifar-10-python.tar.gz",
            size=170_498_071,
            members=tuple(MD5S),
        ),
    ),
    crop_and_flip=True,
)
