"""What GradDiv changed between two runs: both judged on the same examples, and in words how sure it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64

from graddiv import records
from graddiv.records import AttackRecord, ConcentrationRecord, DataIdentity, Flips
from graddiv.report.comparison import ReportRun, is_eot
from graddiv.report.grids import Grid
from graddiv.report.texts import bound, p_value, percent, signed

SIGNIFICANT = 0.05
SPREAD = 0.9
"""Below this ratio of concentrations the gradients count as spread."""


class Change(NamedTuple):
    """One quantity without and with GradDiv, and how sure it is that they differ."""

    name: str
    before: str
    after: str
    change: str
    sure: str


@dataclass(frozen=True)
class Verdict:
    """What changed between a run and the same with GradDiv, by how much, and how sure."""

    title: str
    headline: str
    sentences: list[str]
    changes: list[Change]


class Paired(NamedTuple):
    """Two runs on the same examples: shares of verdicts, over repeats and ensembles, in which each was right."""

    before: Float[np.ndarray, " b"]
    after: Float[np.ndarray, " b"]

    @property
    def points(self) -> float:
        """The difference in percentage points."""
        return 100 * float(self.after.mean() - self.before.mean())

    @property
    def flips(self) -> Flips:
        """Examples that went one way or the other, repeats taken together so that each example counts once."""
        return records.flips(self.before > self.after, self.after > self.before)

    @property
    def clear(self) -> bool:
        """Whether chance alone would rarely do this, and most examples went the way of the mean."""
        lost, won, p = self.flips
        return p < SIGNIFICANT and (won > lost) == (self.points > 0)


def verdict(baseline: ReportRun, graddiv: ReportRun, grid: Grid) -> Verdict:
    """In words that follow from the numbers, whichever way they fall."""
    labels = grid.labels(baseline, graddiv)
    robust = _paired(grid, baseline, graddiv, labels)
    clean = _paired(grid, baseline, graddiv, ["clean"])
    rhos = _rho(baseline), _rho(graddiv)
    changes, sentences = [], []
    if robust is not None:
        n = f", n = {grid.n}" if grid.n else ""
        changes.append(_accuracy_change(f"Robust accuracy at ε = {bound(grid.epsilon)}", robust))
        over = f"cross-fitted Total over {len(labels)} attacks" if len(labels) > 1 else f"under {labels[0]}"
        sentences.append(
            f"On the same {len(robust.before)} test examples of {baseline.data}, at ε = {bound(grid.epsilon)}{n}, "
            f"{baseline.title} keeps {changes[0].before} and {graddiv.title} {changes[0].after} ({over}). "
            + _weighed(robust)
        )
    if clean is not None:
        changes.append(_accuracy_change("Clean accuracy", clean))
    if rhos[0] is not None and rhos[1] is not None:
        changes.append(_rho_change(baseline, graddiv, rhos[0], rhos[1]))
    return Verdict(graddiv.title, headline(rhos, robust), sentences, changes)


class Crossing(NamedTuple):
    """What GradDiv changes at the radius of training, and beyond it where it changes most."""

    headline: str
    sentence: str


def crossing(baseline: Sequence[ReportRun], graddiv: Sequence[ReportRun], trained_at: float) -> Crossing | None:
    """The curves of EOT-PGD over epsilon of a pair of methods in words, each the mean of its trainings.

    None where they do not reach beyond the radius of training.
    """
    radii = sorted(set.intersection(*({r.epsilon for r in _eot_pgd(run)} for run in (*baseline, *graddiv))))
    beyond = [epsilon for epsilon in radii if epsilon > trained_at * (1 + 1e-9)]
    if trained_at not in radii or not beyond:
        return None
    there = {epsilon: _paired_at(baseline, graddiv, epsilon) for epsilon in (trained_at, *beyond)}
    far = max(beyond, key=lambda epsilon: abs(there[epsilon].points))
    near, away = there[trained_at], there[far]
    headline = (
        f"At the radius of training GradDiv {_moves(near)}; at {far / trained_at:.2f} times it, it {_moves(away)}"
    )
    parts = [
        f"{bound(epsilon)}: {percent(pair.before.mean())} → {percent(pair.after.mean())} %"
        for epsilon, pair in there.items()
    ]
    trainings = {len(baseline), len(graddiv)}
    means = f", means over {max(trainings)} trainings" if trainings == {max(trainings)} != {1} else ""
    titles = f"{baseline[0].title} to {graddiv[0].title}"
    return Crossing(headline, f"Accuracy under EOT-PGD from {titles}{means}, at ε = {', '.join(parts)}.")


def _moves(pair: Paired) -> str:
    size = f"{abs(pair.points):.1f} points"
    if not pair.clear:
        return f"changes accuracy by {signed(pair.points)} points, which chance can explain"
    return f"gains {size}" if pair.points > 0 else f"costs {size}"


def _paired_at(baseline: Sequence[ReportRun], graddiv: Sequence[ReportRun], epsilon: float) -> Paired:
    """Both methods at one radius, on the same examples."""
    shares = []
    for runs in (baseline, graddiv):
        found = [r for run in runs for r in _eot_pgd(run) if r.epsilon == epsilon]
        shares.append(np.mean([flags for r in found for flags in (r.correct, r.correct_again)], axis=0))
    return Paired(*shares)


def _eot_pgd(run: ReportRun) -> list[AttackRecord]:
    return [record for record in run.attacks if is_eot(run, record, "PGD")]


def _paired(grid: Grid, baseline: ReportRun, graddiv: ReportRun, labels: Sequence[str]) -> Paired | None:
    """The cross-fitted Total over these attacks of the examples that both runs were judged on."""
    first, second = _held(grid, baseline, labels), _held(grid, graddiv, labels)
    if first is None or second is None or first.data != second.data:
        return None
    _, a, b = np.intersect1d(first.ids, second.ids, return_indices=True)
    return Paired(first.shares[a], second.shares[b]) if len(a) else None


class Held(NamedTuple):
    """Examples, and the share of verdicts, over repeats and ensembles, in which each stood up to some attacks."""

    data: DataIdentity
    ids: Int64[np.ndarray, " b"]
    shares: Float[np.ndarray, " b"]


def _held(grid: Grid, run: ReportRun, labels: Sequence[str]) -> Held | None:
    """Over repeats in which all of them were run."""
    by_repeat = records.by_value([r for label in labels for r in grid.of(run, label)], "repeat")
    whole = [group for group in by_repeat.values() if len(group) == len(labels)]
    if not whole:
        return None
    verdicts = [
        flags
        for group in whole
        for flags in (
            records.cross_fitted_total(group) if len(group) > 1 else [group[0].correct, group[0].correct_again]
        )
    ]
    return Held(whole[0][0].data, whole[0][0].ids, np.mean(verdicts, axis=0))


def _accuracy_change(name: str, paired: Paired) -> Change:
    lost, won, p = paired.flips
    change = f"{signed(paired.points)} points"
    counts = f"{won} example{'' if won == 1 else 's'} won, {lost} lost; {p_value(p)}"
    sure = counts if won + lost else "no example changed sides"
    return Change(name, f"{percent(paired.before.mean())} %", f"{percent(paired.after.mean())} %", change, sure)


def _weighed(paired: Paired) -> str:
    lost, won, p = paired.flips
    if lost + won == 0:
        return "Not one example changed sides."
    counts = f"GradDiv wins {won} and loses {lost} of them"
    if paired.clear:
        return f"{counts}: more than chance explains (sign test, {p_value(p)})."
    return (
        f"{counts}: chance alone can do this (sign test, {p_value(p)}), so this comparison does not tell the two apart."
    )


def _rho(run: ReportRun) -> float | None:
    """sqrt(max(0, mean cosine)): the concentration without the bias of a finite n; the training log's if need be."""
    measured = run.measured(ConcentrationRecord)
    if measured is not None:
        cosine = float(measured.mean_cosine[measured.usable].mean())
    elif run.epochs and "R_mean" in run.epochs[-1]:
        cosine = run.epochs[-1]["R_mean"]
    else:
        return None
    return math.sqrt(max(0.0, cosine))


