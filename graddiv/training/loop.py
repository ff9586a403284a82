"""The training loop: every step is a function of (experiment, step, theta, moments), so it resumes to the bit."""

import math
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graddiv import __version__, store
from graddiv.data import augmented
from graddiv.distributed import Process, join_processes
from graddiv.errors import GradDivError
from graddiv.experiment import Experiment, parse
from graddiv.networks import RandomizedNetwork
from graddiv.performance import channels_last
from graddiv.progress import Listener
from graddiv.runs import Log, Run, TrainingPosition, files_in, load_state, network_part, seen_from
from graddiv.seeding import fold, generator
from graddiv.training.probe import concentration, noise_scales, validation_accuracy
from graddiv.training.stages import Stage, objective_of, stages_of
from graddiv.training.start import load_start, moments_of, provenance, restore_moments, starting_state, take_over

SAVE_AFTER = 120.0  #: Seconds after which `last` is saved even if the epoch is not over.


class DivergedError(GradDivError):
    """A number is no longer finite; the settings, not the machine, are the cause."""


def train(
    experiment: Experiment,
    directory: Path,
    *,
    data_root: str | Path | None = None,
    device: str | None = None,
    sync_batch_norm: bool = False,
    listeners: Sequence[Listener] = (),
) -> RandomizedNetwork:
    """Train, or resume training, in `directory`; return the trained network, in eval mode.

    Killed at any moment, the same call resumes and ends with the same bits.

    data_root: the folder of the official data files; by default the usual places are searched.
    device: such as "cpu" or "cuda:1"; by default CUDA if there is any.
    sync_batch_norm: let batch norm see the images of all processes (CUDA only), not each its own.
    listeners: callbacks (step, steps, values, epoch), such as a display.
    """
    with ExitStack() as stack:
        process = stack.enter_context(join_processes(device))
        if process.writes:
            stack.enter_context(store.locked(directory))
        training = _Training(experiment, Run(directory), data_root, process, sync_batch_norm)
        if training.log is not None:
            stack.callback(training.log.close)
        training.go_on(listeners if process.writes else ())
        training.select()
        process.wait()
        return training.F.eval()


