"""Where robustness beyond the radius of training comes from: contrast, the path of the attack, filters, the loss."""

from typing import Any

import numpy as np

from graddiv import records
from graddiv.recipes import first_epochs, title
from graddiv.report import style
from graddiv.report.comparison import Comparison, ReportRun, curves, titles
from graddiv.report.figures.accuracy import PGD, in_percent
from graddiv.report.output import NOT_APPLICABLE, Figure, Found, Table, caption, draws, percent
from graddiv.report.style import Look, Sheet, log_ticks, looks_of, percents

BEYOND = 1.2  #: The multiple of the radius of training at which methods are compared: 0.36 of 0.3.
SPARE = 0.05  #: A filter whose removal costs at most this share of accuracy is not what the network works with.


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
        lost = list(zip(record.distances, np.median(-record.margin, 0).tolist(), strict=True))
        attacked = [(epsilon, float(np.median(-r.margin))) for epsilon, r in sorted(attacks.items())]
        radii += [epsilon for epsilon, _ in attacked]
        for axes, what, points in zip(sheet.axes, ("contrast lost", "attack"), (lost, attacked), strict=True):
            if points:
                style.plot(axes, look_of[run.title], *zip(*points, strict=True), markersize=3, alpha=0.8)
            sheet.rows += [(run.method, run.experiment.seed, what, *point) for point in points]
    labels = ("distance d of black and white pixels from theirs, without an attack", "radius ε of EOT-PGD")
    for axes, label in zip(sheet.axes, labels, strict=True):
        axes.set(xlabel=label, ylabel="median margin (0: undecided)")
        axes.axhline(0, color=style.GREY, linewidth=0.9)
        for epsilon in comparison.training_epsilons:
            axes.axvline(epsilon, color=style.GREY, linestyle=style.DOTTED, linewidth=0.9, zorder=0)
    margins = {run: np.median(-record.margin, 0) for run, record in found}
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


FILTERS = "method, ρ, accuracy, without filter, ρ without it, accuracy without it"


@draws("filters", "The filter that meets R, {data}", FILTERS, records.FiltersRecord)
def filters(comparison: Comparison, found: Found[records.FiltersRecord]) -> Table:
    """What is left of concentration and accuracy without the one spare filter that disperses gradients most."""
    rows = []
    names = titles([run for run, _ in found])
    for run, record in found:
        k, rho, accuracy = spare_filter(record), record.rho, record.right.mean(0)
        shown = (f"{rho[0]:.2f}", percent(accuracy[0]), str(k), f"{rho[k + 1]:.2f}", percent(accuracy[k + 1]))
        rows.append((names[run], *shown))
    return Table(rows=tuple(rows), caption=caption("filters", comparison, found[0][1], 100 * SPARE))


def spare_filter(record: records.FiltersRecord) -> int:
    """The filter without which gradients agree most, of those that accuracy under attack does not need."""
    accuracy = record.right.mean(0)
    spare = accuracy[1:] >= min(accuracy[0] - SPARE, accuracy[1:].max())
    return int(np.where(spare, record.rho[1:], -1).argmax())


LOSS = "method, seed, epochs, loss, epsilon, accuracy"


@draws("loss-accuracy", "Accuracy against the loss that training reached", LOSS, by=f"{PGD} --epsilon 0.3,0.36")
def loss_accuracy(comparison: Comparison) -> Figure | None:
    """Accuracy at the radius of training and beyond it against the adversarial loss of the last epoch: a dot a run."""
    found = {run: line["adversarial"] for run in comparison.runs for line in run.epochs[-1:] if "adversarial" in line}
    sheet = Sheet(1, 2, style.TWO_COLUMNS, 3.0)
    look_of = _looks_of_methods(comparison.of(list(found)), sheet, dash="none")
    for axes, multiple in zip(sheet.axes, (1.0, BEYOND), strict=True):
        for run, loss in found.items():
            epsilon = float(f"{multiple * (run.epsilon or 0):.6g}")
            if attacked := [r for r in run.attacks if r.label == "EOT-PGD" and r.epsilon == epsilon]:
                accuracy, epochs = 100 * records.accuracy(attacked).mean, sum(s.epochs for s in run.experiment.schedule)
                style.plot(axes, look_of[run.method], [loss], [accuracy], alpha=0.8)
                sheet.rows.append((run.method, run.experiment.seed, epochs, loss, epsilon, accuracy))
        percents(axes, "adversarial loss of the last epoch", f"accuracy (%) at {multiple:g} times the radius")
    return sheet.done(caption("loss-accuracy", comparison), most=3) if sheet.rows else None


MULTIPLES = (1.0, BEYOND, 0.38 / 0.3)  #: Of the radius of training, at which lengths of training are compared.
EPOCHS = ("How long the first stage trains", "method, epochs, epsilon, accuracy, low, high")


@draws("epochs", *EPOCHS, by="train RECIPE --set training.epochs=12' and 'graddiv " + PGD)
def epochs(comparison: Comparison) -> Figure | None:
    """Accuracy at three radii against the epochs of the first stage, with and without GradDiv after it."""
    swept = curves(comparison, "epsilon")
    lengths = {run: first_epochs(run.experiment) or run.experiment.epochs for run, _ in swept.of_runs} if swept else {}
    if swept is None or len(set(lengths.values())) < 2:
        return None
    sheet = Sheet(1, len(MULTIPLES), style.TWO_COLUMNS, 2.7)
    look_of = _looks_of_methods(comparison.of(list(lengths)), sheet)
    for axes, multiple in zip(sheet.axes, MULTIPLES, strict=True):
        epsilon = float(f"{multiple * comparison.training_epsilons[0]:.6g}")
        for method, look in look_of.items():
            points = {
                lengths[run]: dict(of)[epsilon]
                for run, of in swept.of_runs
                if run.method == method and epsilon in dict(of)
            }
            rows = in_percent(sorted(points.items()))
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


PRESSED = "attack RUN --suite strong --epsilon 0.36"


@draws("pressed", "Whatever might show that an adversary is starved or misled, {data}", "attack", by=PRESSED)
def pressed(comparison: Comparison) -> Table | None:
    """Accuracy at one radius under each attack, also those made on other networks, and under the worst of all."""
    runs = [run for run in comparison.runs if any(not r.is_clean for r in run.attacks)]
    if not runs:
        return None
    labels = {run: {_described(r): r for r in run.attacks if not r.is_clean} for run in runs}
    every = list(dict.fromkeys(label for of_run in labels.values() for label in of_run))
    cells = {label: [of_run.get(label) for of_run in labels.values()] for label in every}
    rows = [(label, *(percent(r.accuracy) if r else NOT_APPLICABLE for r in of)) for label, of in cells.items()]
    totals = [np.mean(records.cross_fitted_total(of_run.values())) for of_run in labels.values()]
    rows.append(("worst of all", *(percent(float(share)) for share in totals)))
    examples, epsilons = ({getattr(r, name) for r in comparison.attacks} for name in ("examples", "epsilon"))
    words = caption("pressed", comparison, sorted(epsilons), sorted(examples))
    return Table(columns=("attack", *titles(runs).values()), rows=tuple(rows), caption=words)


def _described(record: records.AttackRecord) -> str:
    """The attack with what it spends."""
    spent = f"n {record.n}, m {record.m}" + (f", {record.restarts} starts" if record.restarts > 1 else "")
    return f"{record.label}, {spent}"