def _rho_change(baseline: ReportRun, graddiv: ReportRun, before: float, after: float) -> Change:
    first, second = (run.measured(ConcentrationRecord) for run in (baseline, graddiv))
    if first is not None and second is not None:
        _, a, b = np.intersect1d(first.ids, second.ids, return_indices=True)
        usable: Bool[np.ndarray, " b"] = first.usable[a] & second.usable[b]
        without, having = first.mean_cosine[a][usable], second.mean_cosine[b][usable]
        lower, _, p = records.flips(having < without, without < having)
        sure = f"lower on {lower} of {len(without)} examples; {p_value(p)}"
    else:
        sure = "from the last epoch of the training log"
    change = f"{signed(100 * (after / before - 1), 0)} %" if before else ""
    return Change("Gradient concentration ρ, debiased", f"{before:.2f}", f"{after:.2f}", change, sure)


def headline(rhos: tuple[float | None, float | None], robust: Paired | None) -> str:
    """What happened to the gradients, and what became of it."""
    before, after = rhos
    if not before or after is None:
        return f"With GradDiv, {_outcome(robust)}" if robust else "Nothing was measured on both runs"
    scattered = _scattered(before, after)
    if robust is None:
        return f"{scattered}; no attack was run on both"
    as_hoped = robust.clear and (after < SPREAD * before) == (robust.points > 0)
    return f"{scattered}, {'and' if as_hoped else 'but'} {_outcome(robust)}"


def _outcome(robust: Paired) -> str:
    if robust.clear:
        return f"robust accuracy {'rises' if robust.points > 0 else 'falls'} by {abs(robust.points):.1f} points"
    return f"robust accuracy moves by {signed(robust.points)} points, which chance can explain"


def _scattered(before: float, after: float) -> str:
    if after > before / SPREAD:
        return "With GradDiv the gradients are more concentrated"
    if after > SPREAD * before:
        return "GradDiv leaves the gradients about as concentrated as they were"
    return f"GradDiv {'more than halves the concentration of' if after < before / 2 else 'spreads'} the gradients"
