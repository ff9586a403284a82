"""Examples of the user's own: an .npz file, a folder of images by class, or `file.py:name`; and a `Source` of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from graddiv import store
from graddiv.data.dataset import Dataset, Part, Source
from graddiv.errors import GradDivError
from graddiv.networks.inputs import MAKE_LABELS, plain
from graddiv.references import called, file_of, is_code, made
from graddiv.seeding import fold, generator

IMAGES = ("x", "images", "x_test", "image", "data")  #: Names under which archives hold images.
LABELS = ("y", "labels", "y_test", "label", "targets")
PICTURES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
KINDS = "an .npz file, a folder of images by class, or file.py:name of a data set"
SEED = 20261119  #: Addresses the order in which examples are divided into splits; never to be changed.


@dataclass(frozen=True)
class OwnSource(Source):
    """A source made of a reference."""

    sha256s: tuple[str, ...] = ()  #: Over the examples of the reference, and over those of the test split.


class Own(NamedTuple):
    """Examples as the user has them."""

    x: Tensor  #: Images in any type; bytes count from 0 to 255.
    y: Tensor
    classes: Sequence[str]  #: The names of the classes; none if only numbers are known.

    @property
    def sha256(self) -> str:
        """Over all images and labels."""
        return store.digest(repr((tuple(self.x.shape), str(self.x.dtype))), self.x, self.y)


def is_own(reference: str) -> bool:
    """Whether a name refers to data of the user's own, by its form or since there is such a folder."""
    return reference.endswith(".npz") or is_code(reference) or store.is_directory(Path(reference))


def read_own(reference: str, part: Part | None = None, examples: int | None = None) -> Own:
    """Read the examples of a reference.

    part: of an archive that holds x_train and x_test, which of them; "test" if not given.
    examples: only the first so many, where reading the others would take time.
    """
    path = Path(reference)
    if is_code(reference):
        return called(reference, expected=KINDS, take=lambda found: _of_object(reference, found, examples))
    if store.is_directory(path):
        return _of_folder(path, examples)
    found = store.read_npz(path)
    named = [(f"{letter}_{part or 'test'}", *names) for letter, names in (("x", IMAGES), ("y", LABELS))]
    keys = [next((key for key in names if key in found), None) for names in named]
    if None in keys:
        raise GradDivError(f"{reference} holds {', '.join(found) or 'nothing'}, expected the arrays x and y")
    x, y = (tensor(found[str(key)], str(key)) for key in keys)
    return Own(x, y, ())


def _of_object(reference: str, found: Any, examples: int | None) -> Own:
    """The examples of a Dataset, a DataLoader or a pair of arrays, or of what a function returns."""
    if callable(found) and (isinstance(found, type) or not hasattr(found, "__getitem__")):
        found = made(reference, found)
    classes = getattr(found, "classes", None) or getattr(getattr(found, "dataset", None), "classes", None) or ()
    if isinstance(found, Dataset):
        return Own(found.images[:examples], found.labels[:examples], classes)
    if isinstance(found, tuple) and len(found) == 2:
        return Own(tensor(found[0], "x")[:examples], tensor(found[1], "y")[:examples], classes)
    if isinstance(found, str | Mapping) or not (isinstance(found, Iterable) or hasattr(found, "__getitem__")):
        kinds = "a torch Dataset, a DataLoader, a pair of arrays x and y, or a function that returns one"
        raise GradDivError(f"{reference} is of type {type(found).__name__}, expected {kinds}")
    return Own(*collected(found, examples), classes)


def _of_folder(folder: Path, examples: int | None) -> Own:
    """The images of a folder with a folder for each class, the classes in the order of their names."""
    if find_spec("PIL") is None:
        raise GradDivError(f"{folder} is a folder of images, which the package pillow reads: pip install pillow")
    from PIL import Image, UnidentifiedImageError

    classes = sorted(each.name for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    files = [(k, path) for k, name in enumerate(classes) for path in _pictures(folder / name)]
    if len({k for k, _ in files}) < 2:
        found = f"{len(files)} images in {len(classes)} folders"
        raise GradDivError(f"{folder} holds {found}, expected a folder of images for each of at least two classes")
    rows = np.linspace(0, len(files) - 1, min(examples or len(files), len(files))).round().astype(int)
    files, images = [files[row] for row in rows], list[Tensor]()  # a few of them are of all classes
    for _, path in files:
        try:
            with Image.open(path) as image:
                pixels = np.array(image.convert("L" if image.mode in ("1", "L", "I;16") else "RGB"))
        except (OSError, UnidentifiedImageError, ValueError) as error:
            raise GradDivError(f"cannot read {path} as an image: {error}") from None
        images.append(torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy()))
        if images[-1].shape != images[0].shape:
            sizes = [" x ".join(map(str, each.shape)) for each in (images[-1], images[0])]
            said = f"{path} has {sizes[0]} (channels x height x width) and {files[0][1]} {sizes[1]}"
            raise GradDivError(f"{said}, expected images of one size and mode: resize them before")
    return Own(torch.stack(images), torch.tensor([k for k, _ in files]), classes)


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)


