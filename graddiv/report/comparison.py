"""What one table or figure compares: runs side by side, each with exactly the records that a plan names for it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from graddiv import store
from graddiv.data import SOURCES
from graddiv.errors import GradDivError
from graddiv.experiment import Experiment
from graddiv.records import AttackRecord, MeasurementRecord, Record, Summary, accuracy, curve, over_trainings
from graddiv.runs import CHECKLIST, Run

Measurement = TypeVar("Measurement", bound=MeasurementRecord)


@dataclass(frozen=True, eq=False)
class ReportRun:
    """A trained run as a report sees it: its experiment, the log of its training, and records of it."""

    path: Path
    title: str  #: the method's name in tables
    attacks: tuple[AttackRecord, ...] = ()  #: records of attacks, and of clean images
    measurements: tuple[MeasurementRecord, ...] = ()
    checklist: tuple[dict[str, Any], ...] = ()  #: the items of the checklist, if the plan names it
    checklist_epsilon: float = 0.0  #: the radius that its items are of

    @cached_property
    def experiment(self) -> Experiment:
        """The settings it was trained with."""
        return Run(self.path).experiment

    @property
    def method(self) -> str:
        """Such as adv-bnn+graddiv."""
        return self.experiment.method

    @property
    def data(self) -> str:
        """The data set."""
        return self.experiment.data.name

    @property
    def random(self) -> bool:
        """Whether the network has noise; one without knows no EOT."""
        return self.experiment.random

    @property
    def lam(self) -> float:
        """The weight of GradDiv in training; 0 without it."""
        return self.experiment.lam

    @property
    def epsilon(self) -> float | None:
        """The bound of the inner adversary in training."""
        return self.experiment.adversary.epsilon if self.experiment.adversary is not None else None

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the training log."""
        return Run(self.path).log

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """What the log says of each epoch, from epoch 0, before training."""
        return [line for line in self.log if line["event"] == "epoch"]

    def attacked(self, **wanted: Any) -> list[AttackRecord]:
        """Records of attacks (and of clean images) with these settings."""
        return [r for r in self.attacks if all(r.value(key) == value for key, value in wanted.items())]

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
        found = self.attacked(label="clean")
        return accuracy(found) if found else None


def titles(runs: Sequence[ReportRun]) -> list[str]:
    """Names of runs: with lambda where runs of one title differ in it, with the seed where they do not."""
    names = []
    for run in runs:
        alike = [other.lam for other in runs if other.title == run.title]
        lam = f", λ = {run.lam:g}" if len(set(alike)) > 1 else ""
        seed = f", seed {run.experiment.seed}" if alike.count(run.lam) > 1 else ""
        names.append(f"{run.title}{lam}{seed}")
    return names


class PublishedValue(NamedTuple):
    """A published accuracy, in percent."""

    mean: float
    std: float | None = None  #: over its runs; where none is given, None
    commented: bool = False  #: whether it stands in the source of the publication alone, as a comment

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ± {self.std:.2f}" if self.std is not None else "") + "†" * self.commented


class NothingPublished:
    """Values of a publication that stand beside ours, at radii that correspond to ours: here none."""

    def __init__(self, data: str, training_epsilon: float) -> None:
        """`training_epsilon` is the radius of our adversarial training; 0 where there was none."""

    def value(self, method: str, attack: str, epsilon: float, n: int | None = None) -> PublishedValue | None:
        """What it gives for an attack (or "clean") on a method."""
        return None

    def curve(self, method: str, attack: str, n: int | None) -> list[tuple[float, float]]:
        """(epsilon, accuracy) from the clean accuracy on; empty if there is no such row."""
        return []

    def epsilons(self) -> list[float]:
        """The perturbation bounds of its table of the data set."""
        return []

    def said(self, figure: str, epsilon: float) -> str:
        """A sentence with the numbers that its text gives for a figure, of an attack of this radius; "" if none."""
        return ""

    def origin(self) -> str:
        """Whose data and which radius its values are of, where they are not ours; else empty."""
        return ""