class _Training:
    """One training, from its last checkpoint to its end."""

    def __init__(
        self, experiment: Experiment, run: Run, data_root: str | Path | None, process: Process, sync_batch_norm: bool
    ) -> None:
        self.experiment, self.run, self.process, self.settings = experiment, run, process, experiment.training
        self.data, self.validation = experiment.training_set(data_root), experiment.validation_set(data_root)
        for settings in experiment.schedule:
            _check_batch(settings.batch or experiment.training.batch, experiment, len(self.data), process)
        self.stages = stages_of(experiment, len(self.data))
        self.total = self.stages[-1].last_step
        self.F = experiment.build(self.data).to(process.device)
        if sync_batch_norm:  # over the batch of all processes; R sees running statistics: its double backward is safe
            if process.device.type != "cuda":
                raise GradDivError(
                    f"--sync-batch-norm needs CUDA, but the device is {process.device.type}: leave it out, and batch "
                    "norm uses the statistics of each process's own images"
                )
            self.F.module = nn.SyncBatchNorm.convert_sync_batchnorm(self.F.module)  # type: ignore[no-untyped-call]
        channels_last(self.F).train()
        self.progress = TrainingPosition()
        self.log: Log | None = None
        if process.writes:
            self._describe()
        self._open()

    def _describe(self) -> None:
        """Write the settings into a new directory; refuse one with other settings or data."""
        run, experiment = self.run, self.experiment
        run.begin()
        described = experiment.dump()
        for table in files_in(described).values():  # relative, so that copies of all find each other on any machine
            table["path"] = seen_from(table["path"], run.path)

        def as_here(found: dict[str, Any]) -> dict[str, Any]:
            values = parse(found, str(run.experiment_file)).dump()
            here = files_in(described)
            for place, table in files_in(values).items():  # its hash says that it is the same
                table["path"] = here.get(place, table)["path"]
            return values

        store.write_once_or_match(run.experiment_file, described, as_here)
        own = {} if experiment.data.file is None else {"classes": list(self.data.classes)}
        store.write_once_or_match(run.data_file, {"name": self.data.name, "sha256": self.data.checksum, **own})
        store.write(run.recipe_file, parse(described, "the recipe").to_toml().encode())
        store.make_directory(run.checkpoints)
        if not run.last_checkpoint.exists():
            take_over(experiment, run)

    def _open(self) -> None:
        """Start, or resume from the last checkpoint."""
        run, writes, start = self.run, self.process.writes, self.experiment.network.start
        # read by one and sent to all: the others may be on machines that do not see this directory
        resumes = writes and run.last_checkpoint.exists()
        saved = self.process.broadcast(store.read_tensors(run.last_checkpoint) if resumes else None)
        if saved is not None:
            self.progress = TrainingPosition.of(saved[1], run.last_checkpoint)
            load_state(self.F, network_part(saved[0]), run.last_checkpoint)
        elif start is not None:
            load_start(self.F, self.process.broadcast(starting_state(start) if writes else {}), self.experiment, start)
        self._enter(next((s for s in self.stages if self.progress.step < s.last_step), self.stages[-1]))
        # a stage begins with a new Adam; a finished training, whose archived copy has no moments, needs none
        if saved is not None and self.stage.first_step < self.progress.step < self.total:
            restore_moments(self.optimizer, self.F, saved[0], run.last_checkpoint)
        if writes:
            self.log = Log(run.log_file, self.progress.log_size)
            packages = {name: version(name) for name in ("torch", "numpy")}
            versions = {"graddiv": __version__, "python": platform.python_version(), **packages}
            about = {"versions": versions, "processes": self.process.size, "device": str(self.process.device)}
            if self.progress.step < self.total and saved is not None:
                self.log(event="resume", **about)
            if saved is None:
                self.log(event="start", **about, **provenance(self.experiment))
                self.log(event="epoch", epoch=0, **self._concentration(0))
                self._save(run.last_checkpoint)
        self.process.wait()

    def _enter(self, stage: Stage) -> None:
        """Begin a stage: its objective, and a new Adam."""
        self.stage = stage
        if self.progress.step == stage.first_step:
            self.progress.best = None
        self.objective = objective_of(self.F, self.experiment, len(self.data), stage)
        self.wrapped = self.process.wrap(self.objective)
        self.optimizer = torch.optim.Adam(self.F.parameters(), lr=stage.settings.lr)

    def go_on(self, listeners: Sequence[Listener]) -> None:
        """Run the steps that are left."""
        saved = begun = time.monotonic()
        images, total = 0, self.total
        for listener in listeners:
            listener(self.progress.step, total, {}, None)
        while self.progress.step < total:
            if self.progress.step == self.stage.last_step:
                self._enter(self.stages[self.stages.index(self.stage) + 1])
            epoch, within = self.stage.place(self.progress.step)
            with self._finite(epoch):
                parts = self._step(epoch, within)
            self.progress.step += 1
            for name, value in parts.items():
                self.progress.sums[name] = self.progress.sums.get(name, 0.0) + value
            images += self.stage.batch
            rate = images / (time.monotonic() - begun)
            for listener in listeners:
                listener(self.progress.step, total, {"epoch": epoch + 1.0, **parts, "images/s": rate}, None)
            if within + 1 == self.stage.steps_per_epoch:
                self._end_epoch(epoch + 1, rate, listeners)
                saved = time.monotonic()
            elif time.monotonic() - saved > SAVE_AFTER:
                self._save(self.run.last_checkpoint)
                saved = time.monotonic()

    def select(self) -> None:
        """Load the network of the best epoch, if the recipe selects it."""
        if self.settings.select == "best":
            state = self.process.broadcast(self.run.state() if self.process.writes else {})
            load_state(self.F, state, self.run.best_checkpoint)

    def batch(self, epoch: int, within: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return this process's images, labels and ids of a batch: a function of (seed, epoch, within)."""
        order, size = _order(self.experiment.seed, epoch, len(self.data)), self.stage.batch
        rows = self.process.local_rows(order[within * size : (within + 1) * size])
        (x, y), ids, device = self.data.batch(rows), self.data.ids[rows], self.process.device
        x = augmented(self.experiment.data.source, x, ids, self.experiment.seed, epoch)
        return channels_last(x.to(device)), y.to(device), ids.to(device)

    def _step(self, epoch: int, within: int) -> dict[str, float]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.stage.learning_rate(self.progress.step)
        x, y, ids = self.batch(epoch, within)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.wrapped(x, y, step=self.progress.step, ids=ids)
        parts = self.process.mean(self.objective.parts)
        for part in sorted(parts, key="loss".__eq__):  # the sum itself last
            if not math.isfinite(parts[part]):
                raise GradDivError(f"the loss is no longer finite, its part {part} is {parts[part]}")
        loss.backward()
        gradients = [p.grad for p in self.F.parameters() if p.grad is not None]
        if not torch.isfinite(norm := nn.utils.get_total_norm(gradients)):  # theta would be lost, and then saved
            raise GradDivError(f"the norm of the loss's gradient is {norm:.3g}, though the loss is finite")
        self.optimizer.step()
        if self.objective.diversity is not None:
            parts["lam"] = self.objective.diversity.parts.lam
        return parts

    @contextmanager
    def _finite(self, epoch: int) -> Iterator[None]:
        """Add to an error the step at which a number was no longer finite, and where to resume."""
        try:
            yield
        except GradDivError as error:
            raise DivergedError(
                f"training stopped at step {self.progress.step} (epoch {epoch + 1}): {error}. The last good state is "
                f"{self.run.last_checkpoint}; a smaller training.lr or graddiv.lam may help"
            ) from error

    def _end_epoch(self, epoch: int, rate: float, listeners: Sequence[Listener]) -> None:
        means = {name: total / self.stage.steps_per_epoch for name, total in self.progress.sums.items()}
        self.progress.sums = {}
        if self.log is not None:
            with self._finite(epoch - 1):
                values = {**means, **self._concentration(epoch)}
                if self.validation is not None:
                    values["validation"] = validation_accuracy(self.objective, self.validation, self.progress.step)
            scales = {"sigma": found} if (found := noise_scales(self.F)) else {}
            self.log(event="epoch", epoch=epoch, **values, **scales, images_per_second=round(rate, 1))
            for listener in listeners:
                listener(self.progress.step, self.total, values, epoch)
            accuracy, best = values.get("validation"), self.progress.best
            settled = self.progress.step >= self.stages[-1].settled
            if accuracy is not None and settled and (best is None or accuracy > best):
                self.progress.best = accuracy
                self._save(self.run.best_checkpoint)
        every = self.settings.checkpoint_every
        if every and epoch % every == 0:  # before `last`: once that says the epoch is over, nothing of it is done again
            self._save(self.run.checkpoint(epoch))
        self._save(self.run.last_checkpoint)

    def _concentration(self, epoch: int) -> dict[str, float]:
        return concentration(self.F, self.data, fold(self.experiment.seed, "probe", epoch))

    def _save(self, path: Path) -> None:
        if self.log is not None:
            self.progress.log_size = self.log.size
            network = {f"network.{name}": t for name, t in self.F.state_dict().items()}
            tensors = network | moments_of(self.optimizer, self.F)
            store.write_tensors(path, tensors, {"progress": vars(self.progress)})


@lru_cache(maxsize=1)
def _order(seed: int, epoch: int, examples: int) -> Tensor:
    """The order in which an epoch visits the examples."""
    return torch.randperm(examples, generator=generator(fold(seed, "order", epoch)))


def _check_batch(batch: int, experiment: Experiment, examples: int, process: Process) -> None:
    if examples < batch:
        raise GradDivError(f"training.batch is {batch}, but there are only {examples} training examples")
    if batch % process.size:
        raise GradDivError(f"training.batch is {batch}, which {process.size} processes cannot share evenly")
    if experiment.rules.in_pairs and process.size > 1 and (batch // process.size) % 2:
        raise GradDivError(
            f"training.batch is {batch}, of which each of {process.size} processes gets {batch // process.size}: "
            "this training takes images in pairs, so expected an even number"
        )
