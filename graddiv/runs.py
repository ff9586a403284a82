"""A run directory: its files, its log and the trained network."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graddiv import store
from graddiv.errors import GradDivError
from graddiv.experiment import Experiment, parse
from graddiv.networks import RandomizedNetwork
from graddiv.records.record import CHECKLIST as CHECKLIST
from graddiv.references import file_of, is_code, name_of

FORMAT = 1  #: The format of run directories; a version that changes them increases it.


@dataclass
class TrainingPosition:
    """The progress of training; a checkpoint holds it, theta and the moments of Adam."""

    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)  #: Sums of the loss terms since the epoch began.
    log_size: int = 0
    best: float | None = None  #: The highest validation accuracy so far, where the best epoch is selected.

    @classmethod
    def of(cls, description: Mapping[str, Any], path: Path) -> "TrainingPosition":
        """Read from the description of the checkpoint at `path`."""
        match description.get("progress"):
            case {"step": int(step), "sums": dict(sums), "log_size": int(log_size), **others} if (
                not others.keys() - {"best"}
                and isinstance(best := others.get("best"), float | None)
                and min(step, log_size) >= 0
                and all(isinstance(s, float | int) for s in sums.values())
            ):
                return cls(step, sums, log_size, best)
            case found:
                raise GradDivError(f"{path} says of its progress {found!r:.80}, expected step, sums and log_size")


class _File:
    """A file or folder of a run directory."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def __get__(self, run: Any, owner: type | None = None) -> Path:
        return Path(run.path, *self.parts)


@dataclass(frozen=True)
class Run:
    """One run directory: the only place that knows the names of its files."""

    path: Path
    version_file = _File("version.json")  #: The format of the directory.
    experiment_file = _File("experiment.json")  #: All settings: a training that resumes must have the same.
    data_file = _File("data.json")  #: The name and the checksum of the training set.
    recipe_file = _File("recipe.toml")  #: The settings as a recipe that `graddiv train` takes.
    log_file = _File("metrics.jsonl")  #: A line for each start and each epoch of training.
    checkpoints = _File("checkpoints")  #: The folder of checkpoints.
    last_checkpoint = _File("checkpoints", "last.safetensors")  #: The one from which training resumes.
    best_checkpoint = _File("checkpoints", "best.safetensors")  #: The best epoch's on validation data, if selected.
    records = _File("records")  #: The folder of what evaluations found.
    checklist_file = _File("records", CHECKLIST)  #: The verdicts of the checklist.
    tensorboard = _File("tensorboard")  #: The folder of TensorBoard's curves.

    @property
    def description_files(self) -> tuple[Path, ...]:
        """The files that say how the network was trained: all but checkpoints and records."""
        return self.version_file, self.experiment_file, self.data_file, self.recipe_file, self.log_file

    @property
    def trained_checkpoint(self) -> Path:
        """The checkpoint that holds the trained network once training has ended."""
        return self.best_checkpoint if self.experiment.training.select == "best" else self.last_checkpoint

    def checkpoint(self, epoch: int) -> Path:
        """The checkpoint that was kept of this epoch."""
        return self.checkpoints / f"epoch-{epoch:04d}.safetensors"

    def begin(self) -> None:
        """Mark a new directory with the format; refuse one that a later version made."""
        self.check_format()
        if not self.version_file.exists():
            store.write_json(self.version_file, {"format": FORMAT})

    def check_format(self) -> None:
        """Refuse a directory that a later version made."""
        found = store.read_json(self.version_file).get("format") if self.version_file.exists() else FORMAT
        if not isinstance(found, int):
            raise GradDivError(f"{self.version_file} says that the format is {found!r}, expected a number")
        if found > FORMAT:
            raise GradDivError(
                f"{self.path} has format {found}, but this version of graddiv knows none above {FORMAT}: "
                "use the newer version that made it, or choose another directory with --out"
            )

    @cached_property
    def experiment(self) -> Experiment:
        """The settings it was trained with."""
        if not self.experiment_file.exists():
            raise GradDivError(f"{self.path} is no run directory: 'graddiv train' makes one")
        self.check_format()
        return parse(at_home(store.read_json(self.experiment_file), self.path), str(self.experiment_file))

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the log so far."""
        return read_log(self.log_file)

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The log's line of each epoch, from epoch 0, before training."""
        return [line for line in self.log if line["event"] == "epoch"]

    @property
    def epochs_done(self) -> int:
        """The number of trained epochs; 0 before training begins."""
        return _last_epoch(self.log) if self.log_file.exists() else 0

    @property
    def finished(self) -> bool:
        return self.experiment_file.exists() and self.epochs_done == self.experiment.epochs

    def network(self, data_root: str | Path | None = None, epoch: int | None = None) -> RandomizedNetwork:
        """F in eval mode, at the end of training or after an epoch whose checkpoint was kept.

        `data_root`: the folder of the official data files, for networks that hold training examples.
        """
        path = self.trained_checkpoint if epoch is None else self.checkpoint(epoch)
        tensors, about = store.read_tensors(path)
        if epoch is None:
            about = about if path == self.last_checkpoint else store.read_tensors(self.last_checkpoint)[1]
            log_size = TrainingPosition.of(about, self.last_checkpoint).log_size
            if (done := _last_epoch(read_log(self.log_file, log_size))) < self.experiment.epochs:
                so_far = f"to epoch {done} of {self.experiment.epochs}"
                raise GradDivError(f"{self.path} is not trained to its end, but {so_far}: run its training again")
        F = self.experiment.build(root=data_root)
        load_state(F, network_part(tensors), path)
        return F.eval()

    def state(self) -> dict[str, Tensor]:
        """The parameters and buffers of the trained network."""
        if not self.last_checkpoint.exists():
            raise GradDivError(f"{self.path} holds no trained network: expected a run directory or a safetensors file")
        return network_part(store.read_tensors(self.trained_checkpoint)[0])


