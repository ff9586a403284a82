"""The tasks of a request: train a run, or measure something on it; work that is on disk is not repeated."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from graddiv import store
from graddiv.data import load
from graddiv.distributed import Process
from graddiv.errors import GradDivError
from graddiv.evaluation import Cell, Target, target_of
from graddiv.evaluation.behaviours import checklist, settings_of
from graddiv.evaluation.budget import Budget
from graddiv.evaluation.measurements import MEASUREMENTS
from graddiv.evaluation.robustness import attack_job
from graddiv.evaluation.run import Job, Session
from graddiv.experiment import forward_work, multiplications_per_second, training_seconds
from graddiv.networks import Dirac, RandomizedNetwork, bayesian
from graddiv.paper.entries import Need
from graddiv.paper.planning import ATTACKED, CHECKLIST_NEED, ComparedRun, Request, epochs_taken_over
from graddiv.paper.shipped import shipped
from graddiv.progress import Listener, Progress, silent
from graddiv.report.plan import copy_run
from graddiv.runs import CHECKLIST, Run
from graddiv.training import train
from graddiv.training.start import first_stages_beside


@dataclass(frozen=True)
class Task:
    """One thing to do: train a run, or measure something on it."""

    compared: ComparedRun
    run: Run
    need: Need | None  #: None: train it
    taken_over: int = 0  #: epochs that training copies from a run that is planned before it

    @property
    def label(self) -> str:
        experiment = self.compared.experiment
        name = f"{self.compared.title} on {experiment.data.name}"
        if experiment.regularization is not None:
            name += f" (lambda {experiment.lam:g})"
        if experiment.seed:
            name += f", seed {experiment.seed}"
        if self.need is None:
            return f"copy {name}, which comes with the package" if self.compared.shipped else f"train {name}"
        return f"measure {self.need} of {name}"

    @property
    def records(self) -> Path:
        assert self.need is not None
        return self.run.records / self.need.set


def tasks_of(request: Request, runs: Path) -> list[Task]:
    """Every task of the request, each once, run by run."""
    tasks, before = list[Task](), set[str]()
    for name, (compared, needs) in request.needs().items():
        taken_over = epochs_taken_over(compared.experiment, before)
        tasks += [Task(compared, Run(runs / name), need, taken_over) for need in (None, *needs)]
        before |= set() if compared.shipped else {compared.experiment.digest}
    return tasks


class TaskRunner:
    """Carries tasks out, in this process or with others, on one device; test data is loaded once."""

    def __init__(self, process: Process, data_root: Path | None = None) -> None:
        self.process, self.data_root = process, data_root
        self._load = cache(lambda data: load(data if isinstance(data, str) else data.source, "test", data_root))
        self._networks: dict[Run, RandomizedNetwork] = {}

    def seconds(self, task: Task) -> float:
        """Estimate the seconds left of a task on this machine; its architecture is timed for two seconds."""
        experiment, device = task.compared.experiment, str(self.process.device)
        if task.need is None:
            if task.compared.shipped:
                return 0.0
            done = task.run.epochs_done or task.taken_over
            if not done and (beside := first_stages_beside(experiment, task.run)) is not None:
                done = beside.epochs_done
            return training_seconds(experiment, device, done) / self.process.size
        # a small network with or without noise: the work left depends on nothing else
        F = bayesian(nn.LayerNorm(1), 0.1) if experiment.random else Dirac(nn.Identity())
        target = self._target(task, F)
        if task.need.name == CHECKLIST_NEED:
            path, budget = task.records / CHECKLIST, task.compared.checklist
            found = store.read_json(path) if path.exists() else {}
            done = (found.get("epsilon"), found.get("settings")) == (task.compared.radius, settings_of(budget))
            passes = 0.0 if done else checklist_passes(budget, len(target.data))
        else:
            left = Session(task.records).left
            passes = sum(left(job) * job.work * min(job.batch, job.examples) for job in self._jobs(task, target))
        if not passes:
            return 0.0
        speed = multiplications_per_second(experiment, device) * self.process.size
        return passes * forward_work(experiment) / speed

    def carry_out(self, task: Task, *, listeners: Sequence[Listener] = (), progress: Progress = silent) -> None:
        """Train, or make the records that are missing."""
        experiment, process = task.compared.experiment, self.process
        if task.need is None and task.compared.shipped:
            if process.writes and not task.run.finished:
                copy_run(shipped(experiment.method), task.run)
            process.wait()
        elif task.need is None:
            device = str(process.device)
            train(experiment, task.run.path, data_root=self.data_root, device=device, listeners=listeners)
        else:
            if task.run not in self._networks:  # that of the run measured last is not built again
                self._networks = {task.run: task.run.network(self.data_root)}
            target = self._target(task, self._networks[task.run])
            with Session.open(task.records, process, progress) as session:
                if task.need.name == CHECKLIST_NEED:
                    checklist(target, task.compared.radius, session, budget=task.compared.checklist)
                else:
                    session.run(self._jobs(task, target, load=True))

    def _target(self, task: Task, F: RandomizedNetwork) -> Target:
        """A network and the run's test examples."""
        assert task.need is not None
        compared = task.compared
        data = self._load(compared.judged_on or compared.experiment.data)
        examples = min(filter(None, (task.need.examples, compared.budget.examples)), default=None)
        batch, device = compared.budget.batch, self.process.device
        return target_of(compared.experiment, F, data=data, examples=examples, batch=batch, device=device)

    def _jobs(self, task: Task, target: Target, load: bool = False) -> Sequence[Job[Any]]:
        """The records that a measurement is made of; `load`: with the networks that attacks are made on."""
        assert task.need is not None
        compared, need = task.compared, task.need.name
        if need not in ATTACKED:
            return MEASUREMENTS[need].jobs(target, compared.measured_at(need), compared.budget)
        wanted = compared.cells(need)
        if load:
            wanted = [self._with_source(cell, task) if cell.source else cell for cell in wanted]
        return [attack_job(target, cell) for cell in wanted]

    def _with_source(self, cell: Cell, task: Task) -> Cell:
        """The attack with the network, trained beside the one that is judged, whose gradients it follows."""
        assert cell.source is not None
        run = Run(task.run.path.parent / task.compared.beside[cell.source.name])
        if run not in self._networks:
            self._networks[run] = run.network(self.data_root).to(self.process.device)
        return replace(cell, source=replace(cell.source, F=self._networks[run]))


def checklist_passes(budget: Budget, examples: int) -> float:
    """Forward-equivalents for all examples, about."""
    pgd = 2 * budget.n * budget.m
    sweeps = sum(budget.sweep_n) * budget.m + budget.n * sum(budget.sweep_m)
    restarts = budget.n * budget.m * sum(budget.restarts)
    steps = 2 * (sweeps + restarts) + pgd * (len(budget.radii) + 3) + 1.5 * budget.n * budget.queries
    return examples * steps + min(budget.random_images, examples) * budget.random_points


def claim(directory: Path, what: dict[str, object], force: bool) -> None:
    """Claim the directory for this target; the report of another one is not overwritten unless forced."""
    store.make_directory(directory)
    mark = directory / "reproduce.json"
    if force:
        mark.unlink(missing_ok=True)
    elif not mark.exists() and any(directory.iterdir()):
        raise GradDivError(f"{directory} is not empty and holds no report of ours: choose another --out, or --force")
    store.write_once_or_match(mark, what)
