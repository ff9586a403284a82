"""From a table or figure of the paper to its files: plan the stages, carry out what is missing, render.

Every stage resumes by itself, so what is on disk is not run again.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from graddiv import store
from graddiv.attacks import FGSM, PGD
from graddiv.distributed import Process
from graddiv.errors import GradDivError, unknown
from graddiv.evaluation import Cell, Target, cells, suite, target_of
from graddiv.evaluation.batches import Job, WorkListener, run, silent, writing
from graddiv.evaluation.boundary import boundary_job
from graddiv.evaluation.checklist import QUICK, Settings, checklist
from graddiv.evaluation.concentration import (
    concentration_job,
    gradients_job,
    l2_radius,
    loss_increase_job,
    rotation_job,
)
from graddiv.evaluation.robustness import attack_job
from graddiv.evaluation.transfer import transfer_job
from graddiv.experiment import TWO_CORES, Experiment, forward_work
from graddiv.geometry import L2
from graddiv.paper import EFFORTS, EPSILONS, Effort, Entry
from graddiv.recipes import radius, title
from graddiv.report import page
from graddiv.report.figures import FIGURES
from graddiv.report.output import Figure, Table, save
from graddiv.report.study import RunFiles, Study
from graddiv.report.tables import accuracy_table, attack_table, checklist_table
from graddiv.runs import Run
from graddiv.training import train
from graddiv.training.loop import Listener

HARD = {"mnist": 4 / 3, "mnist-mini": 4 / 3}
"""Some of the paper's MNIST figures go beyond the radius of training, to 0.4 from 0.3."""


@dataclass(frozen=True)
class Stage:
    """One thing to do: train a run, or measure something of it."""

    experiment: Experiment
    directory: Path
    need: str | None
    """None: train it."""

    @property
    def run(self) -> Run:
        """The run directory."""
        return Run(self.directory)

    @property
    def label(self) -> str:
        """What it does, for the plan."""
        name = f"{title(self.experiment.method)} on {self.experiment.data.name}"
        if self.experiment.regularization is not None:
            name += f" (lambda {self.experiment.regularization.lam:g})"
        return f"train {name}" if self.need is None else f"measure {self.need} of {name}"

    @property
    def radius(self) -> float:
        """The epsilon at which the methods are compared."""
        return radius(self.experiment)

    @property
    def hard_radius(self) -> float:
        """An epsilon beyond that, to six digits, as file names have them."""
        return float(f"{self.radius * HARD.get(self.experiment.data.name, 1.0):.6g}")


def plan(
    entries: Sequence[Entry], scale: str, runs: Path, *, data: str | None = None, overrides: Sequence[str] = ()
) -> list[Stage]:
    """Every stage that these entries need, each once, run by run."""
    if scale not in EFFORTS:
        raise unknown("scale", scale, EFFORTS)
    needed: dict[str, tuple[Experiment, dict[str | None, None]]] = {}
    for entry in entries:
        for experiment in entry.experiments(scale, data, overrides):
            _, needs = needed.setdefault(experiment.run_name, (experiment, {}))
            needs.update(dict.fromkeys((None, *entry.needs)))
    return [Stage(experiment, runs / name, need) for name, (experiment, needs) in needed.items() for need in needs]


