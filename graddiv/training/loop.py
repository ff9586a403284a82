"""The training loop: every step is a function of (experiment, step, theta, moments), so it resumes to the bit."""

import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from graddiv import __version__, store
from graddiv.data import Dataset, augmented
from graddiv.distributed import Process, join_processes
from graddiv.errors import GradDivError
from graddiv.experiment import Experiment, parse
from graddiv.networks import RandomizedNetwork
from graddiv.performance import channels_last
from graddiv.runs import Run, TrainingPosition, load_state, network_part
from graddiv.seeding import fold, generator
from graddiv.training.moments import moments_of, restore_moments
from graddiv.training.objectives import first_nonfinite, objective_of
from graddiv.training.probe import concentration, validation_accuracy
from graddiv.training.stages import Stage, stages_of
from graddiv.training.start import load_start, provenance, starting_state, take_over, warn_of_changes

SAVE_AFTER = 120.0
"""Seconds after which `last` is saved even if the epoch is not over."""


@runtime_checkable
class Listener(Protocol):
    """Is told how far training is: a display, or a writer for TensorBoard."""

    def begin(self, done: int, total: int) -> None:
        """So many steps of all were done before."""

    def step(self, done: int, total: int, values: dict[str, float]) -> None:
        """So many steps of all are done."""

    def epoch(self, epoch: int, values: dict[str, float]) -> None:
        """An epoch is over."""


class DivergedError(GradDivError):
    """A number is no longer finite: the settings, not the machine, are at fault."""


def train(
    experiment: Experiment,
    directory: Path,
    *,
    data_root: str | None = None,
    device: str | None = None,
    sync_batch_norm: bool = False,
    listeners: Sequence[Listener] = (),
) -> RandomizedNetwork:
    """Train, or go on training, in `directory`; return the trained network, in eval mode.

    The directory, a `Run`, holds the recipe, the log, the last checkpoint and, if the recipe says so, that of every
    k-th epoch.  Killed at any moment, the same call goes on and ends with the same bits.

    data_root: the folder of the official data files, by default looked for.
    device: such as "cpu" or "cuda:1"; CUDA if there is any.
    sync_batch_norm: let batch norm see the images of all processes (CUDA only), not each its own.
    listeners: told of every step and epoch, such as a display.
    """
    with ExitStack() as stack:
        process = stack.enter_context(join_processes(device))
        if process.writes:
            stack.enter_context(Run(directory).lock())
        data = experiment.training_set(data_root)
        validation = experiment.validation_set(data_root)
        training = _Training(experiment, Run(directory), data, validation, process, sync_batch_norm)
        stack.callback(training.close)
        training.go_on(listeners if process.writes else ())
        training.select()
        process.wait()
        return training.F.eval()


