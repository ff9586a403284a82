"""How figures look: a colour, marker and dash for each method, told apart by the colour-blind and in grey."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib

ONE_COLUMN, TWO_COLUMNS = 3.5, 7.16
"""Widths in inches of the paper's columns."""

ACCURACY = "accuracy (%)"
EPSILON = r"perturbation bound ε ($\ell_\infty$, pixel range [0, 1])"

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws the same
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "figure.dpi": 200,
    "savefig.dpi": 200,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "graddiv",  # else the ids in an SVG are random
    "svg.fonttype": "path",
    "pdf.fonttype": 42,  # whole fonts, which journals ask for
}


Dash = str | tuple[int, tuple[int, ...]]


class Look(NamedTuple):
    """Colour, marker and dash of a line."""

    colour: str
    marker: str
    dash: Dash


# Okabe and Ito's palette
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE, GREY = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#999999",
)  # fmt: skip
SOLID, DASHED, DOTTED = "solid", (0, (5, 2)), (0, (1, 1))

METHODS = {
    "no-defense": Look(GREY, "x", SOLID),
    "adv-train": Look(ORANGE, "v", SOLID),
    "rse": Look(SKY, "^", SOLID),
    "rse+graddiv": Look(BLUE, "P", SOLID),
    "pni": Look(GREEN, "D", SOLID),
    "mi": Look(PURPLE, "X", SOLID),
    "adv-bnn": Look(BLACK, "o", SOLID),
    "adv-bnn+graddiv": Look(VERMILLION, "s", SOLID),
    "adv-bnn+graddiv-kappa": Look(VERMILLION, "p", SOLID),
    "adv-bnn+graddiv-mean": Look(BLUE, "^", SOLID),
    "adv-bnn+graddiv-dpp": Look(GREEN, "D", SOLID),
    "adv-bnn+graddiv-max": Look(PURPLE, "v", SOLID),
    "adv-bnn+graddiv-smoothmax": Look(ORANGE, "X", SOLID),
}
"""The paper's colours for its two main methods: black without GradDiv, red with it."""

SPARE = tuple(Look(c, m, SOLID) for c, m in zip((BLUE, GREEN, PURPLE, SKY, ORANGE, GREY), "hd<>*8", strict=True))
"""For methods of the user's own, and for second runs of one method."""


def looks(methods: Sequence[str]) -> list[Look]:
    """One look for each run; no two are the same, nor of one colour, while there are spare ones."""
    found: list[Look] = []
    taken = {METHODS[method].colour for method in methods if method in METHODS}
    for method in methods:
        own = METHODS.get(method)
        if own is None or own in found:
            fresh = [look for look in SPARE if look not in found] or [SPARE[len(found) % len(SPARE)]]
            own = next((look for look in fresh if look.colour not in taken), fresh[0])
            taken.add(own.colour)
        found.append(own)
    return found


@contextmanager
def style() -> Iterator[None]:
    """Draw and save under our settings, and leave the caller's as they were."""
    with matplotlib.rc_context(RC):  # type: ignore[arg-type]
        yield
