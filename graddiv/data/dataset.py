"""A data set: its `Source` holds what is known before it is read, a `Dataset` a split in memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from graddiv import store
from graddiv.performance import channels_last
from graddiv.seeding import fold, uniform

Part = Literal["train", "test"]  #: The two parts in which data sets are published.
Rows = Int64[Tensor, " b"] | Sequence[int] | slice  #: Which examples: their positions in the split.
PACKAGE = Path(__file__).parent
PADDING = 4  #: How many pixels training shifts an image by at most, in each direction.


@dataclass(frozen=True)
class Download:
    """A file on the web: a file of the data set itself, or an archive of several."""

    url: str
    md5: str
    path: str  #: Where it is stored, below the data root.
    size: int  #: How many bytes it has; an answer that is longer is cut off.
    members: Sequence[str] = ()  #: For an archive, the paths of the files that are taken out of it.


@dataclass(frozen=True)
class Source:
    """The facts about a data set before it is read; an entry of `graddiv.data.SOURCES`."""

    name: str
    shape: tuple[int, int, int]  #: Channels, height and width of an image.
    sizes: Mapping[Part, int]  #: How many examples each part has.
    held_out: int  #: How many training examples, the last ones, are the validation split.
    classes: tuple[str, ...]  #: The names of the classes.
    #: (part, its files) -> images n c h w in bytes, or floats in [0, 1]; labels from 0 and positions in the official
    #: file, both int64.
    read: Callable[[Part, Sequence[Path]], tuple[np.ndarray, np.ndarray, np.ndarray]]
    #: The files of "train" and of "test", and others that no reader needs; none if the examples are generated.
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    md5s: Mapping[str, str] = field(default_factory=dict)  #: Path below a data root -> md5; `.gz` forms have their own.
    downloads: Sequence[Download] = ()
    embedded: bool = False  #: Whether it ships with the package, in the folder PACKAGE.
    crop_and_flip: bool = False  #: Whether training augments it with random crops and flips.
    title: str = ""  #: Its name in tables, if it is another.

    @property
    def training_examples(self) -> int:
        """The size of the split "train": all but the examples held out for validation."""
        return self.sizes["train"] - self.held_out


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels of one split; pixels are stored as bytes or floats, `batch` returns floats."""

    name: str
    split: str
    images: UInt8[Tensor, "n c h w"] | Float32[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]  #: The class of each image, from 0.
    ids: Int64[Tensor, " n"]  #: The position of each image in the official file; it addresses the image's randomness.
    classes: tuple[str, ...]  #: The names of the classes.

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Float32[Tensor, "c h w"], int]:
        """Return one image with pixels in [0, 1], and its label: what a `DataLoader` asks for."""
        return _pixels(self.images[row]), int(self.labels[row])

    @cached_property
    def checksum(self) -> str:
        """sha256 of everything an experiment can depend on: name, split, images, labels and ids."""
        identity = repr((self.name, self.split, tuple(self.images.shape)))
        return store.digest(identity, self.images, self.labels, self.ids)

    def batch(self, rows: Rows) -> tuple[Float32[Tensor, "b c h w"], Int64[Tensor, " b"]]:
        """Return images with pixels in [0, 1], and their labels."""
        return _pixels(self.images[rows]), self.labels[rows]

    def batches(self, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield images, labels and ids of at most `size` examples at a time, on a device and in its fastest layout."""
        for rows in (slice(start, start + size) for start in range(0, len(self), size)):
            x, y = self.batch(rows)
            yield channels_last(x.to(device)), y.to(device), self.ids[rows].to(device)

    def take(self, rows: Rows) -> "Dataset":
        """Return the subset at these rows, which keeps its ids and so its per-example randomness."""
        return replace(self, images=self.images[rows], labels=self.labels[rows], ids=self.ids[rows])


def _pixels(images: Tensor) -> Tensor:
    """Pixels in [0, 1]."""
    return images.clone() if images.is_floating_point() else images.float().div_(255)


def crop_and_flip(
    images: Float32[Tensor, "b c h w"], ids: Int64[Tensor, " b"], seed: int, epoch: int
) -> Float32[Tensor, "b c h w"]:
    """Shift each image by up to 4 pixels, zeros coming in, and mirror half of them; addressed by (seed, epoch, id)."""
    image, channel, height, width = (torch.arange(n, device=images.device) for n in images.shape)
    top, left, mirror = uniform(fold(seed, "augment", epoch), ids.to(images.device), 3).unbind(1)
    rows = (top * (2 * PADDING + 1)).long()[:, None] + height
    columns = (left * (2 * PADDING + 1)).long()[:, None] + width
    columns = torch.where(mirror[:, None] < 0.5, columns.flip(1), columns)
    padded = F.pad(images, (PADDING,) * 4)
    return padded[image[:, None, None, None], channel[:, None, None], rows[:, None, :, None], columns[:, None, None]]
