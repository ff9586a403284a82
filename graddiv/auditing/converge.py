"""Is the attack long enough?  Its draws, steps and restarts are doubled until that gains too little to matter.

"Stops helping" is a claim of equivalence: not that no difference was found, but that the upper bound of the gain lies
below a tolerance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from graddiv.auditing.budget import Budget
from graddiv.auditing.numbers import gain_bound
from graddiv.evaluation import Cell
from graddiv.evaluation.verdicts import Item, Outcome
from graddiv.records import AttackRecord

Run = Callable[[Sequence[Cell]], list[AttackRecord]]
"""Carries cells out."""


class Doubling(NamedTuple):
    """One setting of the attack doubled, the others as they were."""

    setting: str
    """n, m or restarts."""
    before: int
    after: int
    accuracy_before: float
    accuracy_after: float
    gain: float
    bound: float
    """Upper bound of the gain, at the level of one look."""


@dataclass(frozen=True)
class Convergence:
    """All looks, and whether the last one was enough."""

    budget: Budget
    attack: str
    examples: int
    looks: tuple[tuple[Doubling, ...], ...]
    records: tuple[AttackRecord, ...]

    @property
    def bound(self) -> float:
        """The greatest upper bound of the last look."""
        return max(doubling.bound for doubling in self.looks[-1])

    @property
    def met(self) -> bool:
        """Whether a doubled budget gains less than the tolerance."""
        return self.bound <= self.budget.tolerance

    def item(self) -> Item:
        """The verdict on it."""
        tolerance = f"{100 * self.budget.tolerance:.3g} points"
        gains = ", ".join(f"{d.setting} {d.before} to {d.after}: {100 * d.gain:+.1f}" for d in self.looks[-1])
        said = f"doubling {self.attack} once more gains at most {100 * self.bound:.1f} points ({gains})"
        evidence: dict[str, Any] = {
            "tolerance": self.budget.tolerance,
            "level": self.budget.level,
            "images_needed": self.budget.images_needed,
            "doublings": [{"look": i + 1, **d._asdict()} for i, look in enumerate(self.looks) for d in look],
        }
        verdict: Outcome = "pass"
        if self.examples < self.budget.images_needed:
            verdict = "not enough evidence"
            said += f"; {self.examples} images cannot show less than {tolerance}, {self.budget.images_needed} could"
        elif not self.met:
            settled = max(d.gain for d in self.looks[-1]) <= self.budget.tolerance
            verdict = "not enough evidence" if settled else "fail"
            said += f", more than the tolerance of {tolerance} after {len(self.looks)} of {self.budget.looks} looks"
        return Item("a doubled budget gains nothing that matters", verdict, said, evidence)


def converge(start: Cell, first: AttackRecord, run: Run, budget: Budget, random: bool) -> Convergence:
    """Double each setting by itself and go on with the one that gains most, until none does, or all looks are used.

    start, first: the attack to begin with, and its record.
    run: carries attacks out.
    random: whether the network is, so that draws can be doubled at all.
    """
    cell, record, made, looks = start, first, [first], []
    settings = (*(("n",) if random else ()), "m", "restarts")
    for _ in range(budget.looks):
        longer = {setting: doubled(cell, setting) for setting in settings}
        found = dict(zip(longer, run(list(longer.values())), strict=True))
        made += found.values()
        looks.append(tuple(_compared(setting, record, found[setting], budget) for setting in settings))
        if all(d.bound <= budget.tolerance for d in looks[-1]) or first.examples < budget.images_needed:
            break
        most = max(looks[-1], key=lambda d: d.gain).setting
        cell, record = longer[most], found[most]
    return Convergence(budget, first.label, first.examples, tuple(looks), tuple(made))


def doubled(cell: Cell, setting: str) -> Cell:
    """The same with twice the draws, steps or restarts."""
    if setting == "n":
        return replace(cell, n=2 * cell.n, mode="eot")
    assert cell.attack is not None
    return replace(cell, attack=replace(cell.attack, **{setting: 2 * getattr(cell.attack, setting)}))


def _compared(setting: str, shorter: AttackRecord, longer: AttackRecord, budget: Budget) -> Doubling:
    verdicts = [(r.correct, r.correct_again) for r in (shorter, longer)]
    gain, bound = gain_bound(verdicts[0], verdicts[1], budget.level)
    before, after = (int(r.value(setting)) for r in (shorter, longer))
    accuracies = [float((a.mean() + b.mean()) / 2) for a, b in verdicts]
    return Doubling(setting, before, after, accuracies[0], accuracies[1], gain, bound)
