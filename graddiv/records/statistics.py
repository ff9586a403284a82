"""Statistics of records: shares with their spread and interval, Totals, paired comparisons."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from graddiv.records.attack import AttackRecord


class Interval(NamedTuple):
    """Bounds of a 95 % confidence interval."""

    low: float
    high: float


def wilson(successes: float, trials: int, z: float = 1.959964) -> Interval:
    """(p + z^2/2N +- z sqrt(p(1-p)/N + z^2/4N^2)) / (1 + z^2/N): of a share p among N, never outside [0, 1]."""
    if trials == 0:
        return Interval(0.0, 1.0)
    p, w = successes / trials, z**2 / trials
    half = z * np.sqrt(p * (1 - p) / trials + w / (4 * trials))
    return Interval(max(0.0, float(p + w / 2 - half) / (1 + w)), min(1.0, float(p + w / 2 + half) / (1 + w)))


class Summary(NamedTuple):
    """A number of a table: over repeats with independent draws, and how far another test set might move it."""

    mean: float
    std: float
    """Over repeats (ddof 1); NaN with one repeat."""
    repeats: int
    interval: Interval
    """Of the mean, from the choice of test examples."""


def summary(per_repeat: Sequence[Bool[np.ndarray, " b"]]) -> Summary:
    """Mean and std over repeats of the share of True, and the interval from the number of examples."""
    values = np.array([float(flags.mean()) for flags in per_repeat])
    std = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    examples = len(per_repeat[0])
    return Summary(float(values.mean()), std, len(values), wilson(float(values.mean()) * examples, examples))


def total(records: Iterable[AttackRecord]) -> Bool[np.ndarray, " b"]:
    """AND over attacks: an example counts only if every one of them failed on it, within one repeat."""
    every: np.ndarray = np.logical_and.reduce([record.correct for record in records])
    return every


def cross_fitted_total(records: Iterable[AttackRecord]) -> Bool[np.ndarray, " b"]:
    """The verdict of one ensemble on the attack that did worst, example by example, on another; so no chance is mined.

    Total takes a minimum over noisy verdicts and is biased downward; choosing and scoring apart removes that.
    """
    chosen = list(records)
    worst = np.stack([record.margin for record in chosen]).argmax(0)
    verdicts: np.ndarray = np.stack([record.correct_again for record in chosen])[worst, np.arange(len(worst))]
    return verdicts


class Flips(NamedTuple):
    """Examples on which two evaluations disagree."""

    lost: int
    """Right in the first, wrong in the second."""
    won: int
    p: float
    """Two-sided sign test: chance alone giving flips at least as one-sided."""


def flips(first: Bool[np.ndarray, " b"], second: Bool[np.ndarray, " b"]) -> Flips:
    """Paired comparison on the same examples (McNemar's exact test), which overlapping intervals are not."""
    from scipy.stats import binomtest

    lost, won = int((first & ~second).sum()), int((~first & second).sum())
    return Flips(lost, won, float(binomtest(lost, lost + won).pvalue) if lost + won else 1.0)


def by_value(records: Iterable[AttackRecord], key: str) -> dict[Any, list[AttackRecord]]:
    """Records grouped by one of their settings, in its order."""
    groups: dict[Any, list[AttackRecord]] = {}
    for record in records:
        groups.setdefault(record.value(key), []).append(record)
    return dict(sorted(groups.items()))


def curve(records: Iterable[AttackRecord], key: str) -> list[tuple[Any, Summary]]:
    """Accuracy against one of the settings: epsilon, n, m, restarts, lam."""
    return [(value, summary([r.correct for r in group])) for value, group in by_value(records, key).items()]
