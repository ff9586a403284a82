"""Accuracy under EOT-PGD: against epsilon, against what the attack spends, against lambda, for each regularizer."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from graddiv import records
from graddiv.records import Summary
from graddiv.report import style
from graddiv.report.comparison import Comparison, Curves, ReportRun, curves, is_eot, titles
from graddiv.report.figures.gradients import MEASURES, last_values, plot_measure, turn_entries
from graddiv.report.output import Figure, Found, caption, draws, listed
from graddiv.report.style import Look, Sheet, log_ticks, percents

COLUMNS = "method, lam, whose, x, accuracy, low, high"
LAMBDA = "weight λ of GradDiv"
GREY = Look(style.GREY, "o", style.DASHED)  #: of an entry of the legend that stands for curves of several colors

#: The paper's curves: thin and dashed, with hollow markers; above ours, whose thicker lines would hide them.
PAPER: dict[str, Any] = {"linestyle": style.DASHED, "linewidth": 1.0, "markerfacecolor": "white", "markersize": 3}
PAPER |= {"alpha": 0.8, "zorder": 2.5}
#: One of several trainings.
DOT: dict[str, Any] = {"marker": "o", "markersize": 2, "alpha": 0.5, "linestyle": "none"}
#: Across a value that only other curves have: sparse dots, without a band.
NOT_RUN: dict[str, Any] = {"linestyle": (0, (1, 4)), "linewidth": 0.9}

Points = Sequence[tuple[Any, Summary]]
Rows = list[tuple[object, ...]]


def in_percent(points: Points) -> list[tuple[Any, float, float, float]]:
    """(x, accuracy, low, high) of each point."""
    return [(x, 100 * s.mean, 100 * s.interval.low, 100 * s.interval.high) for x, s in points]


def plot_ours(
    axes: Axes, run: ReportRun, look: Look, points: Points, others: Iterable[Any] = (), whose: str = "ours"
) -> Rows:
    """Draw a curve of ours, its 95 % band and its trainings; only hinted at across `others`, points of other curves."""
    rows = in_percent(points)
    dots = [(x, 100 * mean) for x, s in points for mean in s.trainings]
    for dot in dots:
        axes.plot(*dot, color=look.colour, **DOT)
    parts = [rows[:1]]
    for before, row in pairwise(rows):
        if any(before[0] < x < row[0] for x in others):  # there nothing was measured
            axes.plot([before[0], row[0]], [before[1], row[1]], color=look.colour, **NOT_RUN)
            parts.append([])
        parts[-1].append(row)
    for part in parts:
        style.plot(axes, look, *zip(*part, strict=True))
    return [
        *((run.method, run.lam, whose, *row) for row in rows),
        *((run.method, run.lam, f"{whose}, one training", x, mean, "", "") for x, mean in dots),
    ]


def plot_published(axes: Axes, run: ReportRun, look: Look, points: Sequence[tuple[Any, float]]) -> Rows:
    """Draw a curve of the paper's in the method's color."""
    if points:
        style.plot(axes, look, *zip(*points, strict=True), **PAPER)
    return [(run.method, "", "paper", *point, "", "") for point in points]


def _papers_last(sheet: Sheet) -> bool:
    """Put the paper's rows after ours, and them into the legend; whether there are any."""
    sheet.rows.sort(key=lambda row: row[2] == "paper")
    papers = any(row[2] == "paper" for row in sheet.rows)
    if papers:
        sheet.entry(GREY, "the paper's values, in the method's color", **PAPER)
    return papers


def from_clean(comparison: Comparison, run: ReportRun, points: Points, at: float | int = 0.0) -> Points:
    """The curve from the accuracy without an attack on, where that was measured."""
    clean = comparison.clean(run)
    return [(at, clean), *points] if clean is not None else points


def against_epsilon(comparison: Comparison, swept: Curves) -> tuple[list[tuple[ReportRun, Points]], list[float]]:
    """Curves from the accuracy without an attack on, and the radii that they have among them."""
    attacked = sorted({x for _, points in swept.of_runs for x, _ in points})
    if len(attacked) > 1 and comparison.training_epsilons and comparison.training_epsilons[-1] <= attacked[0]:
        return list(swept.of_runs), attacked  # nothing was measured between 0 and the radius of training
    found = [(run, from_clean(comparison, run, points)) for run, points in swept.of_runs]
    return found, sorted({x for _, points in found for x, _ in points})


