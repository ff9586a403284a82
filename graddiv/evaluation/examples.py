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
from graddiv.data import Dataset, load
from graddiv.errors import GradDivError
from graddiv.networks.inputs import HALF, MAKE_LABELS, plain

#: The least and the greatest value of a pixel, as the model takes it: one number, or one for each channel.
Bounds = tuple[float | int | Sequence[float], float | int | Sequence[float]]
IMAGES = ("x", "images", "x_test", "image", "data")  #: Names under which archives hold images.
LABELS = ("y", "labels", "y_test", "label", "targets")


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
    dtype: torch.dtype | None = None,
) -> Examples:  # fmt: skip
    """Make examples, with pixels scaled to [0, 1], of tensors, arrays, a Dataset or a DataLoader.

    dtype: the type that images are computed in; by default their own, or float32 for half precision and integers.
    """
    if examples is not None and examples < 1:
        raise GradDivError(f"examples is {examples}, expected at least 1")
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


def read_examples(name: str, examples: int | None = None, data_root: str | Path | None = None) -> tuple[Tensor, Tensor]:
    """Images and labels of an .npz file, or the test split of a data set by its name."""
    if not name.endswith(".npz"):
        return load(name, "test", data_root).batch(slice(0, examples))
    found = store.read_npz(Path(name))
    keys = [next((key for key in names if key in found), None) for names in (IMAGES, LABELS)]
    if None in keys:
        raise GradDivError(f"{name} holds {', '.join(found) or 'nothing'}, expected the arrays x and y")
    x, y = (torch.from_numpy(found[str(key)]) for key in keys)
    return x[:examples], y[:examples]


def _pair(x: object, y: object, examples: int | None) -> tuple[Float[Tensor, "b ..."], Int64[Tensor, " b"]]:
    """Images as floats and labels as integers, from any kind of input."""
    if y is not None and isinstance(x, Dataset | TorchDataset | DataLoader):
        raise GradDivError("y is given and x is a data set, which has its own labels: leave y out")
    if isinstance(x, Dataset):
        return x.batch(slice(0, examples))
    if y is not None:
        images, labels = (_tensor(values, name)[:examples] for values, name in ((x, "x"), (y, "y")))
    elif isinstance(x, Tensor | np.ndarray):
        raise GradDivError("x is an array and y is missing: pass the labels too")
    elif isinstance(x, str | Mapping) or not (isinstance(x, Iterable) or hasattr(x, "__getitem__")):
        raise GradDivError(f"x is {type(x).__name__}, expected a tensor, an array, a Dataset or a DataLoader")
    else:
        images, labels = _collected(x, examples)
    if labels.is_floating_point() or labels.dim() != 1:
        found = f"y has type {labels.dtype} and shape {tuple(labels.shape)}"
        raise GradDivError(f"{found}, expected one whole number for each image: {MAKE_LABELS}")
    if len(labels) and int(labels.min()) < 0:
        raise GradDivError(f"y holds the label {int(labels.min())}, expected classes from 0 on")
    return (images if images.is_floating_point() else images.float()), labels.long()


def _collected(x: object, examples: int | None) -> tuple[Tensor, Tensor]:
    """The pairs of a Dataset, or the batches of a loader, together."""
    by_index = not isinstance(x, DataLoader) and hasattr(x, "__getitem__") and hasattr(x, "__len__")
    parts: Iterable[object] = (x[i] for i in range(len(x))) if by_index else x  # type: ignore[index,arg-type,assignment]
    images, labels = list[Tensor](), list[Tensor]()
    for part in parts:
        if not isinstance(part, tuple | list) or len(part) != 2:
            raise GradDivError(f"x holds {type(part).__name__} items, expected pairs of image and label")
        image, label = (_tensor(values, name) for values, name in zip(part, "xy", strict=True))
        single = label.dim() == 0
        images.append(image[None] if single else image)
        labels.append(label[None] if single else label)
        if examples is not None and sum(map(len, labels)) >= examples:
            break
    if not images:
        raise GradDivError("x holds no images")
    return torch.cat(images)[:examples], torch.cat(labels)[:examples]


def _tensor(values: object, name: str) -> Tensor:
    try:
        found = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError):
        raise GradDivError(f"{name} is of type {type(values).__name__}, expected a tensor or an array") from None
    if found.is_meta:
        raise GradDivError(f"{name} lies on the device meta, where there are no values")
    return plain(name, found)


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
