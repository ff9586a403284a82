"""Accuracy under EOT-PGD against epsilon: the picture of what GradDiv does."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from graddiv.recipes import title as title_of
from graddiv.records import Summary
from graddiv.report import style
from graddiv.report.comparison import Comparison, ReportRun, curves, titles
from graddiv.report.figures.accuracy import (
    COLUMNS,
    DOT,
    GREY,
    PAPER,
    PAPERS,
    Points,
    against_epsilon,
    compared_at,
    percent,
    plot_accuracy,
    plot_papers,
    setting,
)
from graddiv.report.figures.common import draws, handle, legend_below, listed, looks, missing, panels, scale
from graddiv.report.output import Figure

STRONG: dict[str, Any] = {"linestyle": style.DOTTED, "linewidth": 1.3, "marker": "v", "markersize": 3}
"""The curves of the strong adversary: dotted."""

MARGIN = 0.2
"""Beside the curves, where the distance of two radii is 1."""

FEW = 3
"""Curves of the paper's that have a line of the legend each."""


@draws("accuracy-epsilon")
def accuracy_epsilon(comparison: Comparison) -> Figure:
    """Accuracy under EOT-PGD against epsilon, ours and the paper's."""
    swept = curves(comparison, "epsilon")
    if swept is None:
        raise missing(
            "accuracy-epsilon", "records of EOT-PGD for some epsilons", "sweep RUN --over epsilon --values 0.1,0.2,0.3"
        )
    figure, (axes,) = panels(1, 1, style.TWO_COLUMNS, 3.9)
    of_runs, radii = against_epsilon(comparison, swept)
    runs = [run for run, _ in of_runs]
    strong = curves(comparison, "epsilon", "SPGD")
    of_strong = {run.path: points for run, points in strong.of_runs} if strong else {}
    rows: list[tuple[object, ...]] = []
    papers: list[tuple[object, ...]] = []
    told: set[tuple[str, float | None]] = set()
    handles: list[Line2D] = []
    of_paper: list[Line2D] = []
    for (run, points), look, title in zip(of_runs, looks(runs), titles(runs), strict=True):
        handles.append(handle(look, title))
        rows += plot_accuracy(axes, run, look, points, radii)
        if (run.method, run.epsilon) not in told:  # once, where ours has it in several variants
            told.add((run.method, run.epsilon))
            n = swept.fixed["n"] if run.random else None
            theirs = [(x, y) for x, y in comparison.published(run).curve(run.method, "EOT-PGD", n) if x >= radii[0]]
            papers += plot_papers(axes, run, look, theirs)
            if theirs:
                of_paper.append(handle(look, f"{title_of(run.method)} in the paper", **PAPER))
                handles.append(of_paper[-1])
        if run.path in of_strong:
            rows += plot_strong(axes, run, look, of_strong[run.path])
            label = f"stronger attack (EOT-SPGD), {_trainings(of_strong[run.path])}"
            handles.append(handle(look, label, **STRONG))
    percent(axes, style.EPSILON)
    beyond = {x for each in axes.get_lines() for x in np.asarray(each.get_xdata()) if x > 1.01 * radii[-1]}
    _space_evenly(axes, [*radii, *sorted(beyond)], comparison.training_epsilons)
    trainings = {len(s.trainings) for _, points in of_runs for _, s in points if s.trainings}
    if trainings:
        handles.append(handle(GREY, "one training", **DOT))
    if len(of_paper) > FEW:
        handles = [*(each for each in handles if each not in of_paper), PAPERS]
    legend_below(figure, handles, 2)
    notes = ["Bands: 95 % intervals from the choice of test examples and from the draws."]
    if any(b - a != radii[1] - radii[0] for a, b in pairwise(radii)):
        notes.append("The radii that were run stand at equal distances.")
    if any({x for x, _ in points} != set(radii) for _, points in of_runs):
        notes.append("Sparse dots: across radii that were not run.")
    if trainings:
        notes.append(f"Lines: means over {listed(sorted(map(str, trainings)))} trainings, which are the dots.")
    if strong:
        notes.append(f"Dotted: EOT-SPGD with n = {strong.fixed['n']}, m = {strong.fixed['m']}.")
    if papers:
        notes.append(f"Dashed: the paper's values, at its own scale.{comparison.origin()}")
    return Figure(
        name="accuracy-epsilon",
        title="Accuracy under EOT-PGD against the perturbation bound",
        figure=figure,
        columns=COLUMNS,
        rows=(*rows, *papers),
        caption=f"{compared_at(swept, 'ε')} {' '.join(notes)} {scale(comparison, setting(swept))}",
    )


def plot_strong(
    axes: Axes, run: ReportRun, look: style.Look, points: Sequence[tuple[Any, Summary]]
) -> list[tuple[object, ...]]:
    """The curve of the strong adversary, in the method's colour; the points drawn."""
    rows = [(x, 100 * s.mean, 100 * s.interval.low, 100 * s.interval.high) for x, s in points]
    x, accuracy, *_ = zip(*rows, strict=True)
    axes.plot(x, accuracy, color=look.colour, **STRONG)
    return [(run.method, run.lam, "strong", *row) for row in rows]


def _trainings(points: Points) -> str:
    """Of how many trainings the points are means; fewer may have been attacked so than the method has."""
    count = max(1, *(len(s.trainings) for _, s in points))
    return f"{count} training{'s' if count > 1 else ''}"


def _space_evenly(axes: Axes, radii: Sequence[float], training: Sequence[float]) -> None:
    """The radii at equal distances, for most are run where accuracy falls; those of training have lines.

    If there is one radius of training, its multiples stand below the radii.
    """
    if len(radii) > 1:
        rank, radius = _ranks(radii)
        axes.set_xscale("function", functions=(rank, radius))
        axes.set_xlim(*radius(np.array([-MARGIN, len(radii) - 1 + MARGIN])))
    multiples = [""] * len(radii)
    if len(training) == 1:
        multiples = [f"\n×{round(x / training[0], 2):g}" if x else "\nclean" for x in radii]
        axes.set_xlabel(f"{style.EPSILON},\nand as a multiple of the radius of training")
    axes.set_xticks(radii, [f"{x:.3g}{multiple}" for x, multiple in zip(radii, multiples, strict=True)])
    for epsilon in training:
        axes.axvline(epsilon, color=style.GREY, linestyle=style.DOTTED, linewidth=0.9, zorder=0)


Map = Callable[[Float[np.ndarray, "..."]], Float[np.ndarray, "..."]]


def _ranks(radii: Sequence[float]) -> tuple[Map, Map]:
    """The first radius to 0, the second to 1 and so on, linear in between and just beyond; and back."""
    knots = [2 * radii[0] - radii[1], *radii, 2 * radii[-1] - radii[-2]]
    ranks = range(-1, len(radii) + 1)
    return lambda x: np.interp(x, knots, ranks), lambda rank: np.interp(rank, ranks, knots)
