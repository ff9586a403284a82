"""Carries a plan out: trains the runs and makes the records that are missing, then draws the report.

Every stage resumes by itself, so what is on disk is not run again.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from graddiv import store
from graddiv.distributed import Process
from graddiv.errors import GradDivError
from graddiv.evaluation import Target, target_of
from graddiv.evaluation.batches import Job, WorkListener, run, silent, writing
from graddiv.evaluation.checklist import QUICK, Settings, checklist
from graddiv.evaluation.measurements import MEASUREMENTS
from graddiv.evaluation.robustness import attack_job
from graddiv.experiment import forward_work
from graddiv.experiment.probe import multiplications_per_second, training_seconds
from graddiv.paper.costs import epochs_taken_over
from graddiv.paper.planning import ATTACKED, CHECKLIST_NEED, Request, RunPlan, plan_runs
from graddiv.paper.shipped import shipped
from graddiv.recipes import title
from graddiv.report.archive import copy_run
from graddiv.runs import Run
from graddiv.training import train
from graddiv.training.loop import Listener
from graddiv.training.start import first_stages_beside


@dataclass(frozen=True)
class Stage:
    """One thing to do: train a run, or measure something of it."""

    plan: RunPlan
    directory: Path
    need: str | None
    """None: train it."""
    taken_over: int = 0
    """Epochs that training copies from a run that is planned before it."""

    @property
    def label(self) -> str:
        """What it does, for the list of stages."""
        experiment = self.plan.experiment
        name = f"{title(experiment.method)} on {experiment.data.name}"
        if experiment.regularization is not None:
            name += f" (lambda {experiment.lam:g})"
        if experiment.seed:
            name += f", seed {experiment.seed}"
        if self.plan.as_in is not None:
            name += f", as in {self.plan.as_in}"
        if self.need is None:
            return f"copy {name}, which comes with the package" if self.plan.shipped else f"train {name}"
        return f"measure {self.need} of {name}"

    @property
    def run(self) -> Run:
        """The run directory."""
        return Run(self.directory)


def stages_of(request: Request, runs: Path) -> list[Stage]:
    """Every stage that the request needs, each once, run by run."""
    stages, before = list[Stage](), set[str]()
    for name, (plan, needs) in plan_runs(request).items():
        taken_over = epochs_taken_over(plan.experiment, before)
        stages += [Stage(plan, runs / name, need, taken_over) for need in (None, *needs)]
        before |= set() if plan.shipped else {plan.experiment.digest}
    return stages


@dataclass(frozen=True)
class StageRunner:
    """Carries stages out, in this process or with others, on one device."""

    process: Process
    data_root: str | None = None
    seed: int = 0
    checklist: Settings | None = None
    """What is spent on the checklist; if not given, as much as on the suite of attacks."""

    def seconds(self, stage: Stage) -> float:
        """What is left to do of a stage, about, on this machine; its network is tried for two seconds."""
        experiment = stage.plan.experiment
        if stage.need is None:
            if stage.plan.shipped:
                return 0.0
            done = stage.run.epochs_done or stage.taken_over
            if not done and (beside := first_stages_beside(experiment, stage.run)) is not None:
                done = beside.epochs_done
            return training_seconds(experiment, str(self.process.device), done) / self.process.size
        if stage.need == CHECKLIST_NEED:
            examples = stage.plan.effort.examples or 10_000
            passes = 0.0 if self._checked(stage) else _checklist_passes(self._checklist(stage), examples)
        else:
            passes = sum(len(job.missing()) * job.work * min(job.batch, job.examples) for job in self.jobs(stage))
        return passes and passes * forward_work(experiment.network) / self._speed(stage)

    def _speed(self, stage: Stage) -> float:
        """Multiplications per second of the stage's network, by all processes together."""
        return multiplications_per_second(stage.plan.experiment, str(self.process.device)) * self.process.size

    def carry_out(self, stage: Stage, *, listeners: Sequence[Listener] = (), progress: WorkListener = silent) -> None:
        """Train, or make the records that are missing."""
        if stage.need is None and stage.plan.shipped:
            if self.process.writes and not stage.run.finished:
                copy_run(shipped(stage.plan.experiment.method), stage.run)
            self.process.wait()
            return
        if stage.need is None:
            device = str(self.process.device)
            train(stage.plan.experiment, stage.directory, data_root=self.data_root, device=device, listeners=listeners)
            return
        with writing(stage.run.records, self.process):
            if stage.need == CHECKLIST_NEED:
                checklist(
                    self.target(stage),
                    stage.plan.radius,
                    stage.run.records,
                    settings=self._checklist(stage),
                    process=self.process,
                    progress=progress,
                )
            else:
                run(self.jobs(stage), process=self.process, progress=progress)

    def jobs(self, stage: Stage) -> Sequence[Job[Any]]:
        """The records that a measurement is made of."""
        assert stage.need is not None
        target = self.target(stage)
        if stage.need in ATTACKED:
            return [attack_job(target, cell, stage.run.records) for cell in stage.plan.cells(stage.need)]
        return MEASUREMENTS[stage.need].jobs(target, stage.run.records, stage.plan.measurement_settings(stage.need))

    def target(self, stage: Stage) -> Target:
        """The network of the run (untrained if that is still to come: enough for an estimate) and its test examples."""
        experiment, effort = stage.plan.experiment, stage.plan.effort
        trained = stage.run.epochs_done == experiment.epochs
        F = stage.run.network(self.data_root) if trained else experiment.build(root=self.data_root)
        return target_of(
            experiment,
            F,
            data=stage.plan.judged_on,
            examples=effort.examples,
            batch=effort.batch,
            seed=self.seed,
            data_root=self.data_root,
            device=self.process.device,
        )

    def _checklist(self, stage: Stage) -> Settings:
        """What is spent on the checklist."""
        return self.checklist or CHECKLISTS[stage.plan.effort.suite]

    def _checked(self, stage: Stage) -> bool:
        """Whether the checklist was gone through, with these very settings."""
        path = stage.run.checklist_file
        found = store.read_json(path) if path.exists() else {}
        wanted = (stage.plan.radius, json.loads(json.dumps(asdict(self._checklist(stage)))))
        return (found.get("epsilon"), found.get("settings")) == wanted


CHECKLISTS = {
    "paper": Settings(samples=100_000),
    "quick": Settings(),
    "demo": replace(QUICK, n=10, m=20, queries=30, radii=(0.5, 1.0, 1.5), samples=100, restarts=(1, 2)),
}
"""What is spent on the checklist with each suite of attacks; where it can it shares the suite's records."""


def _checklist_passes(settings: Settings, examples: int) -> float:
    """Forward-equivalents for all examples, about."""
    pgd = 2 * settings.n * settings.m
    sweeps = sum(settings.n_values) * settings.m + settings.n * sum(settings.m_values)
    restarts = settings.n * settings.m * sum(settings.restarts)
    steps = 2 * (sweeps + restarts) + pgd * (len(settings.radii) + 3) + 1.5 * settings.n * settings.queries
    return examples * steps + min(settings.images, examples) * settings.samples


def claim(directory: Path, what: dict[str, object], force: bool) -> None:
    """Make the directory this target's; a report of another one is not overwritten unless forced."""
    store.make_directory(directory)
    mark = directory / "reproduce.json"
    if force:
        mark.unlink(missing_ok=True)
    elif not mark.exists() and any(directory.iterdir()):
        raise GradDivError(f"{directory} is not empty and holds no report of ours: choose another --out, or --force")
    store.write_once_or_match(mark, what)
