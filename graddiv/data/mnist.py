"""MNIST, four idx files, and mnist-mini, the part of it that ships with the package (see MNIST_LICENSE.txt)."""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from graddiv.data.dataset import Download, File, Part, RawExamples, Source, class_labels
from graddiv.errors import GradDivError


def read(part: Part, paths: Sequence[Path], count: int) -> RawExamples:
    """Read an images file and its labels file."""
    images, labels = paths
    pixels = read_idx(images, (count, 28, 28)).reshape(count, 1, 28, 28)
    return RawExamples(pixels, class_labels(labels, read_idx(labels, (count,))), np.arange(count, dtype=np.int64))


def read_idx(path: Path, shape: tuple[int, ...]) -> UInt8[np.ndarray, "..."]:
    """Read an idx file of bytes, compressed or not, that must have this shape."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise GradDivError(f"{path} cannot be read ({error}), expected an idx file") from error
    header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    if not content.startswith(header):
        raise GradDivError(f"{path} starts with {_described(content)}, expected an idx header of shape {shape}")
    if (held := len(content) - len(header)) != (expected := math.prod(shape)):
        raise GradDivError(f"{path} holds {held} bytes of data, expected {expected} for its shape {shape}")
    # a copy, because torch wants memory that it may write to
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape).copy()


def _described(content: bytes) -> str:
    """Describe the first bytes for the error message."""
    rank = content[3] if len(content) > 3 else 0
    if content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * rank:
        return f"the bytes {content[:4].hex(' ') or '(none)'}"
    return f"an idx header of shape {struct.unpack_from(f'>{rank}I', content, 4)}"


OFFICIAL = {  # name: md5 of the compressed file, md5, bytes of the compressed file
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb", 9_912_422),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624", 28_881),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea", 1_648_877),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637", 4_542),
}
FILES = [File({f"MNIST/raw/{name}.gz": gz, f"MNIST/raw/{name}": md5}) for name, (gz, md5, _) in OFFICIAL.items()]
SITE = "https://ossci-datasets.s3.amazonaws.com/mnist"

SOURCE = Source(
    name="mnist",
    title="MNIST",
    shape=(1, 28, 28),
    sizes={"train": 60_000, "test": 10_000},
    held_out=5_000,
    classes=tuple("0123456789"),
    read=read,
    files={"train": tuple(FILES[:2]), "test": tuple(FILES[2:])},
    downloads=tuple(
        Download(f"{SITE}/{name}.gz", gz, f"MNIST/raw/{name}.gz", size) for name, (gz, _, size) in OFFICIAL.items()
    ),
)

PER_CLASS: dict[Part, int] = {"train": 500, "test": 100}  #: Examples of each class in mnist-mini.
MINI_FILE = File({"mnist_mini.npz": "7b806bbb6c31c0add8e9426e74928e4e"})


def read_mini(part: Part, paths: Sequence[Path], count: int) -> RawExamples:
    """Read one part of the archive that `scripts/cut_mnist_mini.py` wrote."""
    with np.load(paths[0], allow_pickle=False) as arrays:
        images, labels, ids = (arrays[f"{part}_{kind}"] for kind in ("images", "labels", "ids"))
    return RawExamples(images[:, None], labels.astype(np.int64), ids.astype(np.int64))


MINI = Source(
    name="mnist-mini",
    title="MNIST-mini",
    shape=(1, 28, 28),
    sizes={part: 10 * per_class for part, per_class in PER_CLASS.items()},
    held_out=500,
    classes=tuple("0123456789"),
    read=read_mini,
    files={"train": (MINI_FILE,), "test": (MINI_FILE,)},
    embedded_in=Path(__file__).parent,
)
