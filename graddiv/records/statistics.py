"""Statistics of records: shares with their spread and interval, Totals, paired comparisons.

In the paper: docs/equations.md.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from graddiv.records.attack import AttackRecord


class Interval(NamedTuple):
    """Bounds of a 95 % confidence interval."""

    low: float
    high: float


Z = 1.959964
"""The 97.5 % quantile of the normal distribution."""


def wilson(successes: float, trials: int, z: float = Z) -> Interval:
    """(p + z^2/2N +- z sqrt(p(1-p)/N + z^2/4N^2)) / (1 + z^2/N): of a share p among N, never outside [0, 1]."""
    if trials == 0:
        return Interval(0.0, 1.0)
    p, w = successes / trials, z**2 / trials
    half = z * np.sqrt(p * (1 - p) / trials + w / (4 * trials))
    return Interval(max(0.0, float(p + w / 2 - half) / (1 + w)), min(1.0, float(p + w / 2 + half) / (1 + w)))


class Summary(NamedTuple):
    """A number of a table, and how far other draws, other test examples or another training might move it."""

    mean: float
    std: float
    """Over draws (ddof 1): each repeat of the attack is judged by two ensembles.  NaN if there is one verdict only."""
    repeats: int
    interval: Interval
    """Of the mean, at 95 %: from the choice of test examples and from the draws."""
    trainings: tuple[float, ...] = ()
    """The means of several trainings of one method, where the mean is over them; their spread is in no interval."""

    @property
    def training_std(self) -> float:
        """Over trainings (ddof 1); NaN with one."""
        return float(np.std(self.trainings, ddof=1)) if len(self.trainings) > 1 else float("nan")


def summary(verdicts: Sequence[Bool[np.ndarray, " b"]], repeats: int | None = None) -> Summary:
    """Mean and std over verdicts of the share of True; the interval adds the variances of examples and of draws.

    `repeats` is told where one repeat has several verdicts; otherwise each verdict is a repeat.
    """
    values = np.array([float(flags.mean()) for flags in verdicts])
    mean, examples = float(values.mean()), len(verdicts[0])
    std = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    of_draws = 0.0 if len(values) == 1 else Z * std / np.sqrt(len(values))
    low, high = wilson(mean * examples, examples)
    interval = Interval(
        max(0.0, mean - float(np.hypot(mean - low, of_draws))), min(1.0, mean + float(np.hypot(high - mean, of_draws)))
    )
    return Summary(mean, std, len(values) if repeats is None else repeats, interval)


def accuracy(records: Sequence[AttackRecord]) -> Summary:
    """The share of examples left right by one attack, over its repeats, each judged by both ensembles."""
    return summary([flags for r in records for flags in (r.correct, r.correct_again)], len(records))


def over_trainings(summaries: Sequence[Summary]) -> Summary:
    """Several trainings of one method as one number: the mean of their means, the spread of draws within them."""
    if len(summaries) == 1:
        return summaries[0]
    mean = float(np.mean([s.mean for s in summaries]))
    std = float(np.sqrt(np.mean([s.std**2 for s in summaries])))
    interval = Interval(*(float(bound) for bound in np.mean([s.interval for s in summaries], axis=0)))
    return Summary(mean, std, min(s.repeats for s in summaries), interval, tuple(s.mean for s in summaries))


def total(records: Iterable[AttackRecord]) -> list[Bool[np.ndarray, " b"]]:
    """AND over attacks: an example counts only if every one of them failed on it; for either ensemble of one repeat."""
    found = list(records)
    return [
        np.logical_and.reduce([record.correct for record in found]),
        np.logical_and.reduce([record.correct_again for record in found]),
    ]


def cross_fitted_total(records: Iterable[AttackRecord]) -> list[Bool[np.ndarray, " b"]]:
    """The verdict of one ensemble on the attack that did worst, example by example, on the other; and the reverse.

    Total takes a minimum over noisy verdicts and is biased downward; choosing and scoring apart removes that.
    """
    found = list(records)
    everyone = np.arange(len(found[0].correct))
    worst = np.stack([record.margin for record in found]).argmax(0)
    worst_again = np.stack([record.margin_again for record in found]).argmax(0)
    return [
        np.stack([record.correct_again for record in found])[worst, everyone],
        np.stack([record.correct for record in found])[worst_again, everyone],
    ]


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
    return [(value, accuracy(group)) for value, group in by_value(records, key).items()]
