"""What is known of a data set before it is read: its shape, its official files and where they come from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int64, Integer, UInt8

from graddiv.errors import GradDivError

Part = Literal["train", "test"]
"""The two parts in which data sets are published; the validation split is cut from the first."""


class RawExamples(NamedTuple):
    """What a reader returns: images as bytes, labels from 0, and positions in the official file."""

    images: UInt8[np.ndarray, "n c h w"]
    labels: Int64[np.ndarray, " n"]
    ids: Int64[np.ndarray, " n"]


Reader = Callable[[Part, Sequence[Path], int], RawExamples]
"""(part, its files in the order of `Source.files`, how many examples they must hold) -> the examples."""


@dataclass(frozen=True, eq=False)
class File:
    """An official file: `forms` maps each path it may have below a data root to its md5 in that form."""

    forms: Mapping[str, str]


@dataclass(frozen=True)
class Download:
    """A file on the web: a file of the data set itself, or an archive of several."""

    url: str
    """Where it is."""
    md5: str
    """The checksum it must have."""
    path: str
    """Where it is stored, below the data root."""
    size: int
    """How many bytes it has: an answer that goes on beyond them is broken off."""
    members: tuple[str, ...] = ()
    """For an archive, the paths of the files that are taken out of it."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Paths below the data root that this download provides."""
        return self.members or (self.path,)


@dataclass(frozen=True)
class Source:
    """One entry of the registry of data sets."""

    name: str
    """The name under which `load` knows it."""
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    sizes: Mapping[Part, int]
    """How many examples each part has."""
    held_out: int
    """How many training examples, the last ones, are the validation split."""
    classes: tuple[str, ...]
    """The names of the classes."""
    read: Reader
    """Reads a part from its files."""
    files: Mapping[str, tuple[File, ...]] = field(default_factory=dict)
    """The files of "train" and of "test", and others that no reader needs; none if the examples are generated."""
    downloads: tuple[Download, ...] = ()
    """From where the files can be fetched."""
    embedded_in: Path | None = None
    """The folder of a data set that ships with the package."""
    crop_and_flip: bool = False
    """Whether training augments it with random crops and flips."""
    title: str = ""
    """What tables call it, if not by its name."""

    @property
    def training_examples(self) -> int:
        """How many examples the split "train" has: all but those held out for validation."""
        return self.sizes["train"] - self.held_out

    @property
    def all_files(self) -> tuple[File, ...]:
        """The files of every part, each of them once."""
        return tuple(dict.fromkeys(file for files in self.files.values() for file in files))

    @property
    def md5s(self) -> dict[str, str]:
        """Path below a data root -> md5, over all files in all their forms."""
        return {path: md5 for file in self.all_files for path, md5 in file.forms.items()}


def class_labels(path: Path, values: Integer[np.ndarray, " n"], first: int = 0) -> Int64[np.ndarray, " n"]:
    """Return the labels of a file, which must be first, ..., first + 9, as 0, ..., 9."""
    wrong = (values < first) | (values > first + 9)
    if wrong.any():
        position = int(wrong.argmax())
        raise GradDivError(
            f"{path} holds label {values[position]} at position {position}, expected {first}..{first + 9}"
        )
    return values.astype(np.int64) - first
