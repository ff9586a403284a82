"""How far from the examples the dispersion of gradients reaches."""

from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from graddiv.records import NearbyRecord
from graddiv.report import style
from graddiv.report.comparison import Comparison
from graddiv.report.figures.common import (
    draws,
    handle,
    legend_below,
    listed,
    looks,
    missing,
    number,
    panels,
    scale,
    with_record,
)
from graddiv.report.output import Figure

MARKERS = "osD^vPX*"
"""Of the trainings of one method, in their order."""

BREAK = r"$/\!/$"
"""Where an axis is interrupted."""


@draws("rho-nearby")
def rho_nearby(comparison: Comparison) -> Figure:
    """Concentration and length of gradients against the distance from the example; one line for each training."""
    found = with_record(comparison, NearbyRecord)
    if not found:
        raise missing("rho-nearby", "gradients near the test examples", "measure RUN --what nearby")
    shown = found[0][1]
    figure, (left, right) = panels(1, 2, style.TWO_COLUMNS, 2.7)
    rows: list[tuple[object, ...]] = []
    ends: dict[str, list[tuple[float, float]]] = {}
    handles: dict[str, Line2D] = {}
    first = [group[0] for group in comparison.groups]
    look_of = {run.title: look for run, look in zip(first, looks(first), strict=True)}  # trainings of one method alike
    for run, record, _ in found:
        look = look_of[run.title]
        marker = MARKERS[len(ends.get(run.title, ())) % len(MARKERS)]
        rho = np.nanmedian(record.rho.astype(float), 0).tolist()
        length = np.median(record.length.astype(float), 0).tolist()
        for axes, values in ((left, rho), (right, length)):
            axes.plot(record.distances, values, color=look.colour, marker=marker, linestyle=look.dash)
        rows += [(run.method, run.lam, *point) for point in zip(record.distances, rho, length, strict=True)]
        ends.setdefault(run.title, []).append((rho[0], max(rho)))
        handles.setdefault(run.title, handle(look._replace(marker=""), run.title))
    for axes, label in ((left, "median ρ of gradients"), (right, "median length of a gradient")):
        axes.set_xscale("symlog", linthresh=shown.distances[1], linscale=0.5)
        between = shown.distances[1] / 2
        axes.axvline(between, color="white", linewidth=5, zorder=3)  # 0 lies infinitely far away on a logarithmic axis
        at_axis: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 4}
        axes.plot([between], [0], marker=BREAK, markersize=7, color=style.BLACK, **at_axis)
        axes.set(
            xlabel=r"$\ell_\infty$ distance from the clean x along a random direction", ylabel=label, ylim=(0, None)
        )
        axes.set_xticks(shown.distances, [f"{distance:.2g}" for distance in shown.distances], rotation=45)
        axes.minorticks_off()
    legend_below(figure, list(handles.values()), 2)
    said = [
        f"{title} {listed([f'{number(at)} at x and at most {number(most)} around it' for at, most in values])}"
        for title, values in ends.items()
    ]
    return Figure(
        name="rho-nearby",
        title="Concentration of gradients near the examples",
        figure=figure,
        columns=("method", "lam", "distance", "rho", "length"),
        rows=tuple(rows),
        caption=(
            "One line for each training, with the same marker on both sides. Where gradients disperse at the clean x "
            "and agree again at a small distance, "
            f"they do so in a kink, not around x. Median ρ: {'; '.join(said)}. "
            f"{scale(comparison, f'{shown.examples} test examples', f'{shown.n} gradients of the soft margin')}"
        ),
    )
