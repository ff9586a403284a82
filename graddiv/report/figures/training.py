"""Concentration of gradients during training."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from graddiv.report import style
from graddiv.report.comparison import Comparison, ReportRun, titles
from graddiv.report.figures.common import (
    change,
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
from graddiv.report.output import Figure

MEASURES = {
    "R_kappa": r"$R_\kappa$ (estimated κ over p)",
    "R_mean": r"$R_\mathrm{mean}$ (mean cosine)",
    "R_dpp": r"$R_\mathrm{DPP}$ (−log det of cosines)",
    "R_max": r"$R_\mathrm{max}$ (largest cosine)",
    "R_smoothmax": r"$R_\mathrm{smoothmax}$ (log-sum-exp)",
}
"""The paper's measures of concentration, by their names in the log."""


@draws("training-concentration")
def training_concentration(comparison: Comparison) -> Figure:
    """R_kappa, R_mean and R_DPP after each epoch."""
    return _training(comparison, "training-concentration", ("R_kappa", "R_mean", "R_dpp"))


@draws("training-concentration-more")
def training_concentration_more(comparison: Comparison) -> Figure:
    """R_max and R_smoothmax after each epoch."""
    return _training(comparison, "training-concentration-more", ("R_max", "R_smoothmax"))


def plot_measure(
    axes: Axes, runs: Sequence[ReportRun], run_looks: Sequence[style.Look], measure: str
) -> list[tuple[object, ...]]:
    """One measure of all runs against the epoch; the points drawn."""
    rows: list[tuple[object, ...]] = []
    drawn: list[tuple[style.Look, list[tuple[Any, Any]]]] = []
    for number, (run, look) in enumerate(zip(runs, run_looks, strict=True)):
        points = [(line["epoch"], line[measure]) for line in run.epochs if measure in line]
        axes.plot(
            [epoch for epoch, _ in points],
            [value for _, value in points],
            color=look.colour,
            marker=look.marker,
            linestyle=look.dash,
            markevery=(number, max(len(runs), len(points) // 8)),  # so that no marker hides another's
        )
        _plot_shared(axes, points, drawn)
        drawn.append((look, points))
        rows += [(run.method, run.lam, measure, epoch, value) for epoch, value in points]
    for epoch, dash, _ in turns(runs):
        axes.axvline(epoch, color=style.GREY, linestyle=dash, linewidth=0.9, zorder=0)
    axes.set(xlabel="epoch", ylabel=MEASURES[measure])
    axes.margins(y=0.08)
    return rows


def _plot_shared(
    axes: Axes, points: list[tuple[Any, Any]], drawn: Sequence[tuple[style.Look, list[tuple[Any, Any]]]]
) -> None:
    """Stripes in the colours of those whose first stage these points share, and cover."""
    found = [(look, [a for a, b in zip(points, other, strict=False) if a == b]) for look, other in drawn]
    found = [(look, shared) for look, shared in found if len(shared) > 1]
    for number, (look, shared) in enumerate(found):
        dash = (4 * number, (4, 4 * len(found)))
        axes.plot(*zip(*shared, strict=True), color=look.colour, linestyle=dash)


TURNS: dict[str, style.Dash] = {
    "end of warm-up": style.DOTTED,
    "end of ramp-up": style.DASHED,
    "learning rate decays": (0, (6, 2, 1, 2)),
    "second stage": style.SOLID,
}


def turns(runs: Sequence[ReportRun]) -> list[tuple[float, style.Dash, str]]:
    """Epochs at which training changes, with dash and name: as the run with GradDiv has them, or else the first."""
    run = next((run for run in runs if run.lam > 0), runs[0])
    found: list[tuple[float, str]] = []
    begins = 0.0
    for stage in run.experiment.schedule:
        if begins:
            found.append((begins, "second stage"))
        found += [(begins + epoch, "learning rate decays") for epoch in stage.decays]
        if (g := stage.graddiv) is not None and g.lam > 0:
            ends = begins + (g.warmup + g.rampup if g.rampup_from == "warmup" else g.rampup)
            warm = [(begins + g.warmup, "end of warm-up")] if g.warmup else []
            found += [*warm, (ends, "end of ramp-up")]
        begins += stage.epochs
    return [(epoch, TURNS[name], name) for epoch, name in sorted(found)]


def turn_handles(runs: Sequence[ReportRun]) -> list[Line2D]:
    """Their lines in the legend."""
    grey = {name: style.Look(style.GREY, "", dash) for _, dash, name in turns(runs)}
    return [handle(look, name, linewidth=0.9) for name, look in grey.items()]


def _training(comparison: Comparison, name: str, measures: Sequence[str]) -> Figure:
    runs = [run for run in comparison.runs if run.random and any(measures[0] in line for line in run.epochs)]
    if not runs:
        raise missing(name, "the log of training with its measures of concentration", "train RECIPE")
    figure, axes = panels(1, len(measures), style.TWO_COLUMNS, 2.5)
    rows = [
        row for ax, measure in zip(axes, measures, strict=True) for row in plot_measure(ax, runs, looks(runs), measure)
    ]
    handles = [handle(look, title) for look, title in zip(looks(runs), titles(runs), strict=True)]
    legend_below(figure, [*handles, *turn_handles(runs)], 5)
    return Figure(
        name=name,
        title="Concentration of gradients during training",
        figure=figure,
        columns=("method", "lam", "measure", "epoch", "value"),
        rows=tuple(rows),
        caption=f"{ended(comparison, runs, measures)} Lower is more diverse. {scale(comparison)}",
    )


def ended(comparison: Comparison, runs: Sequence[ReportRun], measures: Sequence[str]) -> str:
    """What training came to, measure by measure."""
    last = {run.path: {m: line[m] for line in run.epochs for m in measures if m in line} for run in runs}
    compared = pair(comparison)
    if compared and all(run.path in last for run in compared):
        plain, regularized = compared
        parts = [f"{m} {change(last[plain.path][m], last[regularized.path][m])}" for m in measures]
        return f"After the last epoch, from {plain.title} to {regularized.title}, {listed(parts)}."
    parts = [
        f"{title}: {', '.join(f'{m} {last[run.path][m]:.3g}' for m in measures)}"
        for run, title in zip(runs, titles(runs), strict=True)
    ]
    return f"After the last epoch: {'; '.join(parts)}."
