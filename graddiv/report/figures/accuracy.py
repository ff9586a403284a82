"""Accuracy under EOT-PGD: against lambda, for each regularizer, and what its other figures share."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from graddiv.records import Summary
from graddiv.report import style
from graddiv.report.comparison import Comparison, Curves, ReportRun, curves, titles
from graddiv.report.figures.common import (
    draws,
    handle,
    legend_below,
    listed,
    looks,
    missing,
    pair,
    panels,
    scale,
)
from graddiv.report.figures.training import MEASURES, ended, plot_measure, turn_handles
from graddiv.report.output import Figure

COLUMNS = ("method", "lam", "whose", "x", "accuracy", "low", "high")
PAPER: dict[str, Any] = {
    "linestyle": style.DASHED,
    "linewidth": 1.0,
    "markerfacecolor": "white",
    "markersize": 3,
    "alpha": 0.8,
    "zorder": 2.5,
}
"""The paper's curves: thin and dashed, with hollow markers; above ours, whose thicker lines would hide them."""

DOT: dict[str, Any] = {"marker": "o", "markersize": 2, "alpha": 0.5, "linestyle": "none"}
"""One of several trainings."""

NOT_RUN: dict[str, Any] = {"linestyle": (0, (1, 4)), "linewidth": 0.9}
"""Across a value that other curves have and this one lacks: sparse dots, without a band."""

Points = Sequence[tuple[Any, Summary]]


def plot_accuracy(
    axes: Axes, run: ReportRun, look: style.Look, points: Points, others: Iterable[Any] = ()
) -> list[tuple[object, ...]]:
    """A curve of ours with its band of 95 % intervals, and a dot for each of several trainings; the points drawn.

    others: where other curves of the figure have points; where this one has none in between, it is only hinted at.
    """
    rows = [(x, 100 * s.mean, 100 * s.interval.low, 100 * s.interval.high) for x, s in points]
    dots = [(x, 100 * mean) for x, s in points for mean in s.trainings]
    for at, mean in dots:
        axes.plot([at], [mean], color=look.colour, **DOT)
    parts = stretches(rows, others)
    for before, after in pairwise(parts):
        (x, accuracy), (next_x, next_accuracy) = before[-1][:2], after[0][:2]
        axes.plot([x, next_x], [accuracy, next_accuracy], color=look.colour, **NOT_RUN)
    for part in parts:
        x, accuracy, low, high = zip(*part, strict=True)
        axes.plot(x, accuracy, color=look.colour, marker=look.marker, linestyle=look.dash)
        axes.fill_between(x, low, high, color=look.colour, alpha=0.13, linewidth=0)
    return [
        *((run.method, run.lam, "ours", *row) for row in rows),
        *((run.method, run.lam, "one training", x, mean, "", "") for x, mean in dots),
    ]


def stretches(rows: Sequence[tuple[Any, ...]], others: Iterable[Any]) -> list[list[tuple[Any, ...]]]:
    """The points of a curve, apart where others have a value between two of them: there nothing was measured."""
    found = [[rows[0]]]
    for before, row in pairwise(rows):
        if any(before[0] < x < row[0] for x in others):
            found.append([])
        found[-1].append(row)
    return found


def plot_papers(
    axes: Axes, run: ReportRun, look: style.Look, points: Sequence[tuple[Any, float]]
) -> list[tuple[object, ...]]:
    """A curve of the paper's; the points drawn."""
    if points:
        x, accuracy = zip(*points, strict=True)
        axes.plot(x, accuracy, color=look.colour, marker=look.marker, **PAPER)
    return [(run.method, "", "paper", x, accuracy, "", "") for x, accuracy in points]


GREY = style.Look(style.GREY, "o", style.DASHED)
"""Of an entry of the legend that stands for curves of several colours."""

PAPERS = handle(GREY, "the paper's values, in the method's colour", **PAPER)


