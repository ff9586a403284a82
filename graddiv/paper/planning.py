"""From entries to a plan: which runs are needed, what is measured of each, and which records each item is made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from graddiv.attacks import ARC, FGSM, PGD, StochasticPGD
from graddiv.attacks.registry import as_published
from graddiv.data import lookup
from graddiv.errors import GradDivError, unknown
from graddiv.evaluation import Cell, cells, suite
from graddiv.evaluation.measurements import MEASUREMENTS, MeasurementSettings
from graddiv.experiment import Experiment
from graddiv.paper.entries import FAR, RATIOS, SENSITIVITY
from graddiv.paper.entry import EFFORTS, QUICK_EFFORT, Effort, Entry
from graddiv.paper.published import STANDS_FOR
from graddiv.recipes import has_section, radius, title
from graddiv.report.plan import Plan, PlannedItem, PlannedRun
from graddiv.report.renderers import ATTACK_TABLE
from graddiv.runs import CHECKLIST


@dataclass(frozen=True)
class RunPlan:
    """One run of a plan: what it trains, and at which radii it is attacked."""

    experiment: Experiment
    effort: Effort
    judged_on: str | None = None
    """Another data set than that of training, on whose test examples it is judged."""
    shipped: bool = False
    """Whether it comes with the package, trained."""
    as_in: str | None = None
    """The entry that changes its recipe, if one does."""

    @cached_property
    def radius(self) -> float:
        """The epsilon at which the methods are compared."""
        return radius(self.experiment)

    @property
    def papers_data(self) -> str:
        """The data set of the paper's that this one stands for."""
        return STANDS_FOR.get(self.experiment.data.name, self.experiment.data.name)

    def at(self, ratio: float) -> float:
        """A multiple of that radius, to six digits, as file names have them."""
        return float(f"{ratio * self.radius:.6g}")

    @property
    def radii(self) -> list[float]:
        """Of curves over epsilon."""
        return [self.at(ratio) for ratio in RATIOS[self.papers_data][: self.effort.radii]]

    def eot(
        self, epsilons: Sequence[float], n: int, *, m: int | None = None, fgsm: bool = False, repeats: int = 1
    ) -> list[Cell]:
        """EOT-PGD, and EOT-FGSM on request, at these radii; clean images with them."""
        attacks = [*([FGSM()] if fgsm else []), PGD(m=m or self.effort.m)]
        return cells(attacks, epsilons, modes=["eot"], n=n, repeats=repeats, random=self.experiment.random)

    def measurement_settings(self, need: str) -> MeasurementSettings:
        """What a measurement is spent on."""
        far = self.at(FAR.get(self.papers_data, 1.0))
        return MeasurementSettings(
            epsilon={"increase": far, "transfer": far, "gradient-noise": self.at(BEYOND)}.get(need, self.radius),
            gradients=self.effort.gradients,
            n=max(self.effort.curve_n),
            m=self.effort.m,
            models=self.effort.models,
            grid=self.effort.grid,
            draws=self.effort.draws,
        )

    def has(self, need: str) -> bool:
        """Whether this can be measured of it: a deterministic network has no transfer between its sample models."""
        return self.experiment.random or need not in MEASUREMENTS or not MEASUREMENTS[need].of_random_networks_only

    def cells(self, need: str) -> list[Cell]:
        """The attacks that a need is made of."""
        return list({cell.file_name: cell for cell in ATTACKED[need](self)}.values())

    def files(self, need: str) -> list[str]:
        """The names of the records that a need is made of."""
        if need == CHECKLIST_NEED:
            return [CHECKLIST]
        if need in ATTACKED:
            return [cell.file_name for cell in self.cells(need)]
        shape = lookup(self.judged_on or self.experiment.data.name).shape
        return MEASUREMENTS[need].files(self.measurement_settings(need), shape[0] * shape[1] * shape[2])


def _suite(run: RunPlan, ratio: float = 1.0) -> list[Cell]:
    """All attacks of the suite, at a multiple of the radius of training."""
    effort = run.effort
    attacks = suite(effort.suite, m=effort.suite_m)
    attacks = [as_published(attack) for attack in attacks] if effort.published_rules else attacks
    return cells(attacks, [run.at(ratio)], n=effort.n, repeats=effort.repeats, random=run.experiment.random)


def _curves(run: RunPlan, repeats: int = 1) -> list[Cell]:
    """EOT-FGSM and EOT-PGD at every radius, with each number of sample models."""
    return [cell for n in run.effort.curve_n for cell in run.eot(run.radii, n, fgsm=True, repeats=repeats)]


