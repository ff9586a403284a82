"""A run directory: what lies where in it, read without torch; the trained network on request."""

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graddiv import store
from graddiv.errors import GradDivError
from graddiv.experiment import Experiment, parse
from graddiv.records.record import CHECKLIST as CHECKLIST

if TYPE_CHECKING:
    from torch import Tensor

    from graddiv.networks import RandomizedNetwork

FORMAT = 1
"""Of run directories; a later version that changes them counts on."""


@dataclass
class TrainingPosition:
    """Where training is; with theta and the moments, all there is to know."""

    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    """Of the terms of the loss, since the epoch began."""
    log_size: int = 0
    best: float | None = None
    """The highest accuracy on validation data so far, where the best epoch is chosen by it."""

    @classmethod
    def of(cls, description: Mapping[str, Any], path: Path) -> "TrainingPosition":
        """What the checkpoint at `path` says of itself."""
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


@dataclass(frozen=True)
class Run:
    """One run directory: the only place that knows the names of its files."""

    path: Path

    @property
    def version_file(self) -> Path:
        """The format of the directory."""
        return self.path / "version.json"

    @property
    def experiment_file(self) -> Path:
        """All settings: a training that goes on must have the same."""
        return self.path / "experiment.json"

    @property
    def data_file(self) -> Path:
        """The name and the checksum of the training set."""
        return self.path / "data.json"

    @property
    def recipe_file(self) -> Path:
        """The settings as a recipe that `graddiv train` takes."""
        return self.path / "recipe.toml"

    @property
    def log_file(self) -> Path:
        """A line for each start and each epoch of training."""
        return self.path / "metrics.jsonl"

    @property
    def description_files(self) -> tuple[Path, ...]:
        """What tells how the network was trained: all files but checkpoints and records."""
        return self.version_file, self.experiment_file, self.data_file, self.recipe_file, self.log_file

    @property
    def checkpoints(self) -> Path:
        """The directory of checkpoints."""
        return self.path / "checkpoints"

    @property
    def last_checkpoint(self) -> Path:
        """The checkpoint from which training goes on."""
        return self.checkpoints / "last.safetensors"

    @property
    def best_checkpoint(self) -> Path:
        """The checkpoint of the epoch that did best on validation data, where the recipe selects it."""
        return self.checkpoints / "best.safetensors"

    @property
    def trained_checkpoint(self) -> Path:
        """The checkpoint that holds the trained network once training has come to its end."""
        return self.best_checkpoint if self.experiment.training.select == "best" else self.last_checkpoint

    def checkpoint(self, epoch: int) -> Path:
        """The checkpoint that was kept of this epoch."""
        return self.checkpoints / f"epoch-{epoch:04d}.safetensors"

    @property
    def records(self) -> Path:
        """The directory of what evaluations found."""
        return self.path / "records"

    @property
    def checklist_file(self) -> Path:
        """The verdicts of the checklist."""
        return self.records / CHECKLIST

    @property
    def tensorboard(self) -> Path:
        """The directory of TensorBoard's curves."""
        return self.path / "tensorboard"

    def lock(self) -> AbstractContextManager[None]:
        """Be the only process that trains here."""
        return store.locked(self.path)

    @property
    def is_locked(self) -> bool:
        """Whether a process is training here now."""
        return store.is_locked(self.path)

    def begin(self) -> None:
        """Mark a directory that is new; refuse one that a later version made."""
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
        return parse(store.read_json(self.experiment_file), str(self.experiment_file))

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the log so far."""
        return self._lines()

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """What the log says of each epoch, from epoch 0, before training."""
        return [line for line in self.log if line["event"] == "epoch"]

    @property
    def epochs_done(self) -> int:
        """How many epochs training has behind it; 0 where it has not begun."""
        return max((line["epoch"] for line in self.epochs), default=0) if self.log_file.exists() else 0

    @property
    def finished(self) -> bool:
        """Whether training has come to its end."""
        return self.experiment_file.exists() and self.epochs_done == self.experiment.epochs

    def network(self, data_root: str | None = None, epoch: int | None = None) -> "RandomizedNetwork":
        """F as trained, in eval mode: at the end of training, or after an epoch of which a checkpoint was kept.

        `data_root` is the folder of the official data files, by default looked for: some networks hold training
        examples.
        """
        path = self.trained_checkpoint if epoch is None else self.checkpoint(epoch)
        last = self._end_of_training() if epoch is None else {}
        tensors = last if path == self.last_checkpoint else store.read_tensors(path)[0]
        F = self.experiment.build(root=data_root)
        load_state(F, network_part(tensors), path)
        return F.eval()

    def _end_of_training(self) -> "dict[str, Tensor]":
        """The last checkpoint, if it is that of the last epoch's end."""
        tensors, state = store.read_tensors(self.last_checkpoint)
        lines = self._lines(TrainingPosition.of(state, self.last_checkpoint).log_size)
        done = max((line["epoch"] for line in lines if line["event"] == "epoch"), default=0)
        if done < self.experiment.epochs:
            raise GradDivError(
                f"{self.path} is not trained to its end, but to epoch {done} of {self.experiment.epochs}: "
                "run its training again"
            )
        return tensors

    def _lines(self, size: int | None = None) -> list[dict[str, Any]]:
        """The lines of the log, or those that it had when it was of this size: when a checkpoint was taken."""
        lines = store.read_log(self.log_file, size)
        for number, line in enumerate(lines, 1):
            event = line.get("event")
            values = [value for key, value in line.items() if key != "event"]
            numbers = type(line.get("epoch")) is int and all(isinstance(value, int | float) for value in values)
            if not isinstance(event, str) or (event == "epoch" and not numbers):
                raise GradDivError(f"{self.log_file}: line {number} is {line!r:.80}, expected an event, or an epoch")
        return lines

    def state(self) -> "dict[str, Tensor]":
        """The parameters and buffers of the trained network."""
        if not self.last_checkpoint.exists():
            raise GradDivError(f"{self.path} holds no trained network: expected a run directory or a safetensors file")
        return network_part(store.read_tensors(self.trained_checkpoint)[0])


