"""A data set in memory."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

Rows = Int64[Tensor, " b"] | Sequence[int] | slice
"""Which examples: their positions in the split."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels of one split.

    Pixels stay bytes (STL-10's test images are 221 MB as bytes, 885 MB as floats); `batch` makes the floats.
    """

    name: str
    """The name under which `load` knows it."""
    split: str
    """Which split it is."""
    images: UInt8[Tensor, "n c h w"]
    """Pixels as bytes, 0 to 255."""
    labels: Int64[Tensor, " n"]
    """The class of each image, from 0."""
    ids: Int64[Tensor, " n"]
    """The position of each image in the official file; it addresses the image's randomness."""
    classes: tuple[str, ...]
    """The names of the classes."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Float32[Tensor, "c h w"], int]:
        """Return one image with pixels in [0, 1], and its label: what a `DataLoader` asks for."""
        return self.images[row].float().div_(255), int(self.labels[row])

    @cached_property
    def checksum(self) -> str:
        """sha256 of everything an experiment can depend on: name, split, images, labels and ids."""
        digest = hashlib.sha256(repr((self.name, self.split, tuple(self.images.shape))).encode())
        for tensor in (self.images, self.labels, self.ids):
            digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def batch(self, rows: Rows) -> tuple[Float32[Tensor, "b c h w"], Int64[Tensor, " b"]]:
        """Return images with pixels in [0, 1], and their labels."""
        return self.images[rows].float().div_(255), self.labels[rows]

    def take(self, rows: Rows) -> "Dataset":
        """Return the subset at these rows, which keeps its ids and so its per-example randomness."""
        return replace(self, images=self.images[rows], labels=self.labels[rows], ids=self.ids[rows])
