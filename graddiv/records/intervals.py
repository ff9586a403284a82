"""Intervals of accuracies, and how records and tables show them."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool


class Interval(NamedTuple):
    """Bounds of a 95 % confidence interval."""

    low: float
    high: float


Z = 1.959964  #: The 97.5 % quantile of the normal distribution.


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
    std: float  #: Over draws (ddof 1), two ensembles for each repeat; NaN if there is one verdict only.
    repeats: int
    interval: Interval  #: 95 % interval of the mean: from the choice of test examples and from the draws.
    trainings: tuple[float, ...] = ()  #: The means of several trainings, where the mean is over them.

    @property
    def training_std(self) -> float:
        """Over trainings (ddof 1); NaN with one."""
        return float(np.std(self.trainings, ddof=1)) if len(self.trainings) > 1 else float("nan")


def summary(verdicts: Sequence[Bool[np.ndarray, " b"]], repeats: int | None = None) -> Summary:
    """Mean and std over verdicts of the share of True; the interval adds the variances of examples and of draws.

    `repeats` is given where one repeat has several verdicts; otherwise each verdict is a repeat.
    """
    values = np.array([float(flags.mean()) for flags in verdicts])
    mean, examples = float(values.mean()), len(verdicts[0])
    std = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    of_draws = 0.0 if len(values) == 1 else Z * std / np.sqrt(len(values))
    below, above = (float(np.hypot(mean - end, of_draws)) for end in wilson(mean * examples, examples))
    interval = Interval(max(0.0, mean - below), min(1.0, mean + above))
    return Summary(mean, std, len(values) if repeats is None else repeats, interval)


def html_table(rows: Iterable[Sequence[str]]) -> str:
    """A table of texts for notebooks."""
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def median(values: np.ndarray) -> str:
    """The median of those that are not NaN, as text."""
    return f"{float(np.nanmedian(values)):.4g}"
