"""Gradients themselves: where they point, how concentrated they are, and what an attack along them gains."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from mpl_toolkits.mplot3d import Axes3D  # type: ignore[import-untyped]

from graddiv.records import (
    ConcentrationRecord,
    GradientNoiseRecord,
    GradientsRecord,
    LossIncreaseRecord,
    RotationRecord,
)
from graddiv.report import projections, style
from graddiv.report.comparison import Comparison, Measurement, ReportRun, titles
from graddiv.report.figures.common import (
    change,
    draws,
    handle,
    legend_below,
    listed,
    looks,
    missing,
    number,
    pair,
    panels,
    scale,
    with_record,
)
from graddiv.report.output import Figure

SETTINGS = {"epsilon": "ε", "n": "n", "m": "m"}
NORMS: dict[str, tuple[str, style.Dash]] = {"Linf": ("ℓ∞", style.SOLID), "L2": ("ℓ2", style.DASHED)}

Sampled = list[tuple[ReportRun, style.Look, Float[np.ndarray, "n p"]]]


def _sampled(comparison: Comparison, name: str) -> Sampled:
    """The unit gradients at the first test example of one or two runs: without and with GradDiv, or else the first."""
    found = with_record(comparison, GradientsRecord)
    if not found:
        raise missing(name, "unit gradients at the first test example", "measure RUN --what gradients")
    compared = pair(comparison.of([run for run, *_ in found]))
    chosen = [entry for entry in found if entry[0] in compared] if compared else found[:2]
    return [(run, look, record.gradients[0].astype(np.float64)) for run, record, look in chosen]


def _mrl(v: Float[np.ndarray, "n p"]) -> float:
    return float(np.linalg.norm(v.mean(0)))


def _debiased(v: Float[np.ndarray, "n p"]) -> float:
    """sqrt((n rho^2 - 1) / (n - 1)): of what the MRL of more and more gradients tends to, not biased by n."""
    return float(np.sqrt(max(0.0, (len(v) * _mrl(v) ** 2 - 1) / (len(v) - 1))))


def _scatter_caption(comparison: Comparison, sampled: Sampled) -> str:
    lengths = [_mrl(v) for *_, v in sampled]
    debiased = listed([f"{_debiased(v):.3g}" for *_, v in sampled])
    names = titles([run for run, *_ in sampled])
    if len(sampled) == 2:
        said = f"From {names[0]} to {names[1]} the sample MRL ρ̂, the length of the mean of unit gradients, "
        said += f"{change(*lengths)} (debiased {debiased})."
    else:
        said = f"The sample MRL ρ̂ of {names[0]}, the length of the mean of its unit gradients, is {lengths[0]:.3g} "
        said += f"(debiased {debiased})."
    n = len(sampled[0][2])
    papers = comparison.said("scatter", [(run, 0.0) for run, *_ in sampled])
    return (
        f"{said} Of orthogonal gradients it would be 1/√n = {n**-0.5:.2f}.{papers} "
        f"{scale(comparison, f'{n} gradients at the first test example')}"
    )


@draws("sphere")
def sphere(comparison: Comparison) -> Figure:
    """Unit gradients in the space of the two mean gradients and the direction in which they spread most."""
    sampled = _sampled(comparison, "sphere")
    basis = projections.space(*(v for *_, v in sampled))
    figure = Canvas(figsize=(style.ONE_COLUMN, 3.6))
    axes = cast(Axes3D, figure.add_subplot(projection="3d"))
    _globe(axes)
    rows: list[tuple[object, ...]] = []
    for run, look, v in sampled:
        points, mean = projections.project(v, basis), projections.project(v.mean(0), basis)
        axes.scatter(*points.T, color=look.colour, marker=look.marker, s=7, alpha=0.6, linewidths=0, depthshade=False)
        axes.plot(*np.stack([np.zeros(3), mean]).T, color=look.colour, linewidth=2.2)
        rows += [(run.method, "gradient", *point) for point in points.tolist()]
        rows.append((run.method, "mean", *mean.tolist()))
    axes.set_box_aspect((1, 1, 1), zoom=1.75)
    axes.view_init(elev=22, azim=-58)
    axes.set_axis_off()
    legend_below(figure, _mrl_handles(sampled), 1)
    return Figure(
        name="sphere",
        title="Loss gradients of sample models in the unit ball",
        figure=figure,
        columns=("method", "what", "x", "y", "z"),
        rows=tuple(rows),
        caption=(
            "Dots: unit gradients; lines: their mean, in the space of the means and of the direction, orthogonal to "
            f"them, in which gradients spread most. {_scatter_caption(comparison, sampled)}"
        ),
    )


def _globe(axes: Axes3D) -> None:
    """Circles of the unit sphere, for the eye."""
    turn = np.linspace(0, 2 * np.pi, 121)
    for latitude in np.radians([-60, -30, 0, 30, 60]):
        ring = np.cos(latitude)
        axes.plot(ring * np.cos(turn), ring * np.sin(turn), np.sin(latitude), color="#cccccc", linewidth=0.5)
    for longitude in np.radians(np.arange(0, 180, 30)):
        x, y = np.cos(turn) * np.cos(longitude), np.cos(turn) * np.sin(longitude)
        axes.plot(x, y, np.sin(turn), color="#cccccc", linewidth=0.5)


def _mrl_handles(sampled: Sampled) -> list[Line2D]:
    names = titles([run for run, *_ in sampled])
    return [handle(look, f"{name}: ρ̂ = {_mrl(v):.2f}") for name, (_, look, v) in zip(names, sampled, strict=True)]


@draws("scatter")
def scatter(comparison: Comparison) -> Figure:
    """Unit gradients on the plane of the two mean gradients, inside the unit circle."""
    sampled = _sampled(comparison, "scatter")
    means = [v.mean(0) for *_, v in sampled]
    basis = projections.plane(*means) if len(means) == 2 else projections.space(sampled[0][2])[:2]
    figure, (axes,) = panels(1, 1, style.ONE_COLUMN, 3.9)
    axes.add_patch(Circle((0, 0), 1, fill=False, edgecolor=style.GREY, linewidth=0.8))
    rows: list[tuple[object, ...]] = []
    for (run, look, v), mean in zip(sampled, means, strict=True):
        points, (x, y) = projections.project(v, basis), projections.project(mean, basis).tolist()
        axes.plot([0, x], [0, y], color=look.colour, linewidth=2.2)
        axes.scatter(
            points[:, 0], points[:, 1], s=9, color=look.colour, marker=look.marker, alpha=0.6, linewidths=0, zorder=3
        )
        rows += [(run.method, "gradient", *point) for point in points.tolist()]
        rows.append((run.method, "mean", x, y))
    axes.set(aspect="equal", xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    axes.set(xlabel=f"along the mean gradient of {sampled[0][0].title}", ylabel="orthogonal to it")
    legend_below(figure, _mrl_handles(sampled), 1)
    return Figure(
        name="scatter",
        title="Loss gradients of sample models on the plane of their means",
        figure=figure,
        columns=("method", "what", "x", "y"),
        rows=tuple(rows),
        caption=f"Dots: unit gradients; lines: their means. {_scatter_caption(comparison, sampled)}",
    )


def _density(values: Float[np.ndarray, " b"], grid: Float[np.ndarray, " g"]) -> Float[np.ndarray, " g"]:
    """A Gaussian kernel density; of values that are all alike, a histogram."""
    from scipy.stats import gaussian_kde

    if len(values) > 2 and np.ptp(values) > 1e-6 * max(1.0, float(np.abs(values).max())):
        density: np.ndarray = gaussian_kde(values)(grid)
        return density
    edges = np.append(grid, 2 * grid[-1] - grid[-2])
    return np.histogram(values, bins=edges, density=True)[0].astype(float)


def _densities(
    comparison: Comparison,
    name: str,
    kind: type[Measurement],
    values_of: Callable[[Measurement], np.ndarray],
    label: str,
    title: str,
    said: str,
    *settings: str,
) -> Figure:
    of_title: dict[str, list[np.ndarray]] = {}
    for run, record in comparison.with_measurement(kind):
        values = values_of(record).astype(np.float64)
        of_title.setdefault(run.title, []).append(values[np.isfinite(values)])
    first = [group[0] for group in comparison.groups]
    found = [
        (run, np.concatenate(of_title[run.title]), look)  # trainings of one method together
        for run, look in zip(first, looks(first), strict=True)
        if run.title in of_title
    ]
    found = [entry for entry in found if len(entry[1])]
    if not found:
        raise missing(
            name, f"the {kind.kind} of test examples", f"measure RUN --what {kind.kind.removeprefix('loss-')}"
        )
    every = np.concatenate([values for _, values, _ in found])
    low, high = every.min(), max(np.quantile(values, 0.99) for _, values, _ in found)
    room = 0.08 * (high - low) or 1.0
    grid = np.linspace(max(low - room, 0.0) if low >= 0 else low - room, high + room, 300)
    figure, (axes,) = panels(1, 1, style.ONE_COLUMN * 1.2, 2.8)
    rows: list[tuple[object, ...]] = []
    medians = []
    for (run, values, look), shown in zip(found, titles([run for run, *_ in found]), strict=True):
        density, median = _density(values, grid), float(np.median(values))
        top = float(np.interp(median, grid, density))
        axes.plot(grid, density, color=look.colour, linestyle=look.dash)
        axes.fill_between(grid, density, color=look.colour, alpha=0.12, linewidth=0)
        axes.plot([median, median], [0, top], color=look.colour, linewidth=0.9, linestyle=style.DOTTED)
        axes.plot([median], [top], color=look.colour, marker=look.marker, markersize=5, linestyle="none")
        medians.append((shown, median, look))
        rows += [(run.method, "density", *point) for point in zip(grid.tolist(), density.tolist(), strict=True)]
        rows.append((run.method, "median", median, top))
    axes.set(xlabel=label, ylabel="density over test examples", ylim=(0, None), xlim=(grid[0], grid[-1]))
    legend_below(figure, [handle(look, f"{shown}: median {number(median)}") for shown, median, look in medians], 1)
    compared = pair(comparison.of([run for run, *_ in found]))
    if compared:
        before, after = (next(float(np.median(v)) for run, v, _ in found if run is which) for which in compared)
        sentence = f"From {compared[0].title} to {compared[1].title} the median {said} {change(before, after)}"
        sentence += f" (ratio {after / before:.2f})." if before > 0 else "."
    else:
        sentence = f"Median {said}: {listed([f'{shown} {number(median)}' for shown, median, _ in medians])}."
    trainings = [of_title[run.title] for run, *_ in found]
    return Figure(
        name=name,
        title=title,
        figure=figure,
        columns=("method", "what", "x", "density"),
        rows=tuple(rows),
        caption=f"{sentence} {scale(comparison, *_counted(trainings), *settings)}",
    )


def _counted(of_methods: Sequence[Sequence[np.ndarray]]) -> list[str]:
    """Test examples of each training, and how many trainings there are of a method where there are several."""
    examples = min(len(values) for trainings in of_methods for values in trainings)
    trainings = sorted({len(trainings) for trainings in of_methods})
    several = [f"{' or '.join(map(str, trainings))} trainings"] if trainings[-1] > 1 else []
    return [f"{examples} test examples", *several]


@draws("kappa")
def kappa(comparison: Comparison) -> Figure:
    """Density of the estimated concentration over test examples."""
    return _densities(
        comparison,
        "kappa",
        ConcentrationRecord,
        lambda record: record.kappa[record.usable],
        f"estimated concentration κ̂ of {listed(_gradients(comparison))} gradients" if _gradients(comparison) else "",
        "Concentration of gradients over the test examples",
        "κ̂",
    )


def _gradients(comparison: Comparison) -> list[str]:
    return sorted({str(record.n) for _, record, _ in with_record(comparison, ConcentrationRecord)})


@draws("rho-attacked")
def rho_attacked(comparison: Comparison) -> Figure:
    """Density, over test examples, of the concentration of gradients where an attack leads."""
    records = [record for _, record, _ in with_record(comparison, GradientNoiseRecord)]
    return _densities(
        comparison,
        "rho-attacked",
        GradientNoiseRecord,
        lambda record: record.rho[:, 1],
        "mean resultant length ρ of gradients at the attacked x",
        "Concentration of gradients at attacked examples",
        "ρ at the attacked x",
        *(f"ε = {record.epsilon:.4g}, {record.n} gradients of the margin" for record in records[:1]),
    )


@draws("loss-increase")
def loss_increase(comparison: Comparison) -> Figure:
    """Density of what EOT-PGD adds to the loss, over test examples."""
    found = comparison.with_measurement(LossIncreaseRecord)
    records = [record for _, record in found]
    drawing = _densities(
        comparison,
        "loss-increase",
        LossIncreaseRecord,
        lambda record: record.increase,
        "increase of the loss under EOT-PGD (nats)",
        "Loss increase under EOT-PGD",
        "loss increase",
        *(f"{letter} = {record.value(key):.4g}" for record in records[:1] for key, letter in SETTINGS.items()),
    )
    holds = [f"{100 * float(record.holds.mean()):.0f} %" for record in records]
    bound = f"Theorem 1's bound on its first-order part holds for {listed(holds)} of the examples."
    papers = comparison.said("loss-increase", [(run, record.epsilon) for run, record in found])
    return replace(drawing, caption=f"{drawing.caption} {bound}{papers}")


@draws("rotation")
def rotation(comparison: Comparison) -> Figure:
    """What PGD gains when each gradient is turned by an angle before it is used."""
    found = [(norm, *entry) for norm in NORMS for entry in with_record(comparison, RotationRecord, norm=norm)]
    if not found:
        raise missing("rotation", "rotation curves", "measure RUN --what rotation")
    figure, (left, right) = panels(1, 2, style.TWO_COLUMNS, 2.7)
    rows: list[tuple[object, ...]] = []
    said, handles = [], []
    runs = list(dict.fromkeys(run for _, run, *_ in found))
    names = dict(zip(runs, titles(runs), strict=True))
    for norm, run, record, look in found:
        angles = np.array(record.angles, dtype=float)
        increase, accuracy = record.increase.astype(float).mean(0), 100 * record.right.mean(0)
        relative = increase / increase[0] if increase[0] else increase
        symbol, dash = NORMS[norm]
        drawn: dict[str, Any] = {"linestyle": dash, "markerfacecolor": "white" if norm == "L2" else look.colour}
        left.plot(angles, relative, color=look.colour, marker=look.marker, **drawn)
        right.plot(angles, accuracy, color=look.colour, marker=look.marker, **drawn)
        rows += [
            (run.method, norm, record.epsilon, *values)
            for values in zip(angles.tolist(), increase.tolist(), relative.tolist(), accuracy.tolist(), strict=True)
        ]
        in_maths = {"Linf": r"$\ell_\infty$", "L2": r"$\ell_2$"}[norm]
        handles.append(handle(look, f"{names[run]}, {in_maths}, ε = {record.epsilon:.4g}", **drawn))
        away = float(np.abs(relative - np.cos(np.radians(angles))).max())
        said.append(
            f"{names[run]}, {symbol}: the loss difference {change(increase[0], increase[-1])}, at most {away:.2f} of "
            f"its value at 0° away from the cosine, and accuracy {change(accuracy[0], accuracy[-1])} %"
        )
    turn = np.linspace(0, 90, 91)
    left.plot(turn, np.cos(np.radians(turn)), color=style.GREY, linestyle=style.DOTTED, zorder=0)
    handles.append(handle(style.Look(style.GREY, "", style.DOTTED), "cos θ"))
    for axes, label in ((left, "loss difference, relative to 0°"), (right, style.ACCURACY)):
        axes.set(xlabel="angle θ between the gradient and its proxy (°)", ylabel=label, xticks=range(0, 91, 15))
    right.set_ylim(-2, 102)
    legend_below(figure, handles, 2)
    return Figure(
        name="rotation",
        title="PGD with rotated gradients",
        figure=figure,
        columns=("method", "norm", "epsilon", "angle", "loss_difference", "relative", "accuracy"),
        rows=tuple(rows),
        caption=(
            f"As each gradient is turned from 0° to 90°: {'; '.join(said)}. "
            f"{scale(comparison, f'{found[0][2].examples} test examples', f'm = {found[0][2].m}')}"
        ),
    )
