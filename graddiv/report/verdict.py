"""What GradDiv changed between two runs, both judged on the same examples; verdict.html.jinja says it in words."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from graddiv import records
from graddiv.records import AttackRecord, ConcentrationRecord, Flips
from graddiv.report.closeups import Grid
from graddiv.report.comparison import Comparison, ReportRun, is_eot

SIGNIFICANT = 0.05


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


class Verdict(NamedTuple):
    """What changed between a run and the same with GradDiv."""

    titles: tuple[str, str]
    grid: Grid
    labels: list[str]  #: Attacks that were run on both.
    robust: Paired | None
    clean: Paired | None
    rho: tuple[float | None, float | None]  #: Concentration of the gradients, debiased.
    lower: tuple[int, int, float] | None  #: On how many examples it is lower, of how many, and p; None: from the log.


def verdict(baseline: ReportRun, graddiv: ReportRun, grid: Grid) -> Verdict:
    """Compare two runs by the attacks of a grid, on clean images, and by the concentration of their gradients."""
    labels, runs = grid.labels(baseline, graddiv), (baseline, graddiv)
    robust, clean = (_paired(grid, baseline, graddiv, each) for each in (labels, ["clean"]))
    first, second = (run.measured(ConcentrationRecord) for run in runs)
    lower = None
    if first is not None and second is not None:
        _, a, b = np.intersect1d(first.ids, second.ids, return_indices=True)
        usable = first.usable[a] & second.usable[b]
        without, having = first.mean_cosine[a][usable], second.mean_cosine[b][usable]
        fallen, _, p = records.flips(having < without, without < having)
        lower = fallen, len(without), p
    rho = _rho(baseline, first), _rho(graddiv, second)
    return Verdict((baseline.title, graddiv.title), grid, labels, robust, clean, rho, lower)


def _rho(run: ReportRun, measured: ConcentrationRecord | None) -> float | None:
    """sqrt(max(0, mean cosine)): the concentration without the bias of a finite n; the training log's if need be."""
    if measured is not None:
        return math.sqrt(max(0.0, float(measured.mean_cosine[measured.usable].mean())))
    logged = run.epochs[-1].get("R_mean") if run.epochs else None
    return None if logged is None else math.sqrt(max(0.0, logged))


def crossing(curve: Comparison) -> dict[str, Any] | None:
    """What GradDiv changes under EOT-PGD at the radius of training and beyond it: of the first pair, over trainings."""
    if curve.pair is None:
        return None
    trained_at, other = (run.epsilon for run in curve.pair)
    if not trained_at or trained_at != other:
        return None
    baseline, graddiv = ([each for each in curve.runs if each.title == run.title] for run in curve.pair)
    curves = [(run, [r for r in run.attacks if is_eot(run, r, "PGD")]) for run in (*baseline, *graddiv)]
    found = {run: records.by_value(group, "epsilon") for run, group in curves}
    radii = sorted(set.intersection(*(set(of_run) for of_run in found.values())))
    beyond = [epsilon for epsilon in radii if epsilon > trained_at * (1 + 1e-9)]
    if trained_at not in radii or not beyond:
        return None

    def at(runs: Sequence[ReportRun], epsilon: float) -> Float[np.ndarray, " b"]:
        verdicts = [flags for run in runs for r in found[run][epsilon] for flags in (r.correct, r.correct_again)]
        return np.asarray(np.mean(verdicts, axis=0))

    pairs = {epsilon: Paired(at(baseline, epsilon), at(graddiv, epsilon)) for epsilon in (trained_at, *beyond)}
    far = max(beyond, key=lambda epsilon: abs(pairs[epsilon].points))
    trainings = len(baseline) if len(baseline) == len(graddiv) else 0  # told only where both have as many
    compared = {"titles": [run.title for run in curve.pair], "trainings": trainings, "pairs": pairs}
    return {**compared, "trained_at": trained_at, "far": far}


def _paired(grid: Grid, baseline: ReportRun, graddiv: ReportRun, labels: Sequence[str]) -> Paired | None:
    """The cross-fitted Total over these attacks of the examples that both runs were judged on."""
    of_runs = [[r for label in labels for r in grid.of(run, label)] for run in (baseline, graddiv)]
    first, second = (_held(found, len(labels)) for found in of_runs)
    if first is None or second is None or first[0].data != second[0].data:
        return None
    _, a, b = np.intersect1d(first[0].ids, second[0].ids, return_indices=True)
    return Paired(first[1][a], second[1][b]) if len(a) else None


def _held(found: Sequence[AttackRecord], attacks: int) -> tuple[AttackRecord, Float[np.ndarray, " b"]] | None:
    """A record, and the share of verdicts for each of its examples, over repeats that have all attacks."""
    whole = [group for group in records.by_value(found, "repeat").values() if len(group) == attacks]
    if not whole:
        return None
    verdicts = [flags for group in whole for flags in records.cross_fitted_total(group)]
    return whole[0][0], np.mean(verdicts, axis=0)