def _last_epoch(log: list[dict[str, Any]]) -> int:
    return max((line["epoch"] for line in log if line["event"] == "epoch"), default=0)


def network_part(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The network's own tensors of a checkpoint, which also holds the optimizer's."""
    return {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}


def network_of(path: Path) -> dict[str, Tensor]:
    """The parameters and buffers of a run directory or of a safetensors file, from which training can start."""
    return Run(path).state() if store.is_directory(path) else store.read_state(path)


PLACES = (("network", "from"), ("network", "file"), ("data", "file"), ("data", "file_test"))
"""Where settings name a file of the user's own."""


def files_in(values: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The tables of settings that name a file by its path; a path alone becomes one."""
    found = {}
    for section, key in PLACES:
        table = values.get(section)
        if isinstance(table, dict) and table.get(key):
            if isinstance(table[key], str):
                table[key] = {"path": table[key]}
            if isinstance(table[key], dict) and isinstance(table[key].get("path"), str):
                found[section, key] = table[key]
    return found


def name_own(values: Mapping[str, Any]) -> None:
    """Where data.name or network.architecture refers to a file, let `file` name it too."""
    for section, key in (("data", "name"), ("network", "architecture")):
        table = values.get(section)
        path = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(path, str) and (is_code(path) or path.endswith(".npz")):
            named = table.get("file") if isinstance(table.get("file"), str) else {"path": path}  # set beside the name
            table |= {"file": named, key: name_of(path)}


def at_home(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Settings of a file in `folder`, with the paths of other files, seen from there or beside it."""
    name_own(values)
    for table in files_in(values).values():
        path = table["path"]
        beside = folder.parent / Path(path).name  # of runs that were copied together
        places = (str(folder / path), path, str(beside))
        table["path"] = next((place for place in places if file_of(place) is not None), path)
    return values


def seen_from(reference: str, folder: Path) -> str:
    """The reference as seen from a folder; that of an imported module stays."""
    if (path := file_of(reference)) is None:
        return reference
    return os.path.relpath(path.resolve(), folder.resolve()) + reference.removeprefix(str(path))


def starting_point(path: Path) -> dict[str, str]:
    """A recipe's entry for the network to start from: its path and its hash."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise GradDivError(f"the path {str(path)!r} is no UTF-8, expected one that a recipe can hold") from None
    return {"path": str(path), "sha256": state_hash(network_of(path))}


def state_hash(state: Mapping[str, Tensor]) -> str:
    """sha256 over the names, shapes and values of parameters and buffers."""
    of_each = [(repr((name, tuple(t.shape), str(t.dtype))), t) for name, t in sorted(state.items())]
    return store.digest(*(part for described in of_each for part in described))


def load_state(F: RandomizedNetwork, state: Mapping[str, Tensor], path: Path) -> None:
    """Give F these parameters and buffers, which `path` holds."""
    wanted = F.state_dict()
    for name in [*wanted, *state]:
        check_tensor(name, state.get(name), wanted.get(name), path)
    F.load_state_dict(state)


def check_tensor(name: str, found: Tensor | None, wanted: Tensor | None, path: Path) -> None:
    """Refuse a tensor of another shape or type than is wanted; archives of earlier versions are in half precision."""
    other = f"{path} belongs to another network"
    if found is None:
        raise GradDivError(f"{other}: it lacks {name}")
    if wanted is None:
        raise GradDivError(f"{other}: it has {name}, which was not expected")
    if found.shape != wanted.shape:
        raise GradDivError(f"{other}: {name} has shape {tuple(found.shape)} there, expected {tuple(wanted.shape)}")
    if found.dtype != wanted.dtype and not (found.dtype == torch.float16 and wanted.is_floating_point()):
        raise GradDivError(f"{path}: {name} is of type {found.dtype}, expected {wanted.dtype}")


# ---- the log: JSON lines, each with a checksum of the file up to its own end, so a changed or missing line is noticed

BEGIN = b'{"sha256": "'  #: How a line begins.
TEXT = len(BEGIN) + 16  #: Where the checksum that follows ends.


class Log:
    """A file of JSON lines that can be cut back to its length at the time of a checkpoint."""

    def __init__(self, path: Path, size: int = 0) -> None:
        """Open the log for writing at `size` bytes; later lines are of steps that will be repeated, and are cut off."""
        self.path = path
        if size:
            read_log(path, size)  # refuses a damaged one
        self._digest = hashlib.sha256(store.read(path)[:size] if size else b"")
        with store.writes_to(path):
            self._file = path.open("ab", buffering=0)  # a buffer would lose lines when writing fails
            self._file.truncate(size)
            self._file.seek(size)

    def __call__(self, **values: object) -> None:
        """Append one line; NaN is an error, because JSON has no NaN."""
        text = json.dumps({"sha256": "", **values}, allow_nan=False).encode()[len(BEGIN) :]
        line = _sealed(self._digest, text) + b"\n"
        self._digest.update(line)
        with store.writes_to(self.path):
            while line:  # a disk that is nearly full takes a part of the line first
                line = line[self._file.write(line) :]

    @property
    def size(self) -> int:
        """The number of bytes written so far; they are flushed to disk first."""
        with store.writes_to(self.path):
            os.fsync(self._file.fileno())
            return self._file.tell()

    def close(self) -> None:
        self._file.close()


def read_log(path: Path, size: int | None = None) -> list[dict[str, Any]]:
    """Return the lines of a log, or those in its first `size` bytes, without a last line that a crash has cut off."""
    here = path.stat().st_size if path.exists() else 0
    if size is not None and here < size:
        raise GradDivError(f"{path} has {here} bytes where the checkpoint knows of {size}: it was cut by hand")
    *lines, rest = store.read(path)[:size].split(b"\n")
    digest, found = hashlib.sha256(), []
    for number, line in enumerate(lines, 1):
        if line != _sealed(digest, line[TEXT:]):
            break
        values = store.parse_json(line.decode("utf-8", "replace"), f"{path}, line {number}")
        found.append({key: value for key, value in values.items() if key != "sha256"})
        digest.update(line + b"\n")
    # a last line that was cut off is left out; a whole one whose newline has changed is damage
    whole = rest[:-1] == _sealed(digest, rest[TEXT:-1])
    if len(found) < len(lines) or whole or (size is not None and rest):
        raise GradDivError(f"{path} is damaged: line {len(found) + 1} is not as it was written{store.WHAT_TO_DO}")
    return found


def _sealed(before: "hashlib._Hash", text: bytes) -> bytes:
    """The line of this text, which begins with the checksum of all lines before it and of itself."""
    digest = before.copy()
    digest.update(text)
    return BEGIN + digest.hexdigest()[: TEXT - len(BEGIN)].encode() + text
