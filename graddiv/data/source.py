"""What is known of a data set before it is read: its shape, its official files and where they come from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int64, Integer, UInt8

from graddiv.errors import GradDivError

Part = Literal["train", "test"]


class Examples(NamedTuple):
    """What a reader returns."""

    images: UInt8[np.ndarray, "n c h w"]
    labels: Int64[np.ndarray, " n"]
    ids: Int64[np.ndarray, " n"]


# (part, its files in the order of `Source.files`, how many examples they must hold)
Reader = Callable[[Part, Sequence[Path], int], Examples]


@dataclass(frozen=True, eq=False)
class File:
    """An official file: `forms` maps each path it may have below a data root to its md5 in that form."""

    forms: Mapping[str, str]


@dataclass(frozen=True)
class Download:
    """A file on the web, kept at `path` below the data root, or an archive of which only `members` are kept."""

    url: str
    md5: str
    path: str
    members: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        """Paths below the data root that this download provides."""
        return self.members or (self.path,)


@dataclass(frozen=True)
class Source:
    """One entry of the registry; no `files` means that the examples are generated."""

    name: str
    shape: tuple[int, int, int]
    sizes: Mapping[Part, int]
    held_out: int  # the last so many training examples are the validation split
    classes: tuple[str, ...]
    read: Reader
    files: Mapping[str, tuple[File, ...]] = field(default_factory=dict)  # "train", "test", and what no reader needs
    downloads: tuple[Download, ...] = ()
    embedded_in: Path | None = None  # the folder of a data set that ships with the package
    crop_and_flip: bool = False  # whether training augments it

    @property
    def training_examples(self) -> int:
        """How many examples the split "train" has: all but those held out for validation."""
        return self.sizes["train"] - self.held_out

    @property
    def all_files(self) -> tuple[File, ...]:
        """Files of every part, each once."""
        return tuple(dict.fromkeys(file for files in self.files.values() for file in files))

    @property
    def md5s(self) -> dict[str, str]:
        """Path below a data root -> md5, over all files in all their forms."""
        return {path: md5 for file in self.all_files for path, md5 in file.forms.items()}


def class_labels(path: Path, values: Integer[np.ndarray, " n"], first: int = 0) -> Int64[np.ndarray, " n"]:
    """The labels first, ..., first + 9 of a file as 0, ..., 9."""
    wrong = (values < first) | (values > first + 9)
    if wrong.any():
        position = int(wrong.argmax())
        raise GradDivError(
            f"{path} holds label {values[position]} at position {position}, expected {first}..{first + 9}"
        )
    return values.astype(np.int64) - first
