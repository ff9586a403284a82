"""The runs that one table or figure compares, each with exactly the records that a plan names for it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from graddiv import store
from graddiv.data import SOURCES
from graddiv.errors import GradDivError
from graddiv.records import AttackRecord, MeasurementRecord, Record, Summary, accuracy, curve, over_trainings
from graddiv.report.published import PaperValues
from graddiv.runs import CHECKLIST, Run

Measurement = TypeVar("Measurement", bound=MeasurementRecord)
Model = TypeVar("Model", bound=BaseModel)


class CheckedItem(BaseModel):
    """The verdict of a checklist on one behavior."""

    name: str
    verdict: str
    sentence: str
    evidence: dict[str, Any] = {}


class _Checklist(BaseModel):
    epsilon: float
    items: tuple[CheckedItem, ...]


def validated(model: type[Model], path: Path) -> Model:
    """A JSON file as this model."""
    try:
        return model.model_validate(store.read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        raise GradDivError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@dataclass(frozen=True)
class ReportRun(Run):
    """A trained run with its records for a report; the directory and the title identify it."""

    title: str  #: the method's name in tables
    attacks: tuple[AttackRecord, ...] = field(default=(), compare=False)  #: records of attacks, and of clean images
    measurements: tuple[MeasurementRecord, ...] = field(default=(), compare=False)
    checklist: tuple[CheckedItem, ...] = field(default=(), compare=False)  #: its items, if the plan names it
    checklist_epsilon: float = field(default=0.0, compare=False)  #: the radius that its items are of

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the training log, read once."""
        return super().log

    @property
    def method(self) -> str:
        return self.experiment.method

    @property
    def base(self) -> str:
        """Its method without GradDiv."""
        return self.method.partition("+")[0]

    @property
    def data(self) -> str:
        return self.experiment.data.name

    @property
    def random(self) -> bool:
        return self.experiment.random

    @property
    def lam(self) -> float:
        return self.experiment.lam

    @property
    def epsilon(self) -> float | None:
        """The bound of the inner adversary in training."""
        return self.experiment.adversary.epsilon if self.experiment.adversary is not None else None

    def measured(self, kind: type[Measurement], **wanted: Any) -> Measurement | None:
        """The one measurement of this kind with these settings, if there is one."""
        found = [r for r in self.measurements if isinstance(r, kind)]
        found = [r for r in found if all(r.value(key) == value for key, value in wanted.items())]
        if len(found) > 1:
            raise GradDivError(f"{self.path} has {len(found)} records of {kind.kind} here, expected at most one")
        return found[0] if found else None

    @property
    def clean(self) -> Summary | None:
        """The accuracy without an attack, if it was measured."""
        found = [r for r in self.attacks if r.is_clean]
        return accuracy(found) if found else None


def titles(runs: Sequence[ReportRun]) -> dict[ReportRun, str]:
    """Names of runs: with lambda where runs of one title differ in it, with the seed where they do not."""
    names = {}
    for run in runs:
        alike = [other.lam for other in runs if other.title == run.title]
        lam = f", λ = {run.lam:g}" if len(set(alike)) > 1 else ""
        seed = f", seed {run.experiment.seed}" if alike.count(run.lam) > 1 else ""
        names[run] = f"{run.title}{lam}{seed}"
    return names


