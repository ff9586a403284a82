"""From entries to a plan: which runs are needed, what is measured of each, and which records each item is made of."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from torch import nn

from graddiv.attacks import APGD, ARC, BB, FGSM, PGD, Attack, Square, StochasticPGD
from graddiv.data import SOURCES
from graddiv.errors import GradDivError, unknown
from graddiv.evaluation import Cell, cells
from graddiv.evaluation.budget import BUDGETS, Budget, with_geometry
from graddiv.evaluation.measurements import MEASUREMENTS, defined_in, l2_radius
from graddiv.evaluation.robustness import SourceNetwork
from graddiv.experiment import Experiment
from graddiv.experiment.cost import training_work
from graddiv.geometry import NORMS
from graddiv.networks import Dirac
from graddiv.paper.entries import STUDY, Entry, Need, Render, entries_of
from graddiv.recipes import SCALES, has_section, radius, title_of
from graddiv.report.plan import ATTACK_TABLE, Plan, PlannedItem, PlannedRun
from graddiv.report.published import STANDS_FOR
from graddiv.runs import CHECKLIST, Run

RATIOS = {
    "mnist": (1.0, 0.36 / 0.3, 2 / 3, 0.38 / 0.3, 0.34 / 0.3, 1 / 3, 0.32 / 0.3, 0.4 / 0.3),
    "cifar10": tuple(epsilon / (8 / 255) for epsilon in (0.03, 0.01, 0.02, 0.04, 0.05, 0.06, 0.07)),
    "stl10": tuple(epsilon / 0.03 for epsilon in (0.03, 0.01, 0.02, 0.04, 0.05, 0.06, 0.07)),
}
"""The radii of the supplementary tables as multiples of the radius of training; smaller scales take the first ones."""
FAR = {"mnist": 0.4 / 0.3}  #: loss increase and transfer are measured at this multiple of the radius of training
SENSITIVITY = {"mnist": 0.38 / 0.3}  #: the same of the sensitivity to n; of other data at the radius itself
BEYOND = 1.2  #: 0.36 of 0.3, where the paper's two methods are 37 points apart
PARTING = (1.0, 0.34 / 0.3, BEYOND, 0.38 / 0.3)  #: from where the paper's Adv-BNN is ahead to where GradDiv is
STRONG_N = 4  #: the pilot of the strong suite advises 3 to 5 draws on the study's networks; one number for all


@dataclass(frozen=True)
class ComparedRun:
    """One run that an entry compares: its training, and the radii at which it is attacked."""

    experiment: Experiment
    title: str
    budget: Budget
    judged_on: str | None = None  #: the data set on whose test examples it is judged, if not that of training
    shipped: bool = False  #: whether it comes with the package, trained
    beside: Mapping[str, str] = field(default_factory=dict)  #: titles and directories of the others of its seed

    @cached_property
    def radius(self) -> float:
        """The epsilon at which the methods are compared."""
        return radius(self.experiment)

    @property
    def papers_data(self) -> str:
        """The data set of the paper's that this one stands for."""
        return STANDS_FOR.get(self.experiment.data.name, self.experiment.data.name)

    @property
    def checklist(self) -> Budget:
        return BUDGETS["checklist"][self.budget.checklist]

    def at(self, ratio: float) -> float:
        """A multiple of that radius, to six digits, as file names have them."""
        return float(f"{ratio * self.radius:.6g}")

    @property
    def radii(self) -> list[float]:
        ratios = RATIOS.get(self.papers_data, RATIOS["mnist"])
        return [self.at(ratio) for ratio in ratios[: self.budget.curve_radii]]

    def eot(
        self, epsilons: Sequence[float], n: int, *, m: int | None = None, fgsm: bool = False, repeats: int = 1
    ) -> list[Cell]:
        """EOT-PGD, and EOT-FGSM on request, at these radii; clean images with them."""
        attacks = [*([FGSM()] if fgsm else []), PGD(m=m or self.budget.m)]
        return cells(attacks, epsilons, modes=["eot"], n=n, repeats=repeats, random=self.experiment.random)

    def measured_at(self, need: str) -> float:
        """The radius of a measurement."""
        far = self.at(FAR.get(self.papers_data, 1.0))
        beyond = dict.fromkeys(("gradient-noise", "path", "filters", "ensemble-size-attacked"), self.at(BEYOND))
        found = {"increase": far, "transfer": far, **beyond}.get(need, self.radius)
        return found if self.budget.norm == "linf" else l2_radius(found, self._pixels)

    def has(self, need: Need) -> bool:
        """Whether this can be measured of it: a deterministic network has no transfer between its sample models."""
        measurement = MEASUREMENTS.get(need.name)
        return self.experiment.random or measurement is None or not measurement.of_random_networks_only

    def cells(self, need: str) -> list[Cell]:
        """The attacks that a need is made of, in the norm of the budget."""
        found = []
        for cell in ATTACKED[need](self):
            if self.budget.norm == "linf" or cell.attack is None:
                found.append(cell)
            else:  # in an l_2 ball about as easy, if the attack is made for the norm
                epsilon = float(f"{l2_radius(cell.epsilon, self._pixels):.6g}")
                attacks = with_geometry([cell.attack], NORMS["l2"])
                found += [replace(cell, attack=each, epsilon=epsilon) for each in attacks]
        return list({cell.file_name: cell for cell in found}.values())

    @property
    def _pixels(self) -> int:
        return math.prod(SOURCES[self.judged_on].shape if self.judged_on else self.experiment.data.shape)

    def files(self, *needs: Need) -> tuple[str, ...]:
        """The file names of the records that these needs are made of, below the run's records."""
        found = []
        for need in filter(self.has, needs):
            if need.name == CHECKLIST_NEED:
                names = [CHECKLIST]
            elif need.name in ATTACKED:
                names = [cell.file_name for cell in self.cells(need.name)]
            else:
                names = MEASUREMENTS[need.name].files(self.measured_at(need.name), self._pixels, self.budget.norm)
            found += [f"{need.set}/{name}" if need.set else name for name in names]
        return tuple(dict.fromkeys(found))


