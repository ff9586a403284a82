"""The data sets: their readers, and where their official files come from.

Files are read once their md5 is right, so readers check nothing.
"""

import gzip
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graddiv.data.dataset import Download, Part, Source
from graddiv.errors import GradDivError
from graddiv.seeding import fold, uniform

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]  #: Images, labels and ids.
DIGITS = tuple("0123456789")


def numbered(images: np.ndarray, labels: np.ndarray) -> Arrays:
    """Return the examples with their positions as ids."""
    return images, labels.astype(np.int64), np.arange(len(labels), dtype=np.int64)


# ---- MNIST: four idx files


def read_mnist(part: Part, paths: Sequence[Path]) -> Arrays:
    """Read an images file and its labels file, compressed or not, behind their headers of 16 and 8 bytes."""
    contents = [gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes() for p in paths]
    images, labels = (np.frombuffer(c, np.uint8, offset=n) for c, n in zip(contents, (16, 8), strict=True))
    return numbered(images.reshape(-1, 1, 28, 28).copy(), labels)  # torch wants memory that it may write to


OFFICIAL = {  # name: md5 of the compressed file, md5, bytes of the compressed file
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb", 9_912_422),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624", 28_881),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea", 1_648_877),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637", 4_542),
}
RAW = {f"MNIST/raw/{name}": known for name, known in OFFICIAL.items()}
SITE = "https://ossci-datasets.s3.amazonaws.com/mnist"

MNIST = Source(
    name="mnist",
    title="MNIST",
    shape=(1, 28, 28),
    sizes={"train": 60_000, "test": 10_000},
    held_out=5_000,
    classes=DIGITS,
    read=read_mnist,
    files={"train": tuple(RAW)[:2], "test": tuple(RAW)[2:]},
    md5s={f"{path}.gz": gz for path, (gz, _, _) in RAW.items()} | {path: md5 for path, (_, md5, _) in RAW.items()},
    downloads=tuple(
        Download(f"{SITE}/{Path(path).name}.gz", gz, f"{path}.gz", size) for path, (gz, _, size) in RAW.items()
    ),
)


# ---- mnist-mini: the part of MNIST that ships with the package (see MNIST_LICENSE.txt)


def read_mini(part: Part, paths: Sequence[Path]) -> Arrays:
    """Read one part of the archive that `scripts/cut_mnist_mini.py` wrote."""
    with np.load(paths[0], allow_pickle=False) as arrays:
        images, labels, ids = (arrays[f"{part}_{kind}"] for kind in ("images", "labels", "ids"))
    return images[:, None], labels.astype(np.int64), ids.astype(np.int64)


MINI = Source(
    name="mnist-mini",
    title="MNIST-mini",
    shape=(1, 28, 28),
    sizes={"train": 5_000, "test": 1_000},
    held_out=500,
    classes=DIGITS,
    read=read_mini,
    files={"train": ("mnist_mini.npz",), "test": ("mnist_mini.npz",)},
    md5s={"mnist_mini.npz": "7b806bbb6c31c0add8e9426e74928e4e"},
    embedded_in=Path(__file__).parent,
)


# ---- CIFAR-10: Python 2 pickles


class Unpickler(pickle.Unpickler):
    """Admits only the three numpy names that the official batches use: nothing else in a pickle is run."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in (("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")):
            raise GradDivError(f"a pickle asks for '{module}.{name}' and was refused, expected numbers and arrays only")
        return super().find_class(module, name)


def read_cifar10(part: Part, paths: Sequence[Path]) -> Arrays:
    """Read the batch files of a part into one array."""
    batches = []
    for path in paths:
        with path.open("rb") as stream:
            batches.append(Unpickler(stream, encoding="bytes").load())
    images = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32)
    return numbered(images, np.concatenate([batch[b"labels"] for batch in batches]))


CIFAR10_MD5S = {
    "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
    "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
    "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
    "cifar-10-batches-py/batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
FILES = tuple(CIFAR10_MD5S)
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"

CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10",
    shape=(3, 32, 32),
    sizes={"train": 50_000, "test": 10_000},
    held_out=5_000,
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    read=read_cifar10,
    files={"train": FILES[:5], "test": FILES[5:6], "meta": FILES[6:]},
    md5s=CIFAR10_MD5S,
    downloads=(Download(URL, "c58f30108f718f92721af3b95e74349a", "cifar-10-python.tar.gz", 170_498_071, FILES),),
    crop_and_flip=True,
)


# ---- STL-10: the labeled part of the binary files

CHUNK = 500  #: How many images are transposed at a time.


def read_stl10(part: Part, paths: Sequence[Path]) -> Arrays:
    """Read an images file, stored column by column, and its labels file, which counts from 1."""
    images, labels = (np.fromfile(path, np.uint8) for path in paths)
    images = images.reshape(-1, 3, 96, 96)
    for start in range(0, len(images), CHUNK):  # in place: a second copy of the test images would take 221 MB
        chunk = images[start : start + CHUNK]
        chunk[:] = chunk.transpose(0, 1, 3, 2).copy()
    return numbered(images, labels - 1)


STL10_MD5S = {
    "stl10_binary/train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
    "stl10_binary/train_y.bin": "5a34089d4802c674881badbb80307741",
    "stl10_binary/test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
    "stl10_binary/test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
}
PATHS = tuple(STL10_MD5S)
ARCHIVE = "https://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz"

STL10 = Source(
    name="stl10",
    title="STL-10",
    shape=(3, 96, 96),
    sizes={"train": 5_000, "test": 8_000},
    held_out=500,
    classes=("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"),
    read=read_stl10,
    files={"train": PATHS[:2], "test": PATHS[2:]},
    md5s=STL10_MD5S,
    downloads=(Download(ARCHIVE, "91f7769df0f17e558f3565bffb0c7dfb", "stl10_binary.tar.gz", 2_640_397_119, PATHS),),
    crop_and_flip=True,
)


# ---- synthetic: ten blocky patterns under noise, easy to learn and the same on every machine, for tests

SEED = 20190717  #: Addresses the patterns and the noise; part of the data set, so never to be changed.


def generate(part: Part, paths: Sequence[Path]) -> Arrays:
    """Generate images, half pattern of their class and half noise, with the classes in turn."""
    ids = torch.arange(SYNTHETIC.sizes[part])
    labels = ids % 10
    blocks = uniform(fold(SEED, "patterns"), torch.arange(10), 16).view(10, 4, 4)
    patterns = blocks.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)
    noise = uniform(fold(SEED, "noise", part), ids, 144).view(-1, 12, 12)
    images = (patterns[labels] + noise).mul(127.5).to(torch.uint8).unsqueeze(1)
    return images.numpy(), labels.numpy(), ids.numpy()


SYNTHETIC = Source(
    name="synthetic", shape=(1, 12, 12), sizes={"train": 500, "test": 200}, held_out=50, classes=DIGITS, read=generate
)
