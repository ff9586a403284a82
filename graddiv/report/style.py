"""The looks of figures, distinct for the color-blind and in gray print, and the sheet that they are drawn on."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from graddiv.report.comparison import ReportRun, titles
from graddiv.report.output import Figure

ONE_COLUMN, TWO_COLUMNS = 3.5, 7.16  #: widths in inches of the paper's columns
ACCURACY = "accuracy (%)"

Dash = str | tuple[int, tuple[int, ...]]


class Look(NamedTuple):
    """Color, marker and dash of a line."""

    colour: str
    marker: str
    dash: Dash = "solid"

    @property
    def line(self) -> dict[str, Any]:
        """Its keyword arguments for matplotlib."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dash}


# Okabe and Ito's palette
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE, GREY = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#999999",
)  # fmt: skip
SOLID, DASHED, DOTTED = "solid", (0, (5, 2)), (0, (1, 1))

#: The paper's colors for its two main methods: black without GradDiv, red with it.
METHODS = {
    "no-defense": Look(GREY, "x"),
    "adv-train": Look(ORANGE, "v"),
    "rse": Look(SKY, "^"),
    "rse+graddiv": Look(BLUE, "P"),
    "pni": Look(GREEN, "D"),
    "mi": Look(PURPLE, "X"),
    "adv-bnn": Look(BLACK, "o"),
    "adv-bnn+control": Look(BLUE, "h"),
    "adv-bnn+graddiv": Look(VERMILLION, "s"),
    "adv-bnn+graddiv-kappa": Look(VERMILLION, "p"),
    "adv-bnn+graddiv-mean": Look(SKY, "^"),
    "adv-bnn+graddiv-dpp": Look(GREEN, "D"),
    "adv-bnn+graddiv-max": Look(PURPLE, "v"),
    "adv-bnn+graddiv-smoothmax": Look(ORANGE, "X"),
}
#: For methods of the user's own, and for second runs of one method.
SPARE = tuple(Look(c, m) for c, m in zip((BLUE, GREEN, PURPLE, SKY, ORANGE, GREY), "hd<>*8", strict=True))


def looks(methods: Sequence[str]) -> list[Look]:
    """One look for each run; no two are the same, nor of one color, while there are spare ones."""
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


def looks_of(runs: Sequence[ReportRun]) -> dict[ReportRun, Look]:
    """The look of each run."""
    return dict(zip(runs, looks([run.method for run in runs]), strict=True))


LONG = 45  #: letters of a label that needs a line of the legend for itself
FEW = 6  #: lines of a legend that leave room for the axes


class Sheet:
    """A figure in the making: its panels row by row, the entries of its legend, and the rows of its CSV."""

    def __init__(self, down: int, across: int, width: float, height: float, **options: Any) -> None:
        self.figure = Canvas(figsize=(width, height))
        self.axes: list[Axes] = list(self.figure.subplots(down, across, squeeze=False, **options).flat)
        self.handles: list[Line2D] = []
        self.rows: list[tuple[object, ...]] = []

    def entry(self, look: Look, label: str, **options: Any) -> None:
        self.handles.append(Line2D([], [], label=label, **look.line | options))

    def legend(self, runs: Sequence[ReportRun]) -> dict[ReportRun, Look]:
        """Add an entry for each run; returns how they are drawn."""
        look_of = looks_of(runs)
        for run, title in titles(runs).items():
            self.entry(look_of[run], title)
        return look_of

    def done(self, caption: str, most: int = 2, **about: Any) -> Figure:
        """Close the figure with one legend for all panels, in even lines of at most `most` entries, one if long."""
        if self.handles:
            if len(self.handles) <= FEW and any(len(str(each.get_label())) > LONG for each in self.handles):
                most = 1
            across = -(-len(self.handles) // -(-len(self.handles) // most))
            self.figure.legend(handles=self.handles, loc="outside lower center", ncols=across, handlelength=3.2)
        # laid out once: each saving would move things by a hair, and equal figures would differ
        self.figure.draw_without_rendering()
        self.figure.set_layout_engine("none")
        return Figure(figure=self.figure, rows=tuple(self.rows), caption=caption, **about)


def plot(axes: Axes, look: Look, x: Any, y: Any, low: Any = None, high: Any = None, **options: Any) -> None:
    """Draw a line in its look, over a band where there are bounds."""
    axes.plot(x, y, **look.line | options)
    if low is not None:
        axes.fill_between(x, low, high, color=look.colour, alpha=0.13, linewidth=0)


def log_ticks(axes: Axes, counts: Sequence[int]) -> None:
    """A logarithmic axis with ticks at these counts alone."""
    axes.set_xscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()


def percents(axes: Axes, label: str, what: str = ACCURACY) -> None:
    """Accuracy upwards, from 0 to 100 %."""
    axes.set(xlabel=label, ylabel=what, ylim=(-2, 102))