def _of_training(run: RunPlan) -> list[Cell]:
    """The adversary of training itself, that of its last stage."""
    adversary = run.experiment.adversary_of(run.experiment.schedule[-1])
    if adversary is None:
        return []
    attack = PGD(m=adversary.m, alpha=adversary.alpha, random_start=adversary.random_start)
    return cells([attack], [run.radius], modes=["eot"], n=adversary.n, random=run.experiment.random)


def _strong(run: RunPlan) -> list[Cell]:
    """The strong adversary with as many passes as the curve's, where the paper's two methods part."""
    passes = max(run.effort.curve_n) * run.effort.m
    attack = StochasticPGD(m=passes // STRONG_N)
    epsilons = [run.at(ratio) for ratio in PARTING]
    return cells([attack], epsilons, modes=["eot"], n=STRONG_N, random=run.experiment.random)


def _budgets(run: RunPlan) -> list[Cell]:
    """The strong adversary at the same radii with a quarter of those passes, as many, and four and 16 times them."""
    passes = max(run.effort.curve_n) * run.effort.m
    attacks = [StochasticPGD(m=share * passes // STRONG_N // 4) for share in (1, 4, 16, 64)]
    epsilons = [run.at(ratio) for ratio in PARTING]
    return cells(attacks, epsilons, modes=["eot"], n=STRONG_N, random=run.experiment.random)


def _knowing(run: RunPlan) -> list[Cell]:
    """At the radius of training, adversaries for diverse gradients: stochastic PGD, and ARC from model to model."""
    of_run: dict[str, Any] = {"modes": ["eot"], "repeats": run.effort.repeats, "random": run.experiment.random}
    steps = StochasticPGD(m=run.effort.n * run.effort.m // STRONG_N)
    one_by_one = ARC(m=run.effort.suite_m or run.effort.m // 2)
    return [
        *cells([steps], run.radius, n=STRONG_N, **of_run),
        *cells([one_by_one], run.radius, n=run.effort.n, **of_run),
    ]


STRONG_N = 4
"""What the pilot of the strong suite advises on the study's networks, 3 to 5, made one number so that all share it."""

BEYOND = 1.2
"""A multiple of the radius of training, 0.36 of 0.3, at which the paper's two methods are 37 points apart."""

PARTING = (1.0, 0.34 / 0.3, BEYOND, 0.38 / 0.3)
"""Multiples of the radius of training from where the paper's Adv-BNN is ahead to where GradDiv is."""

CHECKLIST_NEED = "checklist"

ATTACKED: dict[str, Callable[[RunPlan], list[Cell]]] = {
    "suite": _suite,
    "suite-beyond": lambda run: _suite(run, BEYOND),
    "curves": _curves,
    "curves-repeated": lambda run: _curves(run, run.effort.repeats),
    "curve": lambda run: run.eot(run.radii, max(run.effort.curve_n)),
    "curve-n1-repeated": lambda run: run.eot(run.radii, 1, repeats=run.effort.repeats),
    "of-training": _of_training,
    "pgd": lambda run: run.eot([run.radius], run.effort.n),
    "strong": _strong,
    "budgets": _budgets,
    "knowing": _knowing,
    "sweep-n": lambda run: [
        cell for n in run.effort.sweep_n for cell in run.eot([run.at(SENSITIVITY.get(run.papers_data, 1.0))], n)
    ],
    "sweep-m": lambda run: [cell for m in run.effort.sweep_m for cell in run.eot([run.radius], run.effort.n, m=m)],
}
"""Needs that are attacks, by name; the others are measurements, and the checklist."""


@dataclass(frozen=True)
class Request:
    """What a user asks to be reproduced."""

    entries: Sequence[Entry]
    scale: str
    """One of the scales of the recipes."""
    data: str | None = None
    """Another data set than the paper's."""
    overrides: Sequence[str] = ()
    """Changes of the recipes, as --set has them."""
    seeds: Sequence[int] = ()
    """Trainings of every run; those of the entries if not given."""
    published_rules: bool = False
    """Whether the suite's attacks return what the libraries of the paper's time did."""

    quick: bool = False
    """Whether as little as possible is measured: a minute of the demo."""

    @property
    def effort(self) -> Effort:
        """How much is measured."""
        return replace(QUICK_EFFORT if self.quick else EFFORTS[self.scale], published_rules=self.published_rules)

    def __post_init__(self) -> None:
        if self.scale not in EFFORTS:
            raise unknown("scale", self.scale, EFFORTS)
        for entry in self.entries:
            if self.scale not in entry.scales:
                raise GradDivError(
                    f"{entry.name} is reproduced at scale {' or '.join(entry.scales)}, but --scale is {self.scale}"
                )
        if self.overrides:
            self._check_overrides()

    def _check_overrides(self) -> None:
        """Refuse those that change no recipe."""
        trained = [entry for entry in self.entries if not entry.shipped]
        if not trained:
            raise GradDivError(
                f"--set {self.overrides[0]!r}: the networks come trained, so there is no recipe to change"
            )
        recipes = [e for entry in trained for e in entry.experiments(self.scale, self.data, ())]
        for override in self.overrides:
            if not any(has_section(experiment, override) for experiment in recipes):
                section = override.partition("=")[0].strip().rpartition(".")[0]
                known = sorted(set[str]().union(*map(_sections, recipes)))
                raise GradDivError(
                    f"--set {override!r}: the recipes of what is trained have no section {section}, "
                    f"expected one of {', '.join(known)}"
                )

    def runs(self, entry: Entry) -> dict[str, RunPlan]:
        """The runs that an entry compares, by the names of their directories.

        A network that comes with the package has a directory for each entry that copies it: every demo judges it on
        other examples, and a copy in half precision must not stand in for a training.
        """
        prefix = f"{entry.name}-" if entry.shipped else ""
        as_in = entry.name if entry.settings else None
        return {
            f"{prefix}{experiment.run_name}": RunPlan(experiment, self.effort, entry.judged_on, entry.shipped, as_in)
            for experiment in entry.experiments(self.scale, self.data, self.overrides, self.seeds)
        }


def _sections(experiment: Experiment) -> set[str]:
    """The sections of its recipe; GradDiv's may belong to a later stage."""
    found = {name for name, value in experiment.dump().items() if isinstance(value, dict | list) and value}
    return found | ({"graddiv"} if experiment.regularization is not None else set())


def plan_runs(request: Request) -> dict[str, tuple[RunPlan, list[str]]]:
    """Every run that the entries need, by name, with what is measured of it."""
    found: dict[str, tuple[RunPlan, list[str]]] = {}
    for entry in request.entries:
        for name, run in request.runs(entry).items():
            _, needs = found.setdefault(name, (run, []))
            needs += [need for need in entry.needs if need not in needs and run.has(need)]
    return found


def plan_report(request: Request, runs: Path) -> Plan:
    """The plan of the report: the records of every table and figure, by file name, of runs below a directory."""
    entries = request.entries
    planned: dict[str, PlannedRun] = {}
    items: list[PlannedItem] = []
    for entry in entries:
        compared = request.runs(entry)
        for name, run in compared.items():
            shown = _title(run.experiment, bool(entry.lambdas))
            planned.setdefault(name, PlannedRun(path=str(runs / name), title=shown))
        for render in entry.renders:
            base = entry.name if len(entry.renders) == 1 else render.renderer
            if len(entries) > 1 and len(entry.renders) > 1:  # others may have a figure of this kind, too
                base = f"{entry.name}-{render.renderer}"
            if render.renderer == ATTACK_TABLE:
                items += _attack_tables(base, render.needs, compared)
            else:
                records = {name: _files(run, render.needs) for name, run in compared.items()}
                about = entry.title if len(entries) > 1 else ""
                items.append(PlannedItem(name=base, renderer=render.renderer, records=records, about=about))
    headline = next((item.name for item in items if item.renderer == ATTACK_TABLE), None)
    title_ = entries[0].title if len(entries) == 1 else f"{len(entries)} tables and figures"
    return Plan(title=title_, scale=request.scale, runs=planned, items=tuple(items), headline=headline)


def _files(run: RunPlan, needs: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for need in needs if run.has(need) for name in run.files(need)))


def _attack_tables(name: str, needs: Sequence[str], compared: dict[str, RunPlan]) -> list[PlannedItem]:
    """One table for each radius, that of training first; EOT with the number of models that the suite has."""
    every = {run: [cell for need in needs for cell in plan.cells(need)] for run, plan in compared.items()}
    radii = dict.fromkeys(cell.epsilon for of_run in every.values() for cell in of_run if cell.attack is not None)
    items = []
    for epsilon in radii:
        records = {
            run: tuple(
                dict.fromkeys(
                    cell.file_name
                    for cell in of_run
                    if cell.attack is None
                    or (cell.epsilon == epsilon and (cell.mode != "eot" or cell.n == compared[run].effort.n))
                )
            )
            for run, of_run in every.items()
        }
        items.append(
            PlannedItem(
                name=name if len(radii) == 1 else f"{name}-eps{epsilon:.6g}", renderer=ATTACK_TABLE, records=records
            )
        )
    return items


def _title(experiment: Experiment, with_lambda: bool) -> str:
    """The method's name; where several lambda are compared, with its own."""
    name = title(experiment.method)
    return f"{name}, λ = {experiment.lam:g}" if with_lambda and experiment.regularization else name