def collected(x: object, examples: int | None = None) -> tuple[Tensor, Tensor]:
    """The pairs of a Dataset, or the batches of a loader, together."""
    by_index = not isinstance(x, DataLoader) and hasattr(x, "__getitem__") and hasattr(x, "__len__")
    parts: Iterable[object] = (x[i] for i in range(len(x))) if by_index else x  # type: ignore[index,arg-type,assignment]
    images, labels = list[Tensor](), list[Tensor]()
    for part in parts:
        if not isinstance(part, tuple | list) or len(part) != 2:
            raise GradDivError(f"x holds {type(part).__name__} items, expected pairs of image and label")
        image, label = (tensor(values, name) for values, name in zip(part, "xy", strict=True))
        single = label.dim() == 0
        images.append(image[None] if single else image)
        labels.append(label[None] if single else label)
        if examples is not None and sum(map(len, labels)) >= examples:
            break
    if not images:
        raise GradDivError("x holds no images")
    return torch.cat(images)[:examples], torch.cat(labels)[:examples]


def tensor(values: object, name: str) -> Tensor:
    """The values as a tensor without a graph."""
    try:
        found = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError):
        raise GradDivError(f"{name} is of type {type(values).__name__}, expected a tensor or an array") from None
    if found.is_meta:
        raise GradDivError(f"{name} lies on the device meta, where there are no values")
    return plain(name, found)


def checked_labels(y: Tensor) -> Tensor:
    """Labels as int64, once there is one class for each example."""
    if y.is_floating_point() or y.dim() != 1:
        found = f"y has type {y.dtype} and shape {tuple(y.shape)}"
        raise GradDivError(f"{found}, expected one whole number for each image: {MAKE_LABELS}")
    if len(y) and int(y.min()) < 0:
        raise GradDivError(f"y holds the label {int(y.min())}, expected classes from 0 on")
    return y.long()


def own_source(name: str, reference: str, test: str = "") -> OwnSource:
    """The source of a reference: shape and classes are found out, and its examples divided into splits.

    All are put into an order that is always the same.  The first tenth is the test split, unless `test` refers to one
    or an archive holds x_test beside x_train, and the last tenth of the others the validation split.
    """
    return _source(name, reference, test, _stamp(reference), _stamp(test))


@lru_cache(maxsize=4)
def _source(name: str, reference: str, test: str, *stamps: object) -> OwnSource:
    """As `own_source`; the stamps tell when files have changed."""
    whole = read_own(reference, "train")
    x, y = _as_images(reference, whole.x), checked_labels(whole.y)
    if len(x) != len(y) or len(x) < 10:
        raise GradDivError(f"{reference} holds {len(x)} images and {len(y)} labels, expected as many, at least 10")
    if not test and reference.endswith(".npz") and {"x_train", "x_test"} <= store.read_npz(Path(reference)).keys():
        test = reference
    order = torch.randperm(len(x), generator=generator(fold(SEED, "splits")))
    rows: dict[Part, Tensor] = {"test": order[: len(x) // 10], "train": order[len(x) // 10 :]}
    parts = {part: (x[of], y[of], of) for part, of in rows.items()}
    if test:
        other = read_own(test, "test")
        held = _as_images(test, other.x), checked_labels(other.y)
        if held[0].shape[1:] != x.shape[1:] or list(other.classes) != list(whole.classes):
            raise GradDivError(f"{test} has images of another shape or other classes than {reference}")
        parts = {"train": (x[order], y[order], order), "test": (*held, torch.arange(len(held[1])))}
    largest = max(int(labels.max()) for _, labels, _ in parts.values())
    classes = tuple(map(str, whole.classes or range(largest + 1)))
    if not 2 <= len(classes) > largest:
        raise GradDivError(f"{reference} has {len(classes)} classes and the label {largest}, expected labels below")
    arrays = {part: (i.numpy(), labels.numpy(), ids.numpy()) for part, (i, labels, ids) in parts.items()}
    sizes = {part: len(labels) for part, (_, labels, _) in arrays.items()}
    shape = (int(x.shape[1]), int(x.shape[2]), int(x.shape[3]))
    held_out = max(1, sizes["train"] // 10)
    hashes = (whole.sha256, other.sha256) if test else (whole.sha256,)
    return OwnSource(name, shape, sizes, held_out, classes, lambda part, _: arrays[part], sha256s=hashes)


def _as_images(reference: str, x: Tensor) -> Tensor:
    """Images n c h w, as bytes or as floats in [0, 1]."""
    x = x[:, None] if x.dim() == 3 else x
    if x.dim() != 4:
        raise GradDivError(f"{reference} holds x of shape {tuple(x.shape)}, expected images: n c h w, or n h w")
    if x.shape[3] <= 4 < min(x.shape[1], x.shape[2]):
        found = f"{reference} holds x of shape {tuple(x.shape)}, which looks like n h w c"
        raise GradDivError(f"{found}, expected n c h w: x.transpose(0, 3, 1, 2)")
    least, greatest = float(x.min()), float(x.max())
    most = 1 if x.is_floating_point() else 255
    if not 0 <= least <= greatest <= most:
        wanted = "whole numbers from 0 to 255, or floats from 0 to 1; normalization is a layer of the network"
        raise GradDivError(f"{reference} holds x in [{least:.4g}, {greatest:.4g}], expected {wanted}")
    return x.float() if x.is_floating_point() else x.to(torch.uint8)


def _stamp(reference: str) -> object:
    """What changes whenever a file of the reference does."""
    place = file_of(reference)
    if place is None:
        return None
    paths = _pictures(place) if place.is_dir() else [place]
    return tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
