"""The user's examples as tensors, from tensors, arrays, data sets, loaders or files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from graddiv import store
from graddiv.data import SOURCES, Dataset, load
from graddiv.data.own import checked_labels, collected, is_own, read_own, tensor
from graddiv.errors import GradDivError
from graddiv.networks.inputs import HALF
from graddiv.references import name_of

#: The least and the greatest value of a pixel, as the model takes it: one number, or one for each channel.
Bounds = tuple[float | int | Sequence[float], float | int | Sequence[float]]


@dataclass(frozen=True, eq=False)
class Examples:
    """Images and labels in memory, with the interface of a `Dataset`."""

    x: Float[Tensor, "b ..."]
    y: Int64[Tensor, " b"]
    ids: Int64[Tensor, " b"]  #: The index of each example, which addresses its randomness.
    name: str = "tensors"  #: The name of the data set in records.
    split: str = "given"
    bounds: Bounds = (0.0, 1.0)  #: What the pixels 0 and 1 are in the units of the model.

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def checksum(self) -> str:
        """sha256 of images, labels and ids."""
        return store.digest(repr((tuple(self.x.shape), self.x.dtype)), self.x, self.y, self.ids)

    def batch(self, rows: slice) -> tuple[Tensor, Tensor]:
        return self.x[rows], self.y[rows]

    def take(self, rows: slice | Int64[Tensor, " k"]) -> "Examples":
        """The subset at these rows, which keeps its ids and so its per-example randomness."""
        return replace(self, x=self.x[rows], y=self.y[rows], ids=self.ids[rows])


def examples_of(
    x: object, y: object = None, bounds: Bounds | None = None, examples: int | None = None,
    dtype: torch.dtype | None = None, *, split: str = "", data_root: str | Path | None = None,
) -> Examples:  # fmt: skip
    """Make examples, with pixels scaled to [0, 1], of tensors, arrays, a Dataset, a DataLoader, or a reference to one.

    dtype: the type that images are computed in; by default their own, or float32 for half precision and integers.
    split, data_root: of a reference, as in `read_examples`.
    """
    if examples is not None and examples < 1:
        raise GradDivError(f"examples is {examples}, expected at least 1")
    if isinstance(x, Examples):
        return x.take(slice(0, examples))
    if isinstance(x, str | Path) and y is None:
        read = read_examples(str(x), examples, data_root, split, bounds)
        called = split or ("test" if str(x) in SOURCES else "given")
        return replace(examples_of(*read, bounds, dtype=dtype), name=name_of(str(x)), split=called)
    images, labels = _pair(x, y, examples)
    images = images.to(dtype or (torch.float32 if images.dtype in HALF else images.dtype))
    if len(images) == 0 or len(images) != len(labels):
        raise GradDivError(f"there are {len(images)} images and {len(labels)} labels, expected as many, at least one")
    if not images.isfinite().all():
        raise GradDivError(f"x holds {int((~images.isfinite()).sum())} values that are NaN or infinite")
    bounds = _checked_bounds(images, bounds)
    low, high = (_per_channel(bound, images) for bound in bounds)
    return Examples(((images - low) / (high - low)).clamp(0, 1), labels, torch.arange(len(labels)), bounds=bounds)


def unscaled(x: Float[Tensor, "b ..."], bounds: Bounds) -> Float[Tensor, "b ..."]:
    """Images with pixels in [0, 1] as the model takes them: low + (high - low) x."""
    low, high = (_per_channel(bound, x) for bound in bounds)
    return low + (high - low) * x


def read_examples(
    reference: str, examples: int | None = None, data_root: str | Path | None = None, split: str = "",
    bounds: Bounds | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Images and labels of a reference: the name of a data set, or one of the kinds of `graddiv.data.own`.

    split: "test" if not given; data of one's own that are not divided into splits are then taken as a whole.
    bounds: what the bytes 0 and 255 become, by default 0 and 1; other numbers stay.
    """
    if split or not is_own(reference) or reference in SOURCES:
        data = load(reference, split or "test", data_root)
        x, y = data.images[:examples], data.labels[:examples]
    else:
        found = read_own(reference, examples=examples)
        x, y = found.x[:examples], found.y[:examples]
    return unscaled(x.float() / 255, bounds or (0.0, 1.0)) if x.dtype == torch.uint8 else x, y


def _pair(x: object, y: object, examples: int | None) -> tuple[Float[Tensor, "b ..."], Int64[Tensor, " b"]]:
    """Images as floats and labels as integers, from any kind of input."""
    if y is not None and isinstance(x, Dataset | TorchDataset | DataLoader):
        raise GradDivError("y is given and x is a data set, which has its own labels: leave y out")
    if isinstance(x, Dataset):
        return x.batch(slice(0, examples))
    if y is not None:
        images, labels = (tensor(values, name)[:examples] for values, name in ((x, "x"), (y, "y")))
    elif isinstance(x, Tensor | np.ndarray):
        raise GradDivError("x is an array and y is missing: pass the labels too")
    elif isinstance(x, str | Mapping) or not (isinstance(x, Iterable) or hasattr(x, "__getitem__")):
        kinds = "a tensor, an array, a Dataset, a DataLoader, or a name such as 'xs.npz'"
        raise GradDivError(f"x is {type(x).__name__}, expected {kinds}")
    else:
        images, labels = collected(x, examples)
    return (images if images.is_floating_point() else images.float()), checked_labels(labels)


def _checked_bounds(x: Tensor, bounds: Bounds | None) -> Bounds:
    """The bounds as given, or [0, 1]; the error for images outside of them proposes others."""
    least, greatest = float(x.min()), float(x.max())
    if bounds is None:
        if least >= 0 and greatest <= 1:
            return 0.0, 1.0
        proposal = (
            "x seems to be normalized: make the normalization a layer of the model, or pass as bounds what pixels "
            "0 and 1 become, (0 - mean) / std and (1 - mean) / std, for each channel"
        )
        if least >= 0 and greatest <= 255:
            proposal = "pass bounds=(0, 255) if the model takes such values, or divide x by 255"
        raise GradDivError(f"x lies in [{least:.4g}, {greatest:.4g}], expected [0, 1]: {proposal}")
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise GradDivError(
            f"bounds are {bounds}, expected the least and the greatest value of a pixel, such as (0, 255)"
        )
    low, high = (_per_channel(bound, x) for bound in bounds)
    if not bool((low < high).all()):
        raise GradDivError(f"bounds are {bounds}, expected the least value of a pixel before the greatest")
    slack = 1e-4 * (high - low)
    if bool((x < low - slack).any()) or bool((x > high + slack).any()):
        raise GradDivError(f"x lies in [{least:.4g}, {greatest:.4g}], outside of the bounds {bounds}")
    return bounds


def _per_channel(bound: float | int | Sequence[float], x: Float[Tensor, "b ..."]) -> Tensor:
    """The bound in a shape that fits images."""
    value = torch.as_tensor(bound, dtype=x.dtype, device=x.device)
    if value.dim() == 0:
        return value
    if x.dim() != 4 or value.shape != x.shape[1:2]:
        found = f"a bound has {value.numel()} values and images have shape {tuple(x.shape[1:])}"
        raise GradDivError(f"{found}, expected one number or one for each channel")
    return value.reshape(-1, 1, 1)