def _suite(run: ComparedRun, ratio: float = 1.0) -> list[Cell]:
    """All attacks of the suite, at a multiple of the radius of training."""
    budget = run.budget
    return cells(budget.attacks(), [run.at(ratio)], n=budget.n, repeats=budget.repeats, random=run.experiment.random)


def _curves(run: ComparedRun, repeats: int = 1) -> list[Cell]:
    """EOT-FGSM and EOT-PGD at every radius, with each number of sample models."""
    return [cell for n in run.budget.curve_n for cell in run.eot(run.radii, n, fgsm=True, repeats=repeats)]


def _of_training(run: ComparedRun) -> list[Cell]:
    """The adversary of training itself, that of its last stage."""
    if (adversary := run.experiment.adversary_of(run.experiment.schedule[-1])) is None:
        return []
    attack = PGD(m=adversary.m, alpha=adversary.alpha, random_start=adversary.random_start)
    return cells([attack], [run.radius], modes=["eot"], n=adversary.n, random=run.experiment.random)


def _strong(run: ComparedRun, shares: Sequence[int] = (4,)) -> list[Cell]:
    """The strong adversary where the paper's two methods part, with these shares of the curve's passes, in quarters."""
    passes = max(run.budget.curve_n) * run.budget.m
    attacks = [StochasticPGD(m=share * passes // STRONG_N // 4) for share in shares]
    epsilons = [run.at(ratio) for ratio in PARTING]
    return cells(attacks, epsilons, modes=["eot"], n=STRONG_N, random=run.experiment.random)


def _knowing(run: ComparedRun) -> list[Cell]:
    """At the radius of training, adversaries for diverse gradients: stochastic PGD, and ARC from model to model."""
    n, m, random = run.budget.n, run.budget.m, run.experiment.random
    found = []
    for attack, models in ((StochasticPGD(m=n * m // STRONG_N), STRONG_N), (ARC(m=run.budget.suite_m or m // 2), n)):
        found += cells([attack], run.radius, modes=["eot"], n=models, repeats=run.budget.repeats, random=random)
    return found


def _pressed(run: ComparedRun) -> list[Cell]:
    """Whatever might show that a gain beyond the radius is that of a starved or misled adversary.

    More steps, random starts, another loss, a memory, other attacks, and images made on the networks beside it.
    """
    at, n, random = run.at(BEYOND), run.budget.n, run.experiment.random
    usual = StochasticPGD(m=max(run.budget.curve_n) * run.budget.m // STRONG_N)
    changed = (replace(usual, m=4 * usual.m), replace(usual, restarts=3), replace(usual, objective="ce"))
    variants = [usual, *changed, replace(usual, memory="aggmo")]
    found = cells(variants, at, modes=["eot"], n=STRONG_N, random=random)
    others: list[Attack] = [APGD(m=2 * run.budget.m), ARC(m=run.budget.arc_m), BB(m=50), Square(m=run.budget.queries)]
    found += cells(others, at, modes=["eot"], n=n, random=random)
    not_loaded = Dirac(nn.Identity())
    return found + [Cell(usual, "eot", STRONG_N, at, 0, SourceNetwork(title, not_loaded)) for title in run.beside]


CHECKLIST_NEED = "checklist"

ATTACKED: dict[str, Callable[[ComparedRun], list[Cell]]] = {
    "suite": _suite,
    "suite-beyond": lambda run: _suite(run, BEYOND),
    "curves": _curves,
    "curves-repeated": lambda run: _curves(run, run.budget.repeats),
    "curve": lambda run: run.eot(run.radii, max(run.budget.curve_n)),
    "curve-n1-repeated": lambda run: run.eot(run.radii, 1, repeats=run.budget.repeats),
    "of-training": _of_training,
    "pgd": lambda run: run.eot([run.radius], run.budget.n),
    "strong": _strong,
    "budgets": lambda run: _strong(run, (1, 4, 16, 64)),
    "pressed": _pressed,
    "knowing": _knowing,
    "sweep-n": lambda run: [
        cell for n in run.budget.sweep_n for cell in run.eot([run.at(SENSITIVITY.get(run.papers_data, 1.0))], n)
    ],
    "sweep-m": lambda run: [cell for m in run.budget.sweep_m for cell in run.eot([run.radius], run.budget.n, m=m)],
}
"""Needs that are attacks, by name; the others are measurements, and the checklist."""


def check_norm(need: Need, norm: str) -> None:
    """Refuse what is not defined in the norm."""
    if need.name == CHECKLIST_NEED and norm != "linf":
        raise GradDivError(f"the {need.name} is reproduced in linf only, but the norm is {norm}")
    if need.name in MEASUREMENTS:
        defined_in(need.name, norm)


Compared = Mapping[str, ComparedRun]  #: the runs that an entry compares, by the names of their directories


def _beside(runs: Compared) -> Compared:
    """The runs, each with the others of its seed, on whose networks its attacks may be made."""
    seeds = {name: run.experiment.seed for name, run in runs.items()}
    others = {name: {r.title: o for o, r in runs.items() if o != name and seeds[o] == seeds[name]} for name in runs}
    return {name: replace(run, beside=others[name]) for name, run in runs.items()}


@dataclass(frozen=True)
class Request:
    """A request to reproduce entries."""

    entries: Sequence[Entry]
    scale: str  #: one of the scales of the recipes
    data: str | None = None  #: another data set than the paper's
    overrides: Sequence[str] = ()  #: changes of the recipes, as --set has them
    seeds: Sequence[int] = ()  #: seeds of the trainings of every run; those of the entries if not given
    published_rules: bool = False  #: whether the suite's attacks return what the libraries of the paper's time did
    quick: bool = False  #: whether to measure as little as possible, in a minute
    norm: str = "linf"  #: of attacks; a radius in l_2 is that of a ball about as easy

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise unknown("scale", self.scale, SCALES)
        for entry in self.entries:
            for need in entry.needs:
                check_norm(need, self.norm)
            if self.scale not in entry.scales:
                scales = " or ".join(entry.scales)
                raise GradDivError(f"{entry.name} is reproduced at scale {scales}, but --scale is {self.scale}")
        trained = [entry for entry in self.entries if not entry.shipped]
        for override in self.overrides:
            recipes = [e for entry in trained for e, _ in entry.experiments(self.scale, self.data)]
            if not trained:
                raise GradDivError(f"--set {override!r}: the networks come trained, so there is no recipe to change")
            if not any(has_section(experiment, override) for experiment in recipes):
                section = override.partition("=")[0].strip().rpartition(".")[0]
                settings = [setting for e in recipes for setting in e.dump().items()]
                known = {name for name, value in settings if isinstance(value, dict | list) and value}
                known |= {"graddiv" for e in recipes if e.regularization is not None}  # that of a later stage
                raise GradDivError(
                    f"--set {override!r}: the recipes of what is trained have no section {section}, "
                    f"expected one of {', '.join(sorted(known))}"
                )

    @property
    def budget(self) -> Budget:
        preset = BUDGETS["scale"]["minute" if self.quick else self.scale]
        return replace(preset, published_rules=self.published_rules, norm=self.norm)

    @cached_property
    def compared(self) -> list[tuple[Entry, Compared]]:
        """Each entry with the runs that it compares, and its own copies of shipped ones, judged on other examples."""
        found, budget = dict[str, ComparedRun](), self.budget
        of_entries = list[tuple[Entry, Compared]]()
        for entry in self.entries:
            runs = {}
            for experiment, title in entry.experiments(self.scale, self.data, self.overrides, self.seeds):
                name = f"{entry.name}-{experiment.run_name}" if entry.shipped else experiment.run_name
                run = ComparedRun(experiment, title, budget, entry.judged_on, entry.shipped)
                runs[name] = run
            of_entries.append((entry, {name: found.setdefault(name, run) for name, run in _beside(runs).items()}))
        return of_entries

    def needs(self) -> dict[str, tuple[ComparedRun, list[Need]]]:
        """Every run that the entries need, by name, with what is measured of it."""
        found: dict[str, tuple[ComparedRun, list[Need]]] = {}
        for entry, compared in self.compared:
            for name, run in compared.items():
                _, needs = found.setdefault(name, (run, []))
                needs += [need for need in entry.needs if need not in needs and run.has(need)]
        return found

    def report(self, runs: Path) -> Plan:
        """The plan of the report: the records of every table and figure, by file name, of runs below a directory."""
        return _plan(self.compared, runs, self.scale)


def gathered(target: str, runs: Path) -> tuple[Plan, set[str]]:
    """The plan of what can be drawn from existing records of the runs below a directory, and the networks to keep.

    Runs are recognized by title, so a second stage may be trained in one go or from a stored network.
    """
    entries = STUDY if target == "mnist-study" else entries_of(target)
    found = [Run(path) for path in sorted(runs.glob("*")) if Run(path).experiment_file.exists()]
    scales = sorted({run.experiment.scale for run in found} & set(entries[0].scales))
    if len(scales) != 1:
        here = ", ".join(scales) or "none"
        raise GradDivError(f"{runs} has runs of the scales {here} for {target}, expected those of one scale")
    (scale,), by_title = scales, dict[str, dict[str, ComparedRun]]()
    named = [run for run in found if run.path.name == run.experiment.run_name and run.experiment.scale == scale]
    for run in sorted(named, key=lambda run: run.experiment.seed):
        title = title_of(run.experiment)
        by_title.setdefault(title, {})[run.path.name] = ComparedRun(run.experiment, title, BUDGETS["scale"][scale])
    compared, kept, before = [], set[str](), set[tuple[str, Need]]()
    for entry in entries:
        titles = dict.fromkeys(title for _, title in entry.experiments(scale, seeds=[0]))
        wanted = {name: run for title in titles for name, run in by_title.get(title, {}).items()}
        wanted = {n: r for n, r in wanted.items() if not entry.seeds or r.experiment.seed in entry.seeds}
        new = {(name, need) for name in wanted for need in entry.needs} - before
        if len({run.title for run in wanted.values()}) < min(2, len(titles)) or (entry.needs and not new):
            continue  # a comparison of one method, or of nothing that is not compared already
        before |= new
        compared.append((entry, _beside(wanted)))
        kept |= {name for name, run in wanted.items() if run.title in entry.networks}
    if not compared:
        raise GradDivError(f"{runs} has no two methods that a table or figure of {target} compares")
    plan = _plan(compared, runs, scale, made_only=True)
    plan = plan.model_copy(update={"title": STUDY_TITLE}) if entries == STUDY else plan
    return plan, kept & plan.runs.keys()


STUDY_TITLE = "The paper's MNIST findings, re-tested"
WHOLE = ("sweep-n", "sweep-m", "budgets", "curves")
"""Needs whose records at a radius count only together, since other curves share single ones."""


def _made(run: Run, compared: ComparedRun, needs: Sequence[Need]) -> tuple[str, ...] | None:
    """The records of these needs that the run has; None if it has only those of clean images."""
    found: list[str] = []
    for need in needs:
        names = compared.files(need)
        there = [name for name in names if (run.records / name).exists()]
        if need.name in WHOLE:
            radii = dict(zip(names, [cell.epsilon for cell in compared.cells(need.name)], strict=True))
            unfinished = {radii[name] for name in names if name not in there}
            there = [name for name in there if radii[name] not in unfinished]
        found += there
    attacked = any(not Path(name).name.startswith("clean-") for name in found)
    return tuple(dict.fromkeys(found)) if attacked or not needs else None


def _plan(entries: Sequence[tuple[Entry, Compared]], runs: Path, scale: str, *, made_only: bool = False) -> Plan:
    """The plan of these entries; `made_only` leaves out missing records, and runs without any."""
    planned: dict[str, PlannedRun] = {}
    items: list[PlannedItem] = []
    for entry, compared in entries:
        for render in entry.renders:
            records = dict[str, tuple[str, ...]]()
            for name, run in compared.items():
                names = _made(Run(runs / name), run, render.needs) if made_only else run.files(*render.needs)
                records |= {name: names} if names is not None else {}
            planned |= {name: PlannedRun(path=str(runs / name), title=compared[name].title) for name in records}
            if records:
                name, about = _labels(entry, render, len(entries) > 1)
                items.append(PlannedItem(name=name, renderer=render.draw, records=records, about=about))
    return Plan(
        title=entries[0][0].title if len(entries) == 1 else f"{len(entries)} tables and figures",
        scale=scale,
        runs=planned,
        items=tuple(items),
        headline=next((item.name for item in items if item.renderer == ATTACK_TABLE), None),
    )


def _labels(entry: Entry, render: Render, several: bool) -> tuple[str, str]:
    """The file name of an item, and its topic if there are several entries."""
    about = next(text for text in (render.about, entry.about, entry.title) if text is not None)
    name = render.name or render.draw
    if entry.prefix is not None:
        name = f"{entry.prefix}{name}"
    elif len(entry.renders) == 1:
        name = entry.name
    elif several:  # others may have a figure of this kind, too
        name = f"{entry.name}-{name}"
    return name, about if several and render.draw != ATTACK_TABLE else ""


def seconds_to_train(entries: Sequence[Entry], scale: str, speed: Callable[[Experiment], float]) -> float | None:
    """Seconds to train each run once, but shipped ones, at a speed in work per second; None if a scale is missing."""
    if not all(scale in entry.scales for entry in entries):
        return None
    runs = {e.run_name: e for entry in entries if not entry.shipped for e, _ in entry.experiments(scale)}
    seconds, before = 0.0, set[str]()
    for experiment in runs.values():
        seconds += training_work(experiment, epochs_taken_over(experiment, before)) / speed(experiment)
        before.add(experiment.digest)
    return seconds


def epochs_taken_over(experiment: Experiment, before: Collection[str]) -> int:
    """The epochs that a training copies from a training of only its first stages whose digest is in `before`."""
    return next((first.epochs for first in experiment.first_stages if first.digest in before), 0)