@dataclass(frozen=True, eq=False)
class Comparison:
    """The runs that one table, figure or page compares, in its order of methods."""

    runs: tuple[ReportRun, ...]
    scale: str  #: of our numbers, shown beside each of them
    papers: bool = True  #: whether the paper's values stand beside ours

    def published(self, run: ReportRun) -> PaperValues:
        """The paper's values at the radii that correspond to those of a run."""
        return PaperValues(run.data if self.papers else "", run.epsilon or 0.0)

    def said(self, figure: str, radii: Iterable[tuple[ReportRun, float]]) -> str:
        """The text of the paper on a figure of these runs, each at its radius; empty if it does not fit all of them."""
        shown = list(radii)
        found = {self.published(run).said(figure, epsilon) for run, epsilon in shown}
        text = found.pop() if len(found) == 1 else ""
        return text and f"{text}{self.of([run for run, _ in shown]).origin()}"

    def origin(self) -> str:
        """A sentence on the data and radii of the paper's values, if they are not ours."""
        titles: dict[str, list[str]] = {}
        for run in self.runs:
            titles.setdefault(self.published(run).origin(), []).append(run.title)
        of = {origin: f" ({', '.join(dict.fromkeys(runs))})" for origin, runs in titles.items()}
        parts = [origin + (of[origin] if len(titles) > 1 else "") for origin in titles if origin]
        return f" They are {'; '.join(parts)}." if parts else ""

    @property
    def data(self) -> str:
        return self.runs[0].data

    @property
    def data_title(self) -> str:
        """The name of the data set in titles; records from elsewhere may have one that is not registered."""
        return (SOURCES[self.data].title if self.data in SOURCES else "") or self.data

    @property
    def attacks(self) -> list[AttackRecord]:
        """The records of attacks of all runs, without those of clean images."""
        return [r for run in self.runs for r in run.attacks if not r.is_clean]

    @property
    def training_epsilons(self) -> list[float]:
        """The bounds of the inner adversaries in training, each once."""
        return sorted({run.epsilon for run in self.runs if run.epsilon})

    def of(self, runs: Sequence[ReportRun]) -> "Comparison":
        """The same comparison of these runs alone."""
        return replace(self, runs=tuple(runs))

    @property
    def groups(self) -> list[tuple[ReportRun, ...]]:
        """Its runs by title: several trainings of one method are one line of a figure, one column of a table."""
        found: dict[str, list[ReportRun]] = {}
        for run in self.runs:
            found.setdefault(run.title, []).append(run)
        return [tuple(group) for group in found.values()]

    @property
    def pairs(self) -> list[tuple[ReportRun, ReportRun]]:
        """Each run with GradDiv beside the run of the same method, data and seed without it."""
        plain = {(run.method, run.data, run.experiment.seed): run for run in reversed(self.runs)}
        found = [(plain.get((run.base, run.data, run.experiment.seed)), run) for run in self.runs]
        return [(without, run) for without, run in found if without is not None and "+graddiv" in run.method]

    @property
    def pair(self) -> tuple[ReportRun, ReportRun] | None:
        """The first of these pairs, which captions compare."""
        return next(iter(self.pairs), None)

    def clean(self, run: ReportRun) -> Summary | None:
        """The accuracy of a run's method without an attack, the mean over its trainings, if it was measured."""
        found = [each.clean for each in self.runs if each.title == run.title and each.clean is not None]
        return over_trainings(found) if found else None

    def only(self, wanted: Callable[[ReportRun, AttackRecord], bool]) -> "Comparison":
        """The same comparison with these records of attacks alone, clean images included."""
        kept = [(run, [r for r in run.attacks if r.is_clean or wanted(run, r)]) for run in self.runs]
        return self.of([replace(run, attacks=tuple(records)) for run, records in kept])

    @property
    def checklist(self) -> dict[str, dict[ReportRun, CheckedItem | None]]:
        """The verdicts of the checklist of each run, by behavior."""
        found = {run: {item.name: item for item in run.checklist} for run in self.runs}
        names = dict.fromkeys(name for items in found.values() for name in items)
        return {name: {run: items.get(name) for run, items in found.items()} for name in names}

    def with_measurement(self, kind: type[Measurement], **wanted: Any) -> list[tuple[ReportRun, Measurement]]:
        """The runs that have a measurement of this kind, with it."""
        found = [(run, run.measured(kind, **wanted)) for run in self.runs]
        return [(run, record) for run, record in found if record is not None]


class Curves(NamedTuple):
    """Accuracy against one setting of an attack, all its other settings being the same for all runs."""

    fixed: dict[str, Any]  #: the other settings
    of_runs: tuple[tuple[ReportRun, list[tuple[Any, Summary]]], ...]
    """The first run of each method with its points (value, accuracy), means over its trainings."""


FIXED = ("epsilon", "n", "m", "restarts", "examples")  #: an attack's settings: one is swept over, the others are fixed


def curves(comparison: Comparison, vary: str, attack: str = "PGD") -> Curves | None:
    """EOT-[attack] against epsilon, n or m; None if there are no such records.

    A deterministic network has no EOT: its plain attack is the same thing, whatever n.
    """
    found = [(run, [r for r in run.attacks if is_eot(run, r, attack)]) for run in comparison.runs]
    found = [(run, records) for run, records in found if records]
    if not found:
        return None
    every = [r for _, group in found for r in group]
    of_random = [r for run, group in found for r in group if run.random] or found[0][1]
    fixed: dict[str, Any] = {}
    for name in FIXED:
        values = {r.value(name) for r in (of_random if name == "n" else every)}
        if name != vary and len(values) > 1:
            raise GradDivError(
                f"the records of EOT-{attack} have {name} = {', '.join(map(str, sorted(values)))}: "
                f"a curve over {vary} needs one value, so choose one with --{name}"
            )
        fixed |= {name: values.pop()} if name != vary else {}
    of_run = {run: dict(curve(group, vary)) for run, group in found}
    of_groups = []
    for group in comparison.of([run for run, _ in found]).groups:
        trainings = [of_run[run] for run in group]
        shared = [value for value in trainings[0] if all(value in points for points in trainings)]
        of_groups.append((group[0], [(x, over_trainings([points[x] for points in trainings])) for x in shared]))
    return Curves(fixed, tuple(of_groups))


def is_eot(run: ReportRun, record: AttackRecord, attack: str) -> bool:
    """Whether this is the strongest form of an attack: with EOT where the network is random."""
    return record.label in ((f"EOT-{attack}", f"EOT^1-{attack}") if run.random else (attack,))


def load_run(path: Path, title: str, files: Sequence[str], read: Callable[[Path], Record] = Record.load) -> ReportRun:
    """A run with these files below its records: records, and the checklist if it is among them."""
    paths = [Run(path).records / name for name in files]
    found = [read(each) for each in paths if each.name != CHECKLIST]
    checked = [validated(_Checklist, each) for each in paths if each.name == CHECKLIST]
    attacks = tuple(r for r in found if isinstance(r, AttackRecord))
    measurements = tuple(r for r in found if isinstance(r, MeasurementRecord))
    epsilon, items = next(((each.epsilon, each.items) for each in checked), (0.0, ()))
    return ReportRun(path, title, attacks, measurements, items, epsilon)