def legend(runs: Sequence[ReportRun], run_looks: Sequence[style.Look], papers: bool) -> list[Line2D]:
    """What stands for each run, and for the paper's values."""
    handles = [handle(look, title) for look, title in zip(run_looks, titles(runs), strict=True)]
    return [*handles, *([PAPERS] if papers else [])]


def setting(swept: Curves) -> str:
    """The settings that all points share."""
    letters = {"epsilon": "ε", "n": "n", "m": "m"}
    parts = [f"{letter} = {swept.fixed[key]:.4g}" for key, letter in letters.items() if key in swept.fixed]
    return ", ".join([*parts, f"{swept.fixed['examples']} test examples"])


@draws("lambda-sensitivity")
def lambda_sensitivity(comparison: Comparison) -> Figure:
    """Accuracy and concentration against lambda, over runs that differ in it."""
    compared = pair(comparison)
    base = (compared[1] if compared else comparison.runs[-1]).method.split("+")[0]
    runs = sorted((run for run in comparison.runs if run.method.split("+")[0] == base), key=lambda run: run.lam)
    swept = curves(comparison.of(runs), "epsilon")
    if len({run.lam for run in runs}) < 2 or swept is None:
        raise missing(
            "lambda-sensitivity",
            "records of EOT-PGD of runs with different graddiv.lam",
            "sweep RUN RUN --over lam",
        )
    figure, (left, right) = panels(1, 2, style.TWO_COLUMNS, 2.8)
    by_lam = [(run, dict(from_clean(comparison, run, points))) for run, points in swept.of_runs]
    found = [set(points) for _, points in by_lam]
    epsilons = _spread(
        sorted(set.intersection(*found) or set.union(*found)), 5
    )  # where all can be compared, if anywhere
    colours = matplotlib.colormaps["cividis"](np.linspace(0, 0.75, len(epsilons)))
    rows: list[tuple[object, ...]] = []
    for epsilon, colour, marker in zip(epsilons, colours, "osD^v", strict=False):
        there = [(run, points[epsilon]) for run, points in by_lam if epsilon in points]
        shown = [(run.lam, 100 * s.mean, 100 * s.interval.low, 100 * s.interval.high) for run, s in there]
        lam, accuracy, low, high = zip(*shown, strict=True)
        label = "clean" if epsilon == 0 else f"ε = {epsilon:.4g}"
        left.plot(lam, accuracy, color=colour, marker=marker, label=label)
        left.fill_between(lam, low, high, color=colour, alpha=0.13, linewidth=0)
        rows += [("accuracy", epsilon, *row) for row in shown]
    percent(left, "weight λ of GradDiv")
    rho = [(run.lam, line["rho"]) for run, _ in by_lam for line in run.epochs[-1:] if "rho" in line]
    right.plot(*zip(*rho, strict=True), color=style.BLACK, marker="o")
    right.set(xlabel="weight λ of GradDiv", ylabel="debiased MRL ρ after training", ylim=(0, None))
    rows += [("rho", "", lam, value, "", "") for lam, value in rho]
    figure.legend(loc="outside lower center", ncols=len(epsilons))
    lowest, highest = rho[0], rho[-1]
    last = epsilons[-1]
    accuracies = [f"{100 * points[last].mean:.1f} % at λ = {run.lam:g}" for run, points in by_lam if last in points]
    return Figure(
        name="lambda-sensitivity",
        title="Sensitivity to the weight of GradDiv",
        figure=figure,
        columns=("quantity", "epsilon", "lam", "value", "low", "high"),
        rows=tuple(rows),
        caption=(
            f"From λ = {lowest[0]:g} to λ = {highest[0]:g} the debiased MRL goes from {lowest[1]:.2f} to "
            f"{highest[1]:.2f}; accuracy under EOT-PGD at ε = {last:.4g} is {listed(accuracies)}. "
            f"{scale(comparison, setting(swept))}"
        ),
    )


