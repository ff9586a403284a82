"""Small files in the official formats, written by hand."""

import gzip
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from graddiv.data.dataset import Source


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def short(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text


def cifar_batch(title: bytes, labels: Sequence[int], data: np.ndarray) -> bytes:
    """The opcodes of the official batches, which Python 2 wrote in 2009."""
    rows, columns = (b"M" + struct.pack("<H", size) for size in data.shape)
    ints = b"".join(b"K" + bytes([label]) for label in labels)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + rows + columns + b"\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<I", data.size)
        + data.tobytes()
        + b"tb"
    )
    items = short(b"batch_label") + short(title) + short(b"labels") + b"](" + ints + b"e" + short(b"data") + array
    return b"\x80\x02}(" + items + b"u."


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def adopt(source: Source, root: Path, train: int, test: int, held_out: int) -> Source:
    """The source, but with these sizes and with the md5 of the files below `root` as the expected ones."""
    present = [path for path in source.md5s if (root / path).exists()]
    md5s = {path: hashlib.md5((root / path).read_bytes()).hexdigest() for path in present}
    return replace(source, sizes={"train": train, "test": test}, held_out=held_out, md5s=md5s)
