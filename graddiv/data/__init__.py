"""The data sets: `load(name, split)`, and `augmented` for their training batches.  See docs/equations.md."""

from pathlib import Path

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from graddiv.data.dataset import Dataset, Part, Source, crop_and_flip
from graddiv.data.files import status, verified
from graddiv.data.own import is_own, own_source
from graddiv.data.sources import SOURCES
from graddiv.errors import unknown
from graddiv.references import name_of

__all__ = ["SOURCES", "SPLITS", "Dataset", "Source", "augmented", "load", "source_of", "status"]

SPLITS = ("train", "validation", "test", "train+validation")  #: The splits that `load` knows.


def source_of(data: str | Source) -> Source:
    """The source of a registered name or of a reference to data of the user's own."""
    if isinstance(data, Source):
        return data
    return own_source(name_of(data), data) if data not in SOURCES and is_own(data) else SOURCES[data]


def load(name: str | Source, split: str = "train", root: str | Path | None = None) -> Dataset:
    """Read a split of a data set, by name, by reference to data of the user's own (see `own_source`), or by source.

    `root` is the folder that holds the official files (default: see `files.search_path`).  "train" leaves out the
    validation split, which is the paper's: the last 5,000 of MNIST's training examples and the last tenth of the
    others'; "train+validation" is all of them.
    """
    source = source_of(name)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    part: Part = "test" if split == "test" else "train"
    paths = [verified(source, file, root) for file in source.files.get(part, ())]
    images, labels, ids = map(torch.from_numpy, source.read(part, paths))
    whole = Dataset(source.name, split, images, labels, ids, source.classes)
    if split == "train":
        return whole.take(slice(0, -source.held_out))
    if split == "validation":  # by numbers, hence a copy: a slice would keep all training images in memory
        return whole.take(range(len(whole))[-source.held_out :])
    return whole


def augmented(
    name: str | Source, images: Float32[Tensor, "b c h w"], ids: Int64[Tensor, " b"], seed: int, epoch: int
) -> Float32[Tensor, "b c h w"]:
    """Augment a training batch as the paper does: crop and flip CIFAR-10 and STL-10, leave other data unchanged."""
    return crop_and_flip(images, ids, seed, epoch) if source_of(name).crop_and_flip else images