@dataclass(frozen=True)
class StageRunner:
    """Where stages are carried out: the effort, the data and the device they share."""

    effort: Effort
    process: Process
    data_root: str | None = None
    seed: int = 0
    checklist: Settings | None = None
    """What is spent on the checklist; if not given, as much as on the suite of attacks."""

    def seconds(self, stage: Stage) -> float:
        """What is left to do of a stage, about, on two CPU cores."""
        experiment = stage.experiment
        if stage.need is None:
            return experiment.work / TWO_CORES * (1 - progress_of(stage))
        if stage.need == "checklist":
            passes = 0.0 if self._checked(stage) else _checklist_passes(self.settings, self.effort.examples or 10_000)
        else:
            jobs = self.jobs(stage)
            passes = sum(len(job.missing()) * job.work * min(job.batch, job.examples) for job in jobs)
        return passes * forward_work(experiment.network) / TWO_CORES

    def carry_out(self, stage: Stage, *, listeners: Sequence[Listener] = (), progress: WorkListener = silent) -> None:
        """Train, or make the records that are missing."""
        if stage.need is None:
            device = str(self.process.device)
            train(stage.experiment, stage.directory, data_root=self.data_root, device=device, listeners=listeners)
        elif stage.need == "checklist":
            directory = stage.run.records
            with writing(directory, self.process):
                checklist(
                    self.target(stage),
                    stage.radius,
                    directory,
                    settings=self.settings,
                    process=self.process,
                    progress=progress,
                )
        else:
            with writing(stage.run.records, self.process):
                run(self.jobs(stage), process=self.process, progress=progress)

    @property
    def settings(self) -> Settings:
        """What is spent on the checklist."""
        return self.checklist or CHECKLISTS[self.effort.suite]

    def _checked(self, stage: Stage) -> bool:
        """Whether the checklist was gone through, with these very settings."""
        path = stage.run.checklist_file
        found = store.read_json(path) if path.exists() else {}
        return (found.get("epsilon"), found.get("settings")) == (
            stage.radius,
            json.loads(json.dumps(asdict(self.settings))),
        )

    def target(self, stage: Stage) -> Target:
        """The network of the run (untrained if that is still to come: enough for an estimate) and its test examples."""
        experiment = stage.experiment
        if progress_of(stage) == 1:
            F = stage.run.network(self.data_root)
        else:
            F = experiment.build(experiment.training_set(self.data_root))
        return target_of(
            experiment,
            F,
            examples=self.effort.examples,
            batch=self.effort.batch,
            seed=self.seed,
            data_root=self.data_root,
            device=self.process.device,
        )

    def jobs(self, stage: Stage) -> list[Job]:
        """The records that a measurement is made of."""
        target, effort, directory = self.target(stage), self.effort, stage.run.records
        radius, hard = stage.radius, stage.hard_radius
        match stage.need:
            case "suite" | "curve" | "pgd" | "sweep-n" | "sweep-m":
                return [attack_job(target, cell, directory) for cell in self.cells(stage, target.random)]
            case "concentration":
                return [concentration_job(target, directory, n=effort.gradients)]
            case "gradients":
                return [gradients_job(target, directory, n=effort.gradients)]
            case "increase":
                return [
                    loss_increase_job(
                        target, directory, epsilon=hard, n=max(effort.curve_n), m=effort.m, gradients=effort.gradients
                    )
                ]
            case "rotation":
                pixels = target.examples(slice(0, 1))[0].numel()
                return [
                    rotation_job(target, directory, epsilon=radius, m=effort.m),
                    rotation_job(target, directory, epsilon=l2_radius(radius, pixels), geometry=L2(), m=effort.m),
                ]
            case "transfer":
                return [transfer_job(target, directory, k=effort.models, epsilon=hard, m=effort.m)]
            case "boundary":
                return [boundary_job(target, directory, epsilon=radius, grid=effort.grid)]
            case unexpected:
                raise AssertionError(f"no measurement is called {unexpected!r}")

    def cells(self, stage: Stage, random: bool) -> list[Cell]:
        """The attacks of a measurement."""
        effort, radius = self.effort, stage.radius
        pgd = PGD(m=effort.m)
        found: list[Cell] = []
        match stage.need:
            case "suite":
                found = cells(
                    suite(effort.suite, m=effort.suite_m), [radius], n=effort.n, repeats=effort.repeats, random=random
                )
            case "curve":
                for epsilon in EPSILONS[stage.experiment.data.name][: effort.radii]:
                    for n in effort.curve_n:
                        found += cells([FGSM(), pgd], [epsilon], modes=["eot"], n=n, random=random)
            case "pgd":
                found = cells([pgd], [radius], modes=["eot"], n=effort.n, random=random)
            case "sweep-n":
                for n in effort.sweep_n:
                    found += cells([pgd], [stage.hard_radius], modes=["eot"], n=n, random=random)
            case "sweep-m":
                for m in effort.sweep_m:
                    found += cells([replace(pgd, m=m)], [radius], modes=["eot"], n=effort.n, random=random)
        return list({cell.file_name: cell for cell in found}.values())


