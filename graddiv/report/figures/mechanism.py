"""Where robustness beyond the radius of training comes from: contrast, the path of the attack, the loss."""

from typing import Any

import numpy as np

from graddiv import records
from graddiv.recipes import first_epochs, title
from graddiv.report import style
from graddiv.report.comparison import Comparison, ReportRun, curves
from graddiv.report.figures.accuracy import PGD, in_percent
from graddiv.report.output import Figure, Found, caption, draws
from graddiv.report.style import Look, Sheet, log_ticks, looks_of, percents


def _looks(comparison: Comparison, sheet: Sheet) -> dict[str, Look]:
    """One look for each method, with an entry in the legend; trainings of one method look alike."""
    found = {run.title: look for run, look in looks_of([group[0] for group in comparison.groups]).items()}
    for name, look in found.items():
        sheet.entry(look, name)
    return found


CONTRAST = ("Margin as contrast is lost and under attack", "method, seed, what, x, margin")


@draws("contrast", *CONTRAST, records.ContrastRecord)
def contrast(comparison: Comparison, found: Found[records.ContrastRecord]) -> Figure:
    """How far right sample models are on images that lose contrast, and on images that EOT-PGD attacks."""
    comparison = comparison.of([run for run, _ in found])
    sheet = Sheet(1, 2, style.TWO_COLUMNS, 2.8)
    look_of, radii = _looks(comparison, sheet), list[float]()
    for run, record in found:
        attacks = {r.epsilon: r for r in run.attacks if r.label in ("EOT-PGD", "clean")}
        lost = list(zip(record.distances, np.median(-record.margin.astype(float), 0).tolist(), strict=True))
        attacked = [(epsilon, float(np.median(-r.margin))) for epsilon, r in sorted(attacks.items())]
        radii += [epsilon for epsilon, _ in attacked]
        for axes, what, points in zip(sheet.axes, ("contrast lost", "attack"), (lost, attacked), strict=True):
            if points:
                style.plot(axes, look_of[run.title], *zip(*points, strict=True), markersize=3, alpha=0.8)
            sheet.rows += [(run.method, run.experiment.seed, what, *point) for point in points]
    labels = ("loss of contrast d, without an attack", "radius ε of EOT-PGD")
    for axes, label in zip(sheet.axes, labels, strict=True):
        axes.set(xlabel=label, ylabel="median margin (0: undecided)")
        axes.axhline(0, color=style.GREY, linewidth=0.9)
        for epsilon in comparison.training_epsilons:
            axes.axvline(epsilon, color=style.GREY, linestyle=style.DOTTED, linewidth=0.9, zorder=0)
    margins = {run: np.median(-record.margin.astype(float), 0).tolist() for run, record in found}
    return sheet.done(caption("contrast", comparison, found[0][1], margins), most=3)


PATH = ("Gradients and margin along the path of EOT-PGD", "method, seed, step, rho, length, margin")


@draws("path", *PATH, records.PathRecord)
def path(comparison: Comparison, found: Found[records.PathRecord]) -> Figure:
    """Concentration, length and margin after each step of the attack; one line for each training."""
    comparison = comparison.of([run for run, _ in found])
    sheet = Sheet(1, 3, style.TWO_COLUMNS, 2.7)
    look_of, rhos = _looks(comparison, sheet), dict[ReportRun, list[float]]()
    for run, record in found:
        rhos[run] = np.sqrt(np.maximum(np.nanmedian(record.mean_cosine.astype(float), 0), 0)).tolist()
        length, margin = (np.median(values.astype(float), 0).tolist() for values in (record.length, -record.margin))
        for axes, values in zip(sheet.axes, (rhos[run], length, margin), strict=True):
            style.plot(axes, look_of[run.title], range(len(record.steps)), values, markersize=3, alpha=0.8)
        points = zip(record.steps, rhos[run], length, margin, strict=True)
        sheet.rows += [(run.method, run.experiment.seed, *point) for point in points]
    steps = found[0][1].steps
    for axes, label in zip(sheet.axes, ("median ρ of gradients", "median length", "median margin"), strict=True):
        axes.set(xlabel="step of the attack", ylabel=label)
        axes.set_xticks(range(len(steps)), list(map(str, steps)))
    return sheet.done(caption("path", comparison, found[0][1], rhos), most=3)


MULTIPLES = (1.0, 1.2, 0.38 / 0.3)  #: Of the radius of training, at which trainings are compared.