def network_part(tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """The network's own tensors of a checkpoint, which also holds the optimizer's."""
    return {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}


def network_of(path: Path) -> "dict[str, Tensor]":
    """The parameters and buffers that training can start from: of a run directory, or of a safetensors file."""
    return Run(path).state() if store.is_directory(path) else store.read_state(path)


def starting_point(path: Path) -> dict[str, str]:
    """What a recipe says of the network it starts from: where it lies, and the hash that tells it from others."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise GradDivError(f"the path {str(path)!r} is no UTF-8, expected one that a recipe can hold") from None
    return {"path": str(path), "sha256": state_hash(network_of(path))}


def state_hash(state: "Mapping[str, Tensor]") -> str:
    """sha256 over the names, shapes and values of parameters and buffers."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)  # as bytes: NumPy knows no bfloat16
    return digest.hexdigest()


def load_state(F: "RandomizedNetwork", state: "Mapping[str, Tensor]", path: Path) -> None:
    """Give F these parameters and buffers, which `path` holds."""
    wanted = F.state_dict()
    for name in [*wanted, *state]:
        check_tensor(name, state.get(name), wanted.get(name), path)
    F.load_state_dict(state)


def check_tensor(name: str, found: "Tensor | None", wanted: "Tensor | None", path: Path) -> None:
    """Refuse a tensor of another shape or type than is wanted; archives keep parameters in half precision."""
    import torch

    other = f"{path} belongs to another network"
    if found is None:
        raise GradDivError(f"{other}: it lacks {name}")
    if wanted is None:
        raise GradDivError(f"{other}: it has {name}, which was not expected")
    if found.shape != wanted.shape:
        shape, expected = tuple(found.shape), tuple(wanted.shape)
        raise GradDivError(f"{other}: {name} has shape {shape} there, expected {expected}")
    if found.dtype != wanted.dtype and not (found.dtype == torch.float16 and wanted.is_floating_point()):
        raise GradDivError(f"{path}: {name} is of type {found.dtype}, expected {wanted.dtype}")
