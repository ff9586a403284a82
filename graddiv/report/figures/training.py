"""Concentration of gradients during training."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from graddiv.report import style
from graddiv.report.comparison import Comparison, ReportRun
from graddiv.report.output import Figure, caption, draws
from graddiv.report.style import Look, Sheet, looks_of

MEASURES = {
    "R_kappa": r"$R_\kappa$ (estimated κ over p)",
    "R_mean": r"$R_\mathrm{mean}$ (mean cosine)",
    "R_dpp": r"$R_\mathrm{DPP}$ (−log det of cosines)",
    "R_max": r"$R_\mathrm{max}$ (largest cosine)",
    "R_smoothmax": r"$R_\mathrm{smoothmax}$ (log-sum-exp)",
}  #: the paper's measures of concentration, by their names in the log
TRAINING = ("Concentration of gradients during training", "method, lam, measure, epoch, value")
TURNS: dict[str, style.Dash] = {
    "end of warm-up": style.DOTTED,
    "end of ramp-up": style.DASHED,
    "learning rate decays": (0, (6, 2, 1, 2)),
    "second stage": style.SOLID,
}


@draws("training-concentration", *TRAINING, by="train RECIPE")
def training_concentration(comparison: Comparison) -> Figure | None:
    """R_kappa, R_mean and R_DPP after each epoch."""
    return _training(comparison, ("R_kappa", "R_mean", "R_dpp"))


@draws("training-concentration-more", *TRAINING, by="train RECIPE")
def training_concentration_more(comparison: Comparison) -> Figure | None:
    """R_max and R_smoothmax after each epoch."""
    return _training(comparison, ("R_max", "R_smoothmax"))


def _training(comparison: Comparison, measures: Sequence[str]) -> Figure | None:
    runs = [run for run in comparison.runs if run.random and any(measures[0] in line for line in run.epochs)]
    if not runs:
        return None
    sheet = Sheet(1, len(measures), style.TWO_COLUMNS, 2.5)
    sheet.legend(runs)
    for axes, measure in zip(sheet.axes, measures, strict=True):
        sheet.rows += plot_measure(axes, runs, measure)
    turn_entries(sheet, runs)
    return sheet.done(caption("training", comparison, last_values(runs, measures)), most=5)


def plot_measure(axes: Axes, runs: Sequence[ReportRun], measure: str) -> list[tuple[object, ...]]:
    """Draw one measure of all runs against the epoch; returns the points."""
    rows: list[tuple[object, ...]] = []
    drawn: list[tuple[Look, list[tuple[Any, Any]]]] = []
    for place, (run, look) in enumerate(looks_of(runs).items()):
        points = [(line["epoch"], line[measure]) for line in run.epochs if measure in line]
        every = (place, max(len(runs), len(points) // 8))  # so that no marker hides another's
        style.plot(axes, look, [epoch for epoch, _ in points], [value for _, value in points], markevery=every)
        # stripes in the colors of those whose first stage these points share, and cover
        covered = [(other, [a for a, b in zip(points, theirs, strict=False) if a == b]) for other, theirs in drawn]
        covered = [(other, shared) for other, shared in covered if len(shared) > 1]
        for i, (other, shared) in enumerate(covered):
            axes.plot(*zip(*shared, strict=True), color=other.colour, linestyle=(4 * i, (4, 4 * len(covered))))
        drawn.append((look, points))
        rows += [(run.method, run.lam, measure, epoch, value) for epoch, value in points]
    for epoch, name in turns(runs):
        axes.axvline(epoch, color=style.GREY, linestyle=TURNS[name], linewidth=0.9, zorder=0)
    axes.set(xlabel="epoch", ylabel=MEASURES[measure])
    axes.margins(y=0.08)
    return rows


def turns(runs: Sequence[ReportRun]) -> list[tuple[float, str]]:
    """Epochs at which training changes, and how: as the run with GradDiv has them, or else the first."""
    run = next((run for run in runs if run.lam > 0), runs[0])
    found: list[tuple[float, str]] = []
    begins = 0.0
    for stage in run.experiment.schedule:
        if begins:
            found.append((begins, "second stage"))
        found += [(begins + epoch, "learning rate decays") for epoch in stage.decays]
        if (g := stage.graddiv) is not None and g.lam > 0:
            ends = begins + (g.warmup + g.rampup if g.rampup_from == "warmup" else g.rampup)
            found += [(begins + g.warmup, "end of warm-up")] if g.warmup else []
            found.append((ends, "end of ramp-up"))
        begins += stage.epochs
    return sorted(found)


def turn_entries(sheet: Sheet, runs: Sequence[ReportRun]) -> None:
    """Add the lines of these epochs to the legend."""
    for name in dict.fromkeys(name for _, name in turns(runs)):
        sheet.entry(Look(style.GREY, "", TURNS[name]), name, linewidth=0.9)


def last_values(runs: Sequence[ReportRun], measures: Sequence[str]) -> dict[str, dict[ReportRun, float]]:
    """What training came to: measure -> run -> its last value."""
    return {m: {run: line[m] for run in runs for line in run.epochs if m in line} for m in measures}
