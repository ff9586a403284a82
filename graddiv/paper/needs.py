"""What the needs of an entry are: the attacks and measurements behind each name."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from graddiv.attacks import ARC, FGSM, PGD, StochasticPGD
from graddiv.data import SOURCES
from graddiv.errors import GradDivError
from graddiv.evaluation import Cell, cells
from graddiv.evaluation.budget import Budget, with_geometry
from graddiv.evaluation.measurements import MEASUREMENTS, defined_in, l2_radius
from graddiv.experiment import Experiment
from graddiv.geometry import NORMS
from graddiv.paper.entries import Need
from graddiv.paper.published import STANDS_FOR
from graddiv.recipes import radius
from graddiv.runs import CHECKLIST

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
    """One run that an entry compares: what it trains, and at which radii it is attacked."""

    experiment: Experiment
    title: str
    budget: Budget
    judged_on: str | None = None  #: another data set than that of training, on whose test examples it is judged
    shipped: bool = False  #: whether it comes with the package, trained

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
        """The radii of curves over epsilon."""
        return [self.at(ratio) for ratio in RATIOS[self.papers_data][: self.budget.curve_radii]]

    def eot(
        self, epsilons: Sequence[float], n: int, *, m: int | None = None, fgsm: bool = False, repeats: int = 1
    ) -> list[Cell]:
        """EOT-PGD, and EOT-FGSM on request, at these radii; clean images with them."""
        attacks = [*([FGSM()] if fgsm else []), PGD(m=m or self.budget.m)]
        return cells(attacks, epsilons, modes=["eot"], n=n, repeats=repeats, random=self.experiment.random)

    def measured_at(self, need: str) -> float:
        """The radius of a measurement."""
        far = self.at(FAR.get(self.papers_data, 1.0))
        found = {"increase": far, "transfer": far, "gradient-noise": self.at(BEYOND)}.get(need, self.radius)
        return found if self.budget.norm == "linf" else l2_radius(found, self._pixels)

    def has(self, need: Need) -> bool:
        """Whether this can be measured of it: a deterministic network has no transfer between its sample models."""
        measurement = MEASUREMENTS.get(need.name)
        return self.experiment.random or measurement is None or not measurement.of_random_networks_only

    def cells(self, need: str) -> list[Cell]:
        """The attacks that a need is made of, in the norm of the budget."""
        found = ATTACKED[need](self)
        found = found if self.budget.norm == "linf" else [each for cell in found for each in self._in_l2(cell)]
        return list({cell.file_name: cell for cell in found}.values())

    def _in_l2(self, cell: Cell) -> list[Cell]:
        """The cell in an l_2 ball about as easy; none if its attack is not made for the norm."""
        if cell.attack is None:
            return [cell]
        epsilon = float(f"{l2_radius(cell.epsilon, self._pixels):.6g}")
        return [replace(cell, attack=each, epsilon=epsilon) for each in with_geometry([cell.attack], NORMS["l2"])]

    @property
    def _pixels(self) -> int:
        return math.prod(SOURCES[self.judged_on or self.experiment.data.name].shape)

    def files(self, *needs: Need) -> tuple[str, ...]:
        """The names of the records that needs are made of, below the run's records; none of what it has not."""
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
    adversary = run.experiment.adversary_of(run.experiment.schedule[-1])
    if adversary is None:
        return []
    attack = PGD(m=adversary.m, alpha=adversary.alpha, random_start=adversary.random_start)
    return cells([attack], [run.radius], modes=["eot"], n=adversary.n, random=run.experiment.random)


def _strong(run: ComparedRun, shares: Sequence[int] = (4,)) -> list[Cell]:
    """The strong adversary where the paper's two methods part, with quarters of the passes of the curve's."""
    passes = max(run.budget.curve_n) * run.budget.m
    attacks = [StochasticPGD(m=share * passes // STRONG_N // 4) for share in shares]
    epsilons = [run.at(ratio) for ratio in PARTING]
    return cells(attacks, epsilons, modes=["eot"], n=STRONG_N, random=run.experiment.random)


def _knowing(run: ComparedRun) -> list[Cell]:
    """At the radius of training, adversaries for diverse gradients: stochastic PGD, and ARC from model to model."""
    of_run: dict[str, Any] = {"modes": ["eot"], "repeats": run.budget.repeats, "random": run.experiment.random}
    steps = StochasticPGD(m=run.budget.n * run.budget.m // STRONG_N)
    one_by_one = ARC(m=run.budget.suite_m or run.budget.m // 2)
    return [
        *cells([steps], run.radius, n=STRONG_N, **of_run),
        *cells([one_by_one], run.radius, n=run.budget.n, **of_run),
    ]


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