def _radii(comparison: Comparison) -> list[float]:
    """The radii at these multiples of that of training; if they were not run, the first ones from there on."""
    measured = {r.epsilon for r in comparison.attacks}
    training = min(comparison.training_epsilons, default=0.0)
    wanted = [epsilon for epsilon in sorted(measured) if any(abs(epsilon - m * training) < 1e-3 for m in MULTIPLES)]
    beyond = sorted(epsilon for epsilon in measured if epsilon > training - 1e-3)
    return wanted if len(wanted) > 1 else beyond[: len(MULTIPLES)]


LOST = 1.4  #: Multiple of the radius of training: the loss of contrast at which networks differ most.
ONE_BY_ONE = ("Accuracy under attack against accuracy without contrast", "method, seed, d, right, epsilon, accuracy")


@draws("contrast-accuracy", *ONE_BY_ONE, records.ContrastRecord)
def contrast_accuracy(comparison: Comparison, found: Found[records.ContrastRecord]) -> Figure | None:
    """Accuracy under EOT-PGD against accuracy on images that lose contrast and are not attacked: a dot a network."""
    comparison = comparison.of([run for run, _ in found])
    trained = min(comparison.training_epsilons, default=0.0)
    if not (radii := [epsilon for epsilon in _radii(comparison) if epsilon > trained + 1e-3]):
        return None
    sheet, correlations = Sheet(1, len(radii), style.TWO_COLUMNS, 2.8), dict[float, float]()
    look_of = _looks_of_methods(comparison, sheet, dash="none")
    for axes, epsilon in zip(sheet.axes, radii, strict=True):
        for run, record in found:
            d = min(record.distances, key=lambda d: abs(d - LOST * trained))
            right = 100 * float(record.right[:, record.distances.index(d)].mean())
            if attacked := [r for r in run.attacks if r.label == "EOT-PGD" and r.epsilon == epsilon]:
                accuracy = 100 * records.accuracy(attacked).mean
                style.plot(axes, look_of[run.method], [right], [accuracy], alpha=0.8)
                sheet.rows.append((run.method, run.experiment.seed, d, right, epsilon, accuracy))
        points = np.array([row[3:] for row in sheet.rows if row[4] == epsilon], float)
        correlations[epsilon] = float(np.corrcoef(points[:, 0], points[:, 2])[0, 1]) if len(points) > 2 else np.nan
        percents(axes, f"right at d = {sheet.rows[-1][2]} (%), no attack", f"accuracy (%), ε = {epsilon:g}")
    return sheet.done(caption("contrast-accuracy", comparison, found[0][1], correlations), most=3)


EPOCHS = ("How long the first stage trains", "method, epochs, epsilon, accuracy, low, high")


@draws("epochs", *EPOCHS, by="train RECIPE --set training.epochs=12' and 'graddiv " + PGD)
def epochs(comparison: Comparison) -> Figure | None:
    """Accuracy against the epochs of the first stage, with and without GradDiv after it; a panel for each radius."""
    swept, radii = curves(comparison, "epsilon"), _radii(comparison)
    lengths = {run: first_epochs(run.experiment) or run.experiment.epochs for run, _ in swept.of_runs} if swept else {}
    if swept is None or not radii or len(set(lengths.values())) < 2:
        return None
    sheet = Sheet(1, len(radii), style.TWO_COLUMNS, 2.7)
    look_of = _looks_of_methods(comparison.of(list(lengths)), sheet)
    of_runs = {run: dict(points) for run, points in swept.of_runs}
    for axes, epsilon in zip(sheet.axes, radii, strict=True):
        for method, look in look_of.items():
            measured = {
                lengths[run]: of[epsilon] for run, of in of_runs.items() if run.method == method and epsilon in of
            }
            rows = in_percent(sorted(measured.items()))
            style.plot(axes, look, *zip(*rows, strict=True))
            sheet.rows += [(method, row[0], epsilon, *row[1:]) for row in rows]
        log_ticks(axes, sorted(set(lengths.values())))
        percents(axes, f"epochs of the first stage, ε = {epsilon:g}")
    return sheet.done(caption("epochs", comparison, swept), most=3)


def _looks_of_methods(comparison: Comparison, sheet: Sheet, **changed: Any) -> dict[str, Look]:
    """One look for each method, whatever its settings, with an entry in the legend."""
    firsts = {run.method: run for run in reversed(comparison.runs)}
    found = {run.method: look for run, look in looks_of(list(reversed(firsts.values()))).items()}
    for method, look in found.items():
        sheet.entry(look._replace(**changed), title(method))
    return found