def compared_at(swept: Curves, vary: str) -> str:
    """The accuracies at the last value that all runs have, from the lowest to the highest."""
    shared = set.intersection(*({x for x, _ in points} for _, points in swept.of_runs))
    if not shared:
        return "No value was run for all methods."
    x, names = max(shared), titles([run for run, _ in swept.of_runs])
    found = sorted((dict(points)[x].mean, names[run]) for run, points in swept.of_runs)
    return f"At {vary} = {x:.4g}: {listed([f'{name} {100 * mean:.1f} %' for mean, name in found])}."


PGD = "attack RUN --attacks pgd --modes eot"  #: the command that makes its records
BOUND = "Accuracy under EOT-PGD against the perturbation bound"


@draws("accuracy-epsilon", BOUND, COLUMNS, by=f"{PGD} --epsilon 0.1,0.2,0.3")
def accuracy_epsilon(comparison: Comparison) -> Figure | None:
    """Accuracy against epsilon: a panel for our networks under EOT-PGD, for the strong adversary, and for the paper."""
    swept = curves(comparison, "epsilon")
    if swept is None:
        return None
    of_runs, radii = against_epsilon(comparison, swept)
    runs = [run for run, _ in of_runs]
    strong = curves(comparison, "epsilon", "SPGD")
    of_strong = [(run, points) for run, points in strong.of_runs if run in runs] if strong else []
    theirs = _published(comparison, swept, radii[0])
    panels = [OURS, *([STRONGER] if of_strong else []), *([THEIRS] if theirs else [])]
    width = style.TWO_COLUMNS if len(panels) > 1 else style.ONE_COLUMN * 1.2
    sheet = Sheet(1, len(panels), width, 2.9, sharex=True, sharey=True)
    axes_of, look_of = dict(zip(panels, sheet.axes, strict=True)), sheet.legend(runs)
    for run, points in of_runs:
        sheet.rows += plot_ours(axes_of[OURS], run, look_of[run], points, radii)
    for run, points in of_strong:
        sheet.rows += plot_ours(axes_of[STRONGER], run, look_of[run], points, radii, "ours, strong")
    for run, published in theirs.items():
        sheet.rows += plot_published(axes_of[THEIRS], run, look_of[run], published)
    for panel, axes in axes_of.items():
        percents(axes, "radius ε of the attack", style.ACCURACY if panel == OURS else "")
        axes.set_title(panel if len(panels) > 1 else "")
        for epsilon in comparison.training_epsilons:
            axes.axvline(epsilon, color=style.GREY, linestyle=style.DOTTED, linewidth=0.9, zorder=0)
    trainings = sorted({len(s.trainings) for _, points in [*of_runs, *of_strong] for _, s in points if s.trainings})
    if trainings:
        sheet.entry(GREY, "one training", **DOT)
    sparse = any({x for x, _ in points} != set(radii) for _, points in of_runs)
    notes = (sparse, trainings, strong, bool(theirs))
    return sheet.done(caption("accuracy-epsilon", comparison, swept, compared_at(swept, "ε"), *notes))


OURS, STRONGER, THEIRS = "EOT-PGD", "a stronger attack", "EOT-PGD, in the paper"  #: the panels


def _published(comparison: Comparison, swept: Curves, least: float) -> dict[ReportRun, list[tuple[float, float]]]:
    """The paper's curve of each method from a radius on; once, where ours has it in several variants."""
    found: dict[ReportRun, list[tuple[float, float]]] = {}
    for run, _ in swept.of_runs:
        if not any((run.method, run.epsilon) == (other.method, other.epsilon) for other in found):
            n = swept.fixed["n"] if run.random else None
            curve = comparison.published(run).curve(run.method, "EOT-PGD", n)
            found |= {run: points} if (points := [(x, y) for x, y in curve if x >= least]) else {}
    return found


PAPERS_N = (1, 5, 10, 20)  #: numbers of sample models for which the paper has values of EOT-PGD
SPGD = "attack RUN --attacks spgd --modes eot --n 4 --m 100,400"


@draws("n-sensitivity", "Accuracy under EOT-PGD against n", COLUMNS, by=f"{PGD} --n 1,5,10,20")
def n_sensitivity(comparison: Comparison) -> Figure | None:
    """Accuracy under EOT-PGD against the number n of sample models per step."""
    random = comparison.of([run for run in comparison.runs if run.random])
    return _sensitivity(comparison, [curves(random, "n")], "n", "sample models per step of EOT-PGD, n")


