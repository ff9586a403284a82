"""The readers of the data sets, whose files are checked by md5 before.  All other facts are in sources.toml."""

import gzip
import pickle
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graddiv.data.dataset import PACKAGE, Download, Part, Source
from graddiv.errors import GradDivError
from graddiv.registries import Registry
from graddiv.seeding import fold, uniform

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]  #: Images, labels and ids.
CHUNK = 500  #: How many images of STL-10 are transposed at a time.
SEED = 20190717  #: Addresses the patterns and the noise of "synthetic"; never to be changed.


def numbered(images: np.ndarray, labels: np.ndarray) -> Arrays:
    """Return the examples with their positions as ids."""
    return images, labels.astype(np.int64), np.arange(len(labels), dtype=np.int64)


def read_mnist(part: Part, paths: Sequence[Path]) -> Arrays:
    """Read an images file and its labels file, compressed or not, behind their headers of 16 and 8 bytes."""
    contents = [gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes() for p in paths]
    images, labels = (np.frombuffer(c, np.uint8, offset=n) for c, n in zip(contents, (16, 8), strict=True))
    return numbered(images.reshape(-1, 1, 28, 28).copy(), labels)  # torch wants memory that it may write to


def read_mini(part: Part, paths: Sequence[Path]) -> Arrays:
    """Read one part of the archive that `scripts/cut_mnist_mini.py` wrote."""
    with np.load(paths[0], allow_pickle=False) as arrays:
        images, labels, ids = (arrays[f"{part}_{kind}"] for kind in ("images", "labels", "ids"))
    return images[:, None], labels.astype(np.int64), ids.astype(np.int64)


class Unpickler(pickle.Unpickler):
    """Admits only the three numpy names that the official batches use, so a pickle can run nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in (("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")):
            raise GradDivError(f"a pickle asks for '{module}.{name}' and was refused, expected numbers and arrays only")
        return super().find_class(module, name)


def read_cifar10(part: Part, paths: Sequence[Path]) -> Arrays:
    """Read the batch files of a part into one array."""
    batches = []
    for path in paths:
        try:
            with path.open("rb") as stream:
                batches.append(Unpickler(stream, encoding="bytes").load())
        except GradDivError as error:
            raise GradDivError(f"{path}: {error}") from None
    images = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32)
    return numbered(images, np.concatenate([batch[b"labels"] for batch in batches]))


def read_stl10(part: Part, paths: Sequence[Path]) -> Arrays:
    """Read an images file, stored column by column, and its labels file, which counts from 1."""
    images, labels = (np.fromfile(path, np.uint8) for path in paths)
    images = images.reshape(-1, 3, 96, 96)
    for start in range(0, len(images), CHUNK):  # in place: a second copy of the test images would take 221 MB
        chunk = images[start : start + CHUNK]
        chunk[:] = chunk.transpose(0, 1, 3, 2).copy()
    return numbered(images, labels - 1)


def generate(part: Part, paths: Sequence[Path]) -> Arrays:
    """Generate images for tests, half blocky pattern of their class and half noise, with the classes in turn."""
    ids = torch.arange({"train": 500, "test": 200}[part])
    labels = ids % 10
    blocks = uniform(fold(SEED, "patterns"), torch.arange(10), 16).view(10, 4, 4)
    patterns = blocks.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)
    noise = uniform(fold(SEED, "noise", part), ids, 144).view(-1, 12, 12)
    images = (patterns[labels] + noise).mul(127.5).to(torch.uint8).unsqueeze(1)
    return images.numpy(), labels.numpy(), ids.numpy()


READERS = {"mnist-mini": read_mini, "mnist": read_mnist, "cifar10": read_cifar10, "stl10": read_stl10}
READERS["synthetic"] = generate


def source(name: str, facts: dict[str, Any]) -> Source:
    """Return the data set that these facts of sources.toml describe."""
    lists = {"shape": tuple(facts["shape"]), "classes": tuple(facts["classes"])}
    downloads = [Download(**each) for each in facts.get("downloads", ())]
    return Source(name, read=READERS[name], **{**facts, **lists, "downloads": downloads})


DECLARED = tomllib.loads((PACKAGE / "sources.toml").read_text(encoding="utf-8"))
SOURCES: Registry[Source] = Registry("data set", {name: source(name, facts) for name, facts in DECLARED.items()})
"""The known data sets by name."""
