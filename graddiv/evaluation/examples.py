"""Examples that the caller has in memory, in whatever form: tensors, arrays, data sets, loaders."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from graddiv.data import Dataset
from graddiv.errors import GradDivError
from graddiv.networks.inputs import HALF, plain

Images = Tensor | np.ndarray | Dataset | TorchDataset[Any] | Iterable[tuple[Tensor, Tensor]]
"""Images, or whatever holds images and labels: a data set of this package or of torch, or the batches of a loader."""
Labels = Tensor | np.ndarray | None
"""The labels of images; None where they come with the images."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Tensors that the caller has in memory, with the interface of a `Dataset`."""

    x: Float[Tensor, "b ..."]
    """The images, with pixels in [0, 1]."""
    y: Int64[Tensor, " b"]
    """Their labels."""
    ids: Int64[Tensor, " b"]
    """The index of each example, which addresses its randomness."""
    name: str = "tensors"
    """Stands in records in place of a data set's name."""
    split: str = "given"
    """Stands in records in place of a split."""

    @classmethod
    def of(cls, x: "Images", y: "Labels") -> "Examples":
        """Make examples of images and labels, or of a data set or a loader of both."""
        x = torch.as_tensor(x) if isinstance(x, np.ndarray) else x
        y = torch.as_tensor(y).long() if isinstance(y, np.ndarray) and y.dtype.kind in "iu" else y
        if not isinstance(x, Tensor):
            if y is not None:
                raise GradDivError("y is given and x is a loader, whose batches have their own labels: leave y out")
            batches = _batches(x)
            if not batches or any(len(batch) != 2 for batch in batches):
                lengths = sorted({len(batch) for batch in batches}) or "no"
                raise GradDivError(f"the loader has batches of {lengths} parts, expected pairs of images and labels")
            x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        if y is None:
            raise GradDivError("x is a tensor and y is missing: pass the labels too")
        x, y = plain("x", x), plain("y", y)
        x = x.float() if x.dtype in HALF else x  # nothing is lost, and more digits are needed from here on
        if not x.is_floating_point() or y.dtype != torch.int64 or y.shape != x.shape[:1]:
            raise GradDivError(
                f"x is {x.dtype} of shape {tuple(x.shape)} and y {y.dtype} of shape {tuple(y.shape)}, "
                "expected floats between 0 and 1 and an int64 label for each"
            )
        if x.is_meta or y.is_meta:
            raise GradDivError("x or y lies on the device meta, where there are no values")
        if len(y) and int(y.min()) < 0:
            raise GradDivError(f"y holds the label {int(y.min())}, expected classes from 0 on")
        return cls(x, y, torch.arange(len(y)))

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def checksum(self) -> str:
        """sha256 of images, labels and ids."""
        digest = hashlib.sha256(repr((tuple(self.x.shape), self.x.dtype)).encode())
        for tensor in (self.x, self.y, self.ids):
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def batch(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return the images and labels at these rows."""
        return self.x[rows], self.y[rows]

    def take(self, rows: slice | Int64[Tensor, " k"]) -> "Examples":
        """The subset at these rows, which keeps its ids and so its per-example randomness."""
        return replace(self, x=self.x[rows], y=self.y[rows], ids=self.ids[rows])


def _batches(pairs: Images) -> list[tuple[Tensor, ...]]:
    """The (images, labels) batches of a loader, or of a data set whose examples are pairs."""
    if isinstance(pairs, TorchDataset):
        # a generator of its own: without one, a DataLoader draws from the global random state
        pairs = DataLoader(pairs, batch_size=100, generator=torch.Generator())
    if not isinstance(pairs, Iterable):
        raise GradDivError(f"x is of type {type(pairs).__name__}, expected tensors, a data set or a DataLoader")
    batches = [tuple(batch) if isinstance(batch, tuple | list) else (batch,) for batch in pairs]
    odd = next((part for batch in batches for part in batch if not isinstance(part, Tensor)), None)
    if odd is not None:
        raise GradDivError(f"the loader's batches hold {type(odd).__name__}, expected tensors of images and labels")
    return batches