@draws("m-sensitivity", "Accuracy under EOT-PGD against its iterations", COLUMNS, by=f"{PGD} --m 5,20,50")
def m_sensitivity(comparison: Comparison) -> Figure | None:
    """Accuracy under EOT-PGD against its iterations m."""
    return _sensitivity(comparison, [curves(comparison, "m")], "m", "iterations of EOT-PGD, m")


@draws("passes-sensitivity", "Accuracy under EOT-SPGD against its passes", COLUMNS, by=SPGD)
def passes_sensitivity(comparison: Comparison) -> Figure | None:
    """Accuracy under EOT-SPGD against its passes, n m, at each radius: whether the adversary has settled."""
    radii = sorted({r.epsilon for run in comparison.runs for r in run.attacks if is_eot(run, r, "SPGD")})
    found = [_in_passes(comparison, radius) for radius in radii]
    return _sensitivity(comparison, found, "passes", "passes of EOT-SPGD for an image, n m")


def _in_passes(comparison: Comparison, radius: float) -> Curves | None:
    swept = curves(comparison.only(lambda _, record: record.epsilon == radius), "m", "SPGD")
    if swept is None:
        return None
    n = swept.fixed["n"]
    return swept._replace(of_runs=tuple((run, [(n * m, a) for m, a in points]) for run, points in swept.of_runs))