class _Training:
    """One training, from its last checkpoint to its end."""

    def __init__(
        self,
        experiment: Experiment,
        run: Run,
        data: Dataset,
        validation: Dataset | None,
        process: Process,
        sync_batch_norm: bool,
    ) -> None:
        self.experiment, self.run, self.data, self.process = experiment, run, data, process
        self.validation = validation
        self.settings = experiment.training
        _check_batch(experiment, len(data), process)
        self.stages = stages_of(experiment, len(data))
        self.steps, self.total = self.stages[0].steps_per_epoch, self.stages[-1].last_step
        self.F = experiment.build(data).to(process.device)
        if sync_batch_norm:
            self.F.module = _synchronised(self.F.module, process)
        channels_last(self.F)
        self.F.train()
        self.progress = TrainingPosition()
        self.log: store.Log | None = None
        self._open()

    def _open(self) -> None:
        """Begin in an empty directory, or take up the last checkpoint of this same experiment."""
        run = self.run
        if self.process.writes:
            run.begin()
            store.write_once_or_match(
                run.experiment_file,
                self.experiment.dump(),
                lambda found: parse(found, str(run.experiment_file)).dump(),
            )
            store.write_once_or_match(run.data_file, {"name": self.data.name, "sha256": self.data.checksum})
            store.write(run.recipe_file, self.experiment.to_toml().encode())
            store.make_directory(run.checkpoints)
            if not run.last_checkpoint.exists():
                take_over(self.experiment, run)
        # read by one and sent to all: the others may be on machines that do not see this directory
        goes_on = self.process.writes and run.last_checkpoint.exists()
        saved = self.process.broadcast(store.read_tensors(run.last_checkpoint) if goes_on else None)
        if saved is not None:
            self.progress = TrainingPosition.of(saved[1], run.last_checkpoint)
            load_state(self.F, network_part(saved[0]), run.last_checkpoint)
        elif (start := self.experiment.network.start) is not None:
            state = self.process.broadcast(starting_state(start) if self.process.writes else {})
            load_start(self.F, state, self.experiment, start)
            if self.process.writes:
                warn_of_changes(self.experiment, start)
        self._enter(next((s for s in self.stages if self.progress.step < s.last_step), self.stages[-1]))
        # a stage begins with Adam anew; a finished training, of which archives keep the network alone, needs no moments
        if saved is not None and self.stage.first_step < self.progress.step < self.total:
            restore_moments(self.optimizer, self.F, *saved, run.last_checkpoint)
        if self.process.writes:
            self.log = store.Log(run.log_file, self.progress.log_size)
            about = {"versions": _versions(), "processes": self.process.size, "device": str(self.process.device)}
            if self.progress.step < self.total and saved is not None:
                self.log(event="resume", **about)
            if saved is None:
                self.log(event="start", **about, **provenance(self.experiment.network.start))
                self.log(event="epoch", epoch=0, **self._concentration(0))
                self._save(self.run.last_checkpoint)
        self.process.wait()

    def _enter(self, stage: Stage) -> None:
        """Begin a stage: its regularizer, and Adam without memory of the stage before."""
        self.stage = stage
        if self.progress.step == stage.first_step:
            self.progress.best = None
        self.objective = objective_of(self.F, self.experiment, len(self.data), stage)
        self.wrapped = self.process.wrap(self.objective)
        self.optimizer = torch.optim.Adam(self.F.parameters(), lr=stage.settings.lr)

    def go_on(self, listeners: Sequence[Listener]) -> None:
        """Take the steps that are left."""
        saved = begun = time.monotonic()
        begun_at, total = self.progress.step, self.total
        for listener in listeners:
            listener.begin(begun_at, total)
        while self.progress.step < total:
            if self.progress.step == self.stage.last_step:
                self._enter(self.stages[self.stages.index(self.stage) + 1])
            epoch, within = divmod(self.progress.step, self.steps)
            with self._finite(epoch):
                parts = self._step(epoch, within)
            self.progress.step += 1
            for name, value in parts.items():
                self.progress.sums[name] = self.progress.sums.get(name, 0.0) + value
            rate = (self.progress.step - begun_at) * self.settings.batch / (time.monotonic() - begun)
            for listener in listeners:
                listener.step(self.progress.step, total, {"epoch": epoch + 1.0, **parts, "images/s": rate})
            if within + 1 == self.steps:
                self._end_epoch(epoch + 1, rate, listeners)
                saved = time.monotonic()
            elif time.monotonic() - saved > SAVE_AFTER:
                self._save(self.run.last_checkpoint)
                saved = time.monotonic()

    def select(self) -> None:
        """Take the network of the best epoch, where the recipe says so."""
        if self.settings.select == "best":
            state = self.process.broadcast(self.run.state() if self.process.writes else {})
            load_state(self.F, state, self.run.best_checkpoint)

    def close(self) -> None:
        """Close the log."""
        if self.log is not None:
            self.log.close()

    def batch(self, epoch: int, within: int) -> tuple[Tensor, Tensor, Tensor]:
        """The share of this process in the images, labels and ids of a batch: a function of (seed, epoch, within)."""
        order, size = _order(self.experiment.seed, epoch, len(self.data)), self.settings.batch
        rows = self.process.local_rows(order[within * size : (within + 1) * size])
        x, y = self.data.batch(rows)
        ids = self.data.ids[rows]
        x = augmented(self.data.name, x, ids, self.experiment.seed, epoch)
        return channels_last(x.to(self.process.device)), y.to(self.process.device), ids.to(self.process.device)

    def _step(self, epoch: int, within: int) -> dict[str, float]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.stage.learning_rate(self.progress.step)
        x, y, ids = self.batch(epoch, within)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.wrapped(x, y, step=self.progress.step, ids=ids)
        parts = self.process.mean(self.objective.parts)
        if (part := first_nonfinite(parts)) is not None:
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
        """Say at which step a number ceased to be finite, and from where to go on."""
        try:
            yield
        except GradDivError as error:
            raise DivergedError(
                f"training stopped at step {self.progress.step} (epoch {epoch + 1}): {error}. The last good state is "
                f"{self.run.last_checkpoint}; a smaller training.lr or graddiv.lam may help"
            ) from error

    def _end_epoch(self, epoch: int, rate: float, listeners: Sequence[Listener]) -> None:
        means = {name: total / self.steps for name, total in self.progress.sums.items()}
        self.progress.sums = {}
        if self.log is not None:
            with self._finite(epoch - 1):
                values = {**means, **self._concentration(epoch)}
                if self.validation is not None:
                    values["validation"] = validation_accuracy(self.objective, self.validation, self.progress.step)
            self.log(event="epoch", epoch=epoch, **values, images_per_second=round(rate, 1))
            for listener in listeners:
                listener.epoch(epoch, values)
            if self.validation is not None and self.progress.step >= self.stages[-1].settled:
                self._keep_if_best(values["validation"])
        every = self.settings.checkpoint_every
        if every and epoch % every == 0:  # before `last`: once that says the epoch is over, nothing of it is done again
            self._save(self.run.checkpoint(epoch))
        self._save(self.run.last_checkpoint)

    def _concentration(self, epoch: int) -> dict[str, float]:
        return concentration(self.F, self.data, fold(self.experiment.seed, "probe", epoch))

    def _keep_if_best(self, accuracy: float) -> None:
        if self.progress.best is None or accuracy > self.progress.best:
            self.progress.best = accuracy
            self._save(self.run.best_checkpoint)

    def _save(self, path: Path) -> None:
        if self.log is None:
            return
        self.progress.log_size = self.log.size
        moments = moments_of(self.optimizer, self.F)
        network = {f"network.{name}": t for name, t in self.F.state_dict().items()}
        store.write_tensors(path, network | moments, {"progress": vars(self.progress), "moments": sorted(moments)})


