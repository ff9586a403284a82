"""STL-10: the labeled part of the binary files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from graddiv.data.dataset import Download, File, Part, RawExamples, Source, class_labels
from graddiv.errors import GradDivError

CHUNK = 500  #: How many images are transposed at a time.


def read(part: Part, paths: Sequence[Path], count: int) -> RawExamples:
    """Read an images file, stored column by column, and its labels file, which counts from 1."""
    images, labels = paths
    pixels = read_bytes(images, (count, 3, 96, 96))
    for start in range(0, count, CHUNK):  # in place: a second copy of the test images would take 221 MB
        chunk = pixels[start : start + CHUNK]
        chunk[:] = chunk.transpose(0, 1, 3, 2).copy()
    classes = class_labels(labels, read_bytes(labels, (count,)), first=1)
    return RawExamples(pixels, classes, np.arange(count, dtype=np.int64))


def read_bytes(path: Path, shape: tuple[int, ...]) -> UInt8[np.ndarray, "..."]:
    """Read a file without header that must fill this shape exactly."""
    found, expected = path.stat().st_size, int(np.prod(shape))
    if found != expected:
        raise GradDivError(f"{path} holds {found} bytes, expected {expected} for shape {shape}")
    return np.fromfile(path, np.uint8).reshape(shape)


MD5S = {
    "stl10_binary/train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
    "stl10_binary/train_y.bin": "5a34089d4802c674881badbb80307741",
    "stl10_binary/test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
    "stl10_binary/test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
}
FILES = tuple(File({path: md5}) for path, md5 in MD5S.items())

SOURCE = Source(
    name="stl10",
    title="STL-10",
    shape=(3, 96, 96),
    sizes={"train": 5_000, "test": 8_000},
    held_out=500,
    classes=("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"),
    read=read,
    files={"train": FILES[:2], "test": FILES[2:]},
    downloads=(
        Download(
            url="https://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
            md5="91f7769df0f17e558f3565bffb0c7dfb",
            path="stl10_binary.tar.gz",
            size=2_640_397_119,
            members=tuple(MD5S),
        ),
    ),
    crop_and_flip=True,
)