def _sensitivity(comparison: Comparison, swepts: Sequence[Curves | None], vary: str, label: str) -> Figure | None:
    """A panel for each of the curves, which differ in their radius; None if no curve has two points."""
    found = [swept for swept in swepts if swept is not None]
    if not any(len(points) > 1 for swept in found for _, points in swept.of_runs):
        return None
    several, across = len(found) > 1, min(len(found), 2)
    down = -(-len(found) // across)
    width = style.TWO_COLUMNS if several else style.ONE_COLUMN * 1.2
    sheet = Sheet(down, across, width, 2.9 if down == 1 else 2.3 * down)
    for spare in sheet.axes[len(found) :]:
        spare.remove()
    radii = [(run, swept.fixed["epsilon"]) for swept in found for run, _ in swept.of_runs]
    look_of = sheet.legend(list(dict.fromkeys(run for run, _ in radii)))
    for axes, swept in zip(sheet.axes, found, strict=False):
        at, rows = swept.fixed["epsilon"], Rows()
        for run, points in swept.of_runs:
            look = look_of[run]
            rows += plot_ours(axes, run, look, from_clean(comparison, run, points, 0) if vary == "m" else points)
            if vary == "n":
                values = [(n, comparison.published(run).value(run.method, "EOT-PGD", at, n)) for n in PAPERS_N]
                theirs = [(n, value.mean) for n, value in values if value is not None]
                rows += plot_published(axes, run, look, theirs)
        percents(axes, label)
        if vary != "m":
            counts: set[Any] = {row[3] for row in rows}
            log_ticks(axes, sorted(counts))
        if several:
            axes.set_title(f"ε = {at:.4g}")
        sheet.rows += [(*row, at) for row in rows] if several else rows
    papers = _papers_last(sheet)
    seen = [(swept, compared_at(swept, vary)) for swept in found]
    said = comparison.said(f"{vary}-sensitivity", radii)
    columns = (*COLUMNS.split(", "), *(["epsilon"] if several else []))
    return sheet.done(caption("sensitivity", comparison, seen, vary, papers, said), columns=columns)


SIZES = ("Accuracy under EOT-PGD against the size of the ensemble", "method, seed, models, accuracy")


@draws("ensemble-size", *SIZES, records.AttackedEnsembleRecord)
def ensemble_size(comparison: Comparison, found: Found[records.AttackedEnsembleRecord]) -> Figure:
    """Accuracy of ensembles of 1, 2, .. models on attacked images: whether 20 models are enough."""
    sheet, seen = Sheet(1, 1, style.ONE_COLUMN * 1.2, 2.8), {}
    look_of, sizes = sheet.legend([run for run, _ in found]), [1, 2, 5, 10, 20, 50, 100]
    for run, record in found:
        accuracy = (100 * record.right.mean(0)).tolist()
        style.plot(sheet.axes[0], look_of[run], range(1, len(accuracy) + 1), accuracy, marker="")
        sheet.rows += [(run.method, run.experiment.seed, size, share) for size, share in enumerate(accuracy, 1)]
        seen[run] = [(size, accuracy[size - 1]) for size in sizes if size <= len(accuracy)]
    percents(sheet.axes[0], "models of the ensemble that answers")
    log_ticks(sheet.axes[0], [size for size, _ in next(iter(seen.values()))])
    return sheet.done(caption("ensemble-size", comparison, found[0][1], seen), most=1)


LAMS = ("Sensitivity to the weight of GradDiv", "quantity, epsilon, lam, value, low, high")
VARIANTS = ("The regularizers compared", "method, lam, measure, x, value, low, high")


@draws("lambda-sensitivity", *LAMS, by="train RECIPE graddiv.lam=0.1' and 'graddiv " + PGD)
def lambda_sensitivity(comparison: Comparison) -> Figure | None:
    """Accuracy and concentration against lambda, over runs that differ in it."""
    base = (comparison.pair or comparison.runs)[-1].base
    runs = sorted((run for run in comparison.runs if run.base == base), key=lambda run: run.lam)
    swept = curves(comparison.of(runs), "epsilon")
    if len({run.lam for run in runs}) < 2 or swept is None:
        return None
    sheet = Sheet(1, 2, style.TWO_COLUMNS, 2.8)
    left, right = sheet.axes
    by_lam = [(run, dict(from_clean(comparison, run, points))) for run, points in swept.of_runs]
    found = [set(points) for _, points in by_lam]
    radii = sorted(set.intersection(*found) or set.union(*found))  # where all can be compared, if anywhere
    epsilons = [radii[i] for i in sorted({round(i) for i in np.linspace(0, len(radii) - 1, 5)})]  # at most five
    colours = matplotlib.colormaps["cividis"](np.linspace(0, 0.75, len(epsilons)))
    for epsilon, colour, marker in zip(epsilons, colours, "osD^v", strict=False):
        rows = in_percent([(run.lam, points[epsilon]) for run, points in by_lam if epsilon in points])
        look = Look(colour, marker)
        style.plot(left, look, *zip(*rows, strict=True))
        sheet.entry(look, "clean" if epsilon == 0 else f"ε = {epsilon:.4g}")
        sheet.rows += [("accuracy", epsilon, *row) for row in rows]
    percents(left, LAMBDA)
    rho = [
        (run.lam, max(0, line["R_mean"]) ** 0.5) for run, _ in by_lam for line in run.epochs[-1:] if "R_mean" in line
    ]
    style.plot(right, Look(style.BLACK, "o"), *zip(*rho, strict=True))
    right.set(xlabel=LAMBDA, ylabel="debiased MRL ρ after training", ylim=(0, None))
    sheet.rows += [("rho", "", lam, value, "", "") for lam, value in rho]
    accuracies = [(run.lam, points[epsilons[-1]].mean) for run, points in by_lam if epsilons[-1] in points]
    words = caption("lambda-sensitivity", comparison, swept, rho, epsilons[-1], accuracies)
    return sheet.done(words, most=len(epsilons))


@draws("regularizers", *VARIANTS, by="train mnist/adv-bnn+graddiv-dpp' and 'graddiv " + PGD)
def regularizers(comparison: Comparison) -> Figure | None:
    """The five regularizers: concentration during training, and accuracy under EOT-PGD against epsilon."""
    variants = [run for run in comparison.runs if "+graddiv-" in run.method]
    bases = {run.base for run in variants[:1]}
    runs = [run for run in comparison.runs if run.method in bases or run in variants]
    swept = curves(comparison.of(runs), "epsilon")
    if not variants or swept is None:
        return None
    sheet = Sheet(2, 3, style.TWO_COLUMNS, 4.4)
    look_of = sheet.legend(runs)
    for axes, measure in zip(sheet.axes, MEASURES, strict=False):
        sheet.rows += [(*row, "", "") for row in plot_measure(axes, runs, measure)]
    by_run, radii = against_epsilon(comparison, swept)
    for run, points in by_run:
        drawn = plot_ours(sheet.axes[-1], run, look_of[run], points, radii)
        sheet.rows += [(method, lam, "accuracy", *values) for method, lam, _, *values in drawn]
    percents(sheet.axes[-1], r"perturbation bound ε ($\ell_\infty$)")
    turn_entries(sheet, runs)
    last = last_values(runs, ["R_mean"])
    return sheet.done(caption("regularizers", comparison, swept, last["R_mean"], compared_at(swept, "ε")), most=3)