CHECKLISTS = {
    "paper": Settings(samples=100_000),
    "quick": Settings(),
    "demo": replace(QUICK, n=10, m=20, queries=30, radii=(0.5, 1.0, 1.5), samples=100, restarts=(1, 2)),
}
"""What is spent on the checklist with each suite of attacks; where it can it shares the suite's records."""

RENDERERS: dict[str, Callable[[Study], Table] | Callable[[Study], Figure]] = {
    "attack-table": lambda study: attack_table(study, _suite_radius(study)),
    "accuracy-table": accuracy_table,
    "checklist": checklist_table,
    **FIGURES,
}
"""What an entry names -> the function that makes it of a study."""


def _title(experiment: Experiment, with_lambda: bool) -> str:
    """The method's name; where several lambda are compared, with its own."""
    name = title(experiment.method)
    return f"{name}, λ = {experiment.regularization.lam:g}" if with_lambda and experiment.regularization else name


def _suite_radius(study: Study) -> float:
    """The radius at which most attacks were run: that of the table."""
    radii = Counter(r.epsilon for run in study.runs for r in run.attacks() if r.label != "clean")
    return float(radii.most_common(1)[0][0]) if radii else 0.0


def _checklist_passes(settings: Settings, examples: int) -> float:
    """Forward-equivalents for all examples, about."""
    pgd = 2 * settings.n * settings.m
    sweeps = sum(settings.n_values) * settings.m + settings.n * sum(settings.m_values)
    restarts = settings.n * settings.m * sum(settings.restarts)
    steps = 2 * (sweeps + restarts) + pgd * (len(settings.radii) + 3) + 1.5 * settings.n * settings.queries
    return examples * steps + min(settings.images, examples) * settings.samples


def progress_of(stage: Stage) -> float:
    """Which share of its epochs a run has behind it."""
    return stage.run.epochs_done / stage.experiment.epochs


def claim(directory: Path, what: dict[str, object], force: bool) -> None:
    """Make the directory this target's; a report of another one is not overwritten unless forced."""
    store.make_directory(directory)
    mark = directory / "reproduce.json"
    if force:
        mark.unlink(missing_ok=True)
    elif not mark.exists() and any(directory.iterdir()):
        raise GradDivError(f"{directory} is not empty and holds no report of ours: choose another --out, or --force")
    store.write_once_or_match(mark, what)


def render(
    entries: Sequence[Entry],
    scale: str,
    runs: Path,
    directory: Path,
    *,
    data: str | None = None,
    overrides: Sequence[str] = (),
) -> tuple[Path, list[Table]]:
    """Draw what the entries name from the records on disk, and the page that holds it all."""
    drawn: dict[str, Table | Figure] = {}
    everything: dict[str, RunFiles] = {}
    for entry in entries:
        experiments = entry.experiments(scale, data, overrides)
        compared = {e.run_name: RunFiles(runs / e.run_name, _title(e, bool(entry.lambdas))) for e in experiments}
        study = Study(tuple(compared.values()), scale)
        everything |= compared
        for name in entry.renders:
            made = RENDERERS[name](study)
            file = entry.name if len(entry.renders) == 1 else made.name
            drawn[file] = replace(made, name=file)
    for what in drawn.values():
        save(what, directory)
    tables = [what for what in drawn.values() if isinstance(what, Table)]
    drawings = [what for what in drawn.values() if isinstance(what, Figure)]
    return page.write(Study(tuple(everything.values()), scale), directory, tables, drawings), tables