@draws("regularizers")
def regularizers(comparison: Comparison) -> Figure:
    """The five regularizers: concentration during training, and accuracy under EOT-PGD against epsilon."""
    variants = [run for run in comparison.runs if "+graddiv-" in run.method]
    if not variants:
        raise missing(
            "regularizers",
            "runs of the variants such as adv-bnn+graddiv-dpp",
            f"train {comparison.data}/adv-bnn+graddiv-dpp",
        )
    base = variants[0].method.split("+")[0]
    runs = [run for run in comparison.runs if run.method == base or run in variants]
    swept = curves(comparison.of(runs), "epsilon")
    if swept is None:
        raise missing(
            "regularizers", "records of EOT-PGD for some epsilons", "sweep RUN --over epsilon --values 0.1,0.2,0.3"
        )
    figure, axes = panels(2, 3, style.TWO_COLUMNS, 4.4)
    run_looks = looks(runs)
    rows: list[tuple[object, ...]] = []
    for ax, measure in zip(axes, MEASURES, strict=False):
        rows += [(*row[:3], *row[3:], "", "") for row in plot_measure(ax, runs, run_looks, measure)]
    of_run = dict(zip([run.path for run in runs], run_looks, strict=True))
    by_run, radii = against_epsilon(comparison, swept)
    for run, points in by_run:
        drawn = plot_accuracy(axes[-1], run, of_run[run.path], points, radii)
        rows += [(method, lam, "accuracy", *values) for method, lam, _, *values in drawn]
    percent(axes[-1], r"perturbation bound ε ($\ell_\infty$)")
    handles = [handle(look, title) for look, title in zip(run_looks, titles(runs), strict=True)]
    legend_below(figure, [*handles, *turn_handles(runs)], 3)
    return Figure(
        name="regularizers",
        title="The regularizers compared",
        figure=figure,
        columns=("method", "lam", "measure", "x", "value", "low", "high"),
        rows=tuple(rows),
        caption=(
            f"{ended(comparison.of(()), runs, ('R_mean',))} {compared_at(swept, 'ε')} "
            f"{scale(comparison, setting(swept))}"
        ),
    )


def from_clean(comparison: Comparison, run: ReportRun, points: Points, at: float | int = 0.0) -> Points:
    """The curve from the accuracy without an attack on, where that was measured."""
    clean = comparison.clean(run)
    return [(at, clean), *points] if clean is not None else points


def against_epsilon(comparison: Comparison, swept: Curves) -> tuple[list[tuple[ReportRun, Points]], list[float]]:
    """Curves from the accuracy without an attack on, and the radii that they have among them.

    Where all begin at the radius of training, or beyond it, they begin there: nothing was measured on the way from 0.
    """
    attacked = sorted({x for _, points in swept.of_runs for x, _ in points})
    if len(attacked) > 1 and comparison.training_epsilons and comparison.training_epsilons[-1] <= attacked[0]:
        return list(swept.of_runs), attacked
    found = [(run, from_clean(comparison, run, points)) for run, points in swept.of_runs]
    return found, sorted({x for _, points in found for x, _ in points})


def percent(axes: Axes, label: str) -> None:
    """Accuracy upwards, from 0 to 100 %."""
    axes.set(xlabel=label, ylabel=style.ACCURACY, ylim=(-2, 102))


def _spread(values: list[float], most: int) -> list[float]:
    """At most so many of them, the first and the last included."""
    return [values[i] for i in sorted({round(i) for i in np.linspace(0, len(values) - 1, most)})]


def compared_at(swept: Curves, vary: str) -> str:
    """The accuracies at the last value that all runs have, from the lowest to the highest."""
    runs = [run for run, _ in swept.of_runs]
    shared = set.intersection(*({x for x, _ in points} for _, points in swept.of_runs))
    if not shared:
        return "No value was run for all methods."
    x = max(shared)
    found = sorted(
        (dict(points)[x].mean, title) for (_, points), title in zip(swept.of_runs, titles(runs), strict=True)
    )
    return f"At {vary} = {x:.4g}: {listed([f'{title} {100 * mean:.1f} %' for mean, title in found])}."
