"""MNIST: four idx files, compressed or not."""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from graddiv.data.source import Download, File, Part, RawExamples, Source, class_labels
from graddiv.errors import GradDivError


def read(part: Part, paths: Sequence[Path], count: int) -> RawExamples:
    """Read an images file and its labels file."""
    images, labels = paths
    pixels = read_idx(images, (count, 28, 28)).reshape(count, 1, 28, 28)
    return RawExamples(pixels, class_labels(labels, read_idx(labels, (count,))), np.arange(count, dtype=np.int64))


def read_idx(path: Path, shape: tuple[int, ...]) -> UInt8[np.ndarray, "..."]:
    """Read an idx file of bytes that must have this shape."""
    content = _content(path)
    header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    if not content.startswith(header):
        raise GradDivError(f"{path} starts with {_described(content)}, expected an idx header of shape {shape}")
    if len(content) - len(header) != math.prod(shape):
        held, expected = len(content) - len(header), math.prod(shape)
        raise GradDivError(f"{path} holds {held} bytes of data, expected {expected} for its shape {shape}")
    # A copy, because torch wants memory that it may write to.
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape).copy()


def _content(path: Path) -> bytes:
    """Return the bytes of a file, uncompressed."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise GradDivError(f"{path} cannot be read ({error}), expected an idx file") from error


def _described(content: bytes) -> str:
    """Describe the first bytes for the error message."""
    rank = content[3] if len(content) > 3 else 0
    if content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * rank:
        return f"the bytes {content[:4].hex(' ') or '(none)'}"
    return f"an idx header of shape {struct.unpack_from(f'>{rank}I', content, 4)}"


def _file(name: str, md5_compressed: str, md5: str) -> File:
    return File({f"MNIST/raw/{name}.gz": md5_compressed, f"MNIST/raw/{name}": md5})


FILES = {
    "train": (
        _file("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
        _file("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    ),
    "test": (
        _file("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
        _file("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
    ),
}


def _download(file: File) -> Download:
    path, md5 = next(iter(file.forms.items()))
    return Download(f"https://ossci-datasets.s3.amazonaws.com/mnist/{Path(path).name}", md5, path, SIZES[md5])


SIZES = {
    "f68b3c2dcbeaaa9fbdd348bbdeb94873": 9_912_422,
    "d53e105ee54ea40749a09fcbcd1e9432": 28_881,
    "9fb629c4189551a2d022fa330f9573f3": 1_648_877,
    "ec29112dd5afa0611ce80d1b7f02629c": 4_542,
}
"""Bytes of the compressed files, by their md5."""


SOURCE = Source(
    name="mnist",
    title="MNIST",
    shape=(1, 28, 28),
    sizes={"train": 60_000, "test": 10_000},
    held_out=5_000,
    classes=tuple("0123456789"),
    read=read,
    files=FILES,
    downloads=tuple(_download(file) for part in ("train", "test") for file in FILES[part]),
)