@lru_cache(maxsize=1)
def _order(seed: int, epoch: int, examples: int) -> Tensor:
    """The order in which an epoch visits the examples."""
    return torch.randperm(examples, generator=generator(fold(seed, "order", epoch)))


def _check_batch(experiment: Experiment, examples: int, process: Process) -> None:
    batch = experiment.training.batch
    if examples < batch:
        raise GradDivError(f"training.batch is {batch}, but there are only {examples} training examples")
    if batch % process.size:
        raise GradDivError(f"training.batch is {batch}, which {process.size} processes cannot share evenly")
    if experiment.defense.in_pairs and process.size > 1 and (batch // process.size) % 2:
        raise GradDivError(
            f"training.batch is {batch}, of which each of {process.size} processes gets {batch // process.size}: "
            "this training takes images in pairs, so expected an even number"
        )


def _synchronised(module: nn.Module, process: Process) -> nn.Module:
    """Batch norm over the whole batch of all processes; R sees running statistics, so its double backward is safe."""
    if process.device.type != "cuda":
        raise GradDivError(
            f"--sync-batch-norm needs CUDA, but the device is {process.device.type}: leave it out, and batch norm uses "
            "the statistics of each process's own images"
        )
    synchronised: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    return synchronised


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("torch", "numpy")}
    return {"graddiv": __version__, "python": platform.python_version(), **packages}
