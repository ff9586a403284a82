"""Gradients of sample models: where they point, how concentrated they are, in training too, and what attacks gain."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from mpl_toolkits.mplot3d import Axes3D  # type: ignore[import-untyped]

from graddiv import records
from graddiv.report import closeups, style
from graddiv.report.comparison import Comparison, ReportRun, titles
from graddiv.report.output import Figure, Found, caption, draws, listed, number
from graddiv.report.style import Look, Sheet, looks_of

Sampled = dict[ReportRun, tuple[Look, Float[np.ndarray, "n p"]]]


def _sampled(comparison: Comparison, found: Found[records.GradientsRecord]) -> Sampled:
    """The unit gradients at the first test example of one or two runs: without and with GradDiv, or else the first."""
    compared = comparison.of([run for run, _ in found]).pair
    chosen = [entry for entry in found if entry[0] in compared] if compared else found[:2]
    look_of = looks_of(comparison.runs)
    return {run: (look_of[run], record.gradients[0].astype(np.float64)) for run, record in chosen}


def _directions(comparison: Comparison, sheet: Sheet, sampled: Sampled, basis: np.ndarray, start: str) -> Figure:
    """Dots for unit gradients and lines for their means, in the coordinates of a basis."""
    lengths = {run: float(np.linalg.norm(v.mean(0))) for run, (_, v) in sampled.items()}
    for run, name in titles(list(sampled)).items():
        look, v = sampled[run]
        points, mean = v @ basis.T, v.mean(0) @ basis.T
        dots: Any = sheet.axes[0].scatter
        dots(*points.T, s=8, color=look.colour, marker=look.marker, alpha=0.6, linewidths=0, zorder=3)
        sheet.axes[0].plot(*np.stack([0 * mean, mean]).T, color=look.colour, linewidth=2.2)
        sheet.rows += [(run.method, "gradient", *point) for point in points.tolist()]
        sheet.rows.append((run.method, "mean", *mean.tolist()))
        sheet.entry(look, f"{name}: ρ̂ = {lengths[run]:.2f}")
    n = len(next(iter(sampled.values()))[1])
    said = comparison.said("scatter", [(run, 0.0) for run in sampled])
    return sheet.done(caption("directions", comparison, start, lengths, n, said), most=1)


@draws("sphere", "Loss gradients of sample models in the unit ball", "method, what, x, y, z", records.GradientsRecord)
def sphere(comparison: Comparison, found: Found[records.GradientsRecord]) -> Figure:
    """Unit gradients in the space of the two mean gradients and the direction in which they spread most."""
    sampled = _sampled(comparison, found)
    sheet = Sheet(1, 1, style.ONE_COLUMN, 3.6, subplot_kw={"projection": "3d"})
    axes = cast(Axes3D, sheet.axes[0])
    turn = np.linspace(0, 2 * np.pi, 121)
    globe: dict[str, Any] = {"color": "#cccccc", "linewidth": 0.5}  # circles of the unit sphere, for the eye
    for latitude in np.radians([-60, -30, 0, 30, 60]):
        axes.plot(*(np.cos(latitude) * np.stack([np.cos(turn), np.sin(turn)])), np.sin(latitude), **globe)
    for longitude in np.radians(np.arange(0, 180, 30)):
        axes.plot(np.cos(turn) * np.cos(longitude), np.cos(turn) * np.sin(longitude), np.sin(turn), **globe)
    axes.set_box_aspect((1, 1, 1), zoom=1.75)
    axes.view_init(elev=22, azim=-58)
    axes.set_axis_off()
    start = "Dots: unit gradients; lines: their means. Third axis: the direction in which gradients spread most."
    return _directions(comparison, sheet, sampled, closeups.space(*(v for _, v in sampled.values())), start)


PLANE = ("Loss gradients of sample models on the plane of their means", "method, what, x, y")


@draws("scatter", *PLANE, records.GradientsRecord)
def scatter(comparison: Comparison, found: Found[records.GradientsRecord]) -> Figure:
    """Unit gradients on the plane of the two mean gradients, inside the unit circle."""
    sampled = _sampled(comparison, found)
    samples = [v for _, v in sampled.values()]
    basis = closeups.plane(*(v.mean(0) for v in samples)) if len(samples) == 2 else closeups.space(*samples)[:2]
    sheet = Sheet(1, 1, style.ONE_COLUMN, 3.9)
    (axes,) = sheet.axes
    axes.add_patch(Circle((0, 0), 1, fill=False, edgecolor=style.GREY, linewidth=0.8))
    axes.set(aspect="equal", xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    axes.set(xlabel=f"along the mean gradient of {next(iter(sampled)).title}", ylabel="orthogonal to it")
    return _directions(comparison, sheet, sampled, basis, "Dots: unit gradients; lines: their means.")


DENSITY = "method, what, x, density"


def _density(values: Float[np.ndarray, " b"], grid: Float[np.ndarray, " g"]) -> Float[np.ndarray, " g"]:
    """A Gaussian kernel density; of values that are all alike, a histogram."""
    from scipy.stats import gaussian_kde

    if len(values) > 2 and np.ptp(values) > 1e-6 * max(1.0, float(np.abs(values).max())):
        density: np.ndarray = gaussian_kde(values)(grid)
        return density
    edges = np.append(grid, 2 * grid[-1] - grid[-2])
    return np.histogram(values, bins=edges, density=True)[0].astype(float)


def _densities(
    comparison: Comparison, found: Found[Any], values_of: Callable[[Any], np.ndarray], label: str, said: str,
    *settings: str,
) -> Figure | None:  # fmt: skip
    """A density for each method and its median; `values_of` a record are those of its examples."""
    first = {group[0].title: group[0] for group in comparison.groups}
    drawn: dict[ReportRun, list[np.ndarray]] = {}  # trainings of one method together
    for run, record in found:
        values = values_of(record).astype(np.float64)
        drawn.setdefault(first[run.title], []).append(values[np.isfinite(values)])
    pooled = {run: np.concatenate(drawn[run]) for run in first.values() if any(map(len, drawn.get(run, [])))}
    if not pooled:
        return None
    low = min(values.min() for values in pooled.values())
    high = max(np.quantile(values, 0.99) for values in pooled.values())
    room = 0.08 * (high - low) or 1.0
    grid = np.linspace(max(low - room, 0.0) if low >= 0 else low - room, high + room, 300)
    sheet = Sheet(1, 1, style.ONE_COLUMN * 1.2, 2.8)
    (axes,) = sheet.axes
    medians = {run: float(np.median(values)) for run, values in pooled.items()}
    look_of, names = looks_of(list(first.values())), titles(list(pooled))
    for run, values in pooled.items():
        density, median, look = _density(values, grid), medians[run], look_of[run]
        top = float(np.interp(median, grid, density))
        axes.plot(grid, density, color=look.colour, linestyle=look.dash)
        axes.fill_between(grid, density, color=look.colour, alpha=0.12, linewidth=0)
        axes.plot([median, median], [0, top], color=look.colour, linewidth=0.9, linestyle=style.DOTTED)
        axes.plot([median], [top], color=look.colour, marker=look.marker, markersize=5, linestyle="none")
        sheet.entry(look, f"{names[run]}: median {number(median)}")
        sheet.rows += [(run.method, "density", *point) for point in zip(grid.tolist(), density.tolist(), strict=True)]
        sheet.rows.append((run.method, "median", median, top))
    axes.set(xlabel=label, ylabel="density over test examples", ylim=(0, None), xlim=(grid[0], grid[-1]))
    examples = min(len(values) for run in pooled for values in drawn[run])
    trainings = sorted({len(drawn[run]) for run in pooled})
    return sheet.done(caption("density", comparison, said, medians, examples, trainings, *settings), most=1)


@draws("kappa", "Concentration of gradients over the test examples", DENSITY, records.ConcentrationRecord)
def kappa(comparison: Comparison, found: Found[records.ConcentrationRecord]) -> Figure | None:
    """Density of the estimated concentration over test examples."""
    ns = listed(sorted({str(record.n) for _, record in found}))
    label = f"estimated concentration κ̂ of {ns} gradients"
    return _densities(comparison, found, lambda record: record.kappa[record.usable], label, "κ̂")


@draws("rho-attacked", "Concentration of gradients at attacked examples", DENSITY, records.GradientNoiseRecord)
def rho_attacked(comparison: Comparison, found: Found[records.GradientNoiseRecord]) -> Figure | None:
    """Density, over test examples, of the concentration of gradients where an attack leads."""
    settings = f"ε = {found[0][1].epsilon:.4g}, {found[0][1].n} gradients of the margin"
    label, said = "mean resultant length ρ of gradients at the attacked x", "ρ at the attacked x"
    return _densities(comparison, found, lambda record: record.rho[:, 1], label, said, settings)


@draws("loss-increase", "Loss increase under EOT-PGD", DENSITY, records.LossIncreaseRecord)
def loss_increase(comparison: Comparison, found: Found[records.LossIncreaseRecord]) -> Figure | None:
    """Density of what EOT-PGD adds to the loss, over test examples."""
    record = found[0][1]
    settings = f"ε = {record.epsilon:.4g}, n = {record.n:.4g}, m = {record.m:.4g}"
    label, said = "increase of the loss under EOT-PGD (nats)", "loss increase"
    figure = _densities(comparison, found, lambda record: record.increase, label, said, settings)
    papers = comparison.said("loss-increase", [(run, record.epsilon) for run, record in found])
    bound = caption("theorem", [f"{100 * float(record.holds.mean()):.0f} %" for _, record in found], papers)
    return figure and replace(figure, caption=f"{figure.caption} {bound}")


#: Norm -> how captions and labels write it, and its dash.
NORMS = {"Linf": ("ℓ∞", r"$\ell_\infty$", style.SOLID), "L2": ("ℓ2", r"$\ell_2$", style.DASHED)}
ROTATION = "method, norm, epsilon, angle, loss_difference, relative, accuracy"


@draws("rotation", "PGD with rotated gradients", ROTATION, by="measure RUN --what rotation")
def rotation(comparison: Comparison) -> Figure | None:
    """The gain of PGD if each gradient is rotated by an angle before it is used."""
    found = [(n, *entry) for n in NORMS for entry in comparison.with_measurement(records.RotationRecord, norm=n)]
    if not found:
        return None
    sheet = Sheet(1, 2, style.TWO_COLUMNS, 2.7)
    left, right = sheet.axes
    turned = []
    names, look_of = titles(list(dict.fromkeys(run for _, run, _ in found))), looks_of(comparison.runs)
    for norm, run, record in found:
        look = look_of[run]
        angles = np.array(record.angles, dtype=float)
        increase, accuracy = record.increase.astype(float).mean(0), 100 * record.right.mean(0)
        relative = increase / increase[0] if increase[0] else increase
        symbol, in_maths, dash = NORMS[norm]
        drawn: dict[str, Any] = {"linestyle": dash, "markerfacecolor": "white" if norm == "L2" else look.colour}
        style.plot(left, look, angles, relative, **drawn)
        style.plot(right, look, angles, accuracy, **drawn)
        columns = (values.tolist() for values in (angles, increase, relative, accuracy))
        sheet.rows += [(run.method, norm, record.epsilon, *values) for values in zip(*columns, strict=True)]
        sheet.entry(look, f"{names[run]}, {in_maths}, ε = {record.epsilon:.4g}", **drawn)
        away = float(np.abs(relative - np.cos(np.radians(angles))).max())
        turned.append((f"{names[run]}, {symbol}", increase, accuracy, away))
    turn, cosine = np.linspace(0, 90, 91), Look(style.GREY, "", style.DOTTED)
    style.plot(left, cosine, turn, np.cos(np.radians(turn)), zorder=0)
    sheet.entry(cosine, "cos θ")
    for axes, label in ((left, "loss difference, relative to 0°"), (right, style.ACCURACY)):
        axes.set(xlabel="angle θ between the gradient and its proxy (°)", ylabel=label, xticks=range(0, 91, 15))
    right.set_ylim(-2, 102)
    return sheet.done(caption("rotation", comparison, turned, found[0][2]))


MARKERS = "osD^vPX*"  #: of the trainings of one method, in their order
BREAK = r"$/\!/$"  #: where an axis is interrupted
NEARBY = ("Concentration of gradients near the examples", "method, lam, distance, rho, length")


@draws("rho-nearby", *NEARBY, records.NearbyRecord)
def rho_nearby(comparison: Comparison, found: Found[records.NearbyRecord]) -> Figure:
    """Concentration and length of gradients against the distance from the example; one line for each training."""
    shown = found[0][1]
    sheet = Sheet(1, 2, style.TWO_COLUMNS, 2.7)
    rhos: dict[str, list[list[float]]] = {}
    look_of = {run.title: look for run, look in looks_of([group[0] for group in comparison.groups]).items()}
    for run, record in found:
        look, told = look_of[run.title], rhos.setdefault(run.title, [])  # trainings of one method look alike
        if not told:
            sheet.entry(look._replace(marker=""), run.title)
        rho = np.nanmedian(record.rho.astype(float), 0).tolist()
        length = np.median(record.length.astype(float), 0).tolist()
        for axes, values in zip(sheet.axes, (rho, length), strict=True):
            style.plot(axes, look, record.distances, values, marker=MARKERS[len(told) % len(MARKERS)])
        sheet.rows += [(run.method, run.lam, *point) for point in zip(record.distances, rho, length, strict=True)]
        told.append(rho)
    between = shown.distances[1] / 2
    for axes, label in zip(sheet.axes, ("median ρ of gradients", "median length of a gradient"), strict=True):
        axes.set_xscale("symlog", linthresh=shown.distances[1], linscale=0.5)
        axes.axvline(between, color="white", linewidth=5, zorder=3)  # 0 lies infinitely far away on a logarithmic axis
        at_axis: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 4}
        axes.plot([between], [0], marker=BREAK, markersize=7, color=style.BLACK, **at_axis)
        along = r"$\ell_\infty$ distance from the clean x along a random direction"
        axes.set(xlabel=along, ylabel=label, ylim=(0, None))
        axes.set_xticks(shown.distances, [f"{distance:.2g}" for distance in shown.distances], rotation=45)
        axes.minorticks_off()
    return sheet.done(caption("nearby", comparison, rhos, shown))


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
    """The values after training: measure -> run -> its last value."""
    return {m: {run: line[m] for run in runs for line in run.epochs if m in line} for m in measures}