Published = Callable[[str, float], NothingPublished]
"""(data set, radius of our adversarial training) -> the values that stand beside ours."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """The runs that one table, figure or page compares, in its order of methods."""

    runs: tuple[ReportRun, ...]
    scale: str  #: at which ours were obtained: stands beside every number of ours
    publication: Published = NothingPublished

    def published(self, run: ReportRun) -> NothingPublished:
        """Values of the publication at the radii that correspond to those of a run."""
        return self.publication(run.data, run.epsilon or 0.0)

    def said(self, figure: str, radii: Iterable[tuple[ReportRun, float]]) -> str:
        """What its text says of a figure of these runs, each at its radius; nothing if it does not fit all of them."""
        shown = list(radii)
        found = {self.published(run).said(figure, epsilon) for run, epsilon in shown}
        text = found.pop() if len(found) == 1 else ""
        return text and f"{text}{self.of([run for run, _ in shown]).origin()}"

    def origin(self) -> str:
        """A sentence on whose data and which radii its values are of, where they are not ours."""
        titles: dict[str, list[str]] = {}
        for run in self.runs:
            titles.setdefault(self.published(run).origin(), []).append(run.title)
        parts = [
            f"{origin} ({', '.join(dict.fromkeys(of))})" if len(titles) > 1 else origin
            for origin, of in titles.items()
            if origin
        ]
        return f" They are {'; '.join(parts)}." if parts else ""

    @property
    def data(self) -> str:
        """The data set of its runs."""
        return self.runs[0].data

    @property
    def data_title(self) -> str:
        """What titles call it; a data set that is not registered, of records from elsewhere, goes by its name."""
        return (SOURCES[self.data].title if self.data in SOURCES else "") or self.data

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

    def clean(self, run: ReportRun) -> Summary | None:
        """The accuracy of a run's method without an attack, the mean over its trainings, if it was measured."""
        found = [each.clean for each in self.runs if each.title == run.title and each.clean is not None]
        return over_trainings(found) if found else None

    def only(self, wanted: Callable[[ReportRun, AttackRecord], bool]) -> "Comparison":
        """The same comparison with these records of attacks alone, clean images included."""
        kept = [(run, [r for r in run.attacks if r.is_clean or wanted(run, r)]) for run in self.runs]
        return self.of([replace(run, attacks=tuple(records)) for run, records in kept])

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
    fixed = {}
    for name in FIXED:
        random = [r for run, records in found for r in records if run.random] or found[0][1]
        values = {r.value(name) for r in (random if name == "n" else [r for _, group in found for r in group])}
        if name != vary and len(values) > 1:
            raise GradDivError(
                f"the records of EOT-{attack} have {name} = {', '.join(map(str, sorted(values)))}: "
                f"a curve over {vary} needs one value, so choose one with --{name}"
            )
        if name != vary:
            fixed[name] = values.pop()
    of_run = {run.path: dict(curve(records, vary)) for run, records in found}
    of_groups = []
    for group in comparison.of([run for run, _ in found]).groups:
        trainings = [of_run[run.path] for run in group]
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
    epsilon, items = next((_checklist(each) for each in paths if each.name == CHECKLIST), (0.0, []))
    return ReportRun(
        path,
        title,
        tuple(r for r in found if isinstance(r, AttackRecord)),
        tuple(r for r in found if isinstance(r, MeasurementRecord)),
        tuple(items),
        epsilon,
    )


def _checklist(path: Path) -> tuple[float, list[dict[str, Any]]]:
    """The radius of a checklist, and its items."""
    content = store.read_json(path)
    epsilon, items = content.get("epsilon"), content.get("items")
    texts, again = ("name", "verdict", "sentence"), "'graddiv measure RUN --what checklist' makes it"
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and all(isinstance(item.get(key), str) for key in texts) for item in items
    ):
        raise GradDivError(f"{path} holds no list of items with {', '.join(texts)}: {again}")
    if not isinstance(epsilon, int | float):
        raise GradDivError(f"{path} has epsilon {epsilon!r}, expected a number: {again}")
    return float(epsilon), items
