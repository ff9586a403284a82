"""What all figures share."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from graddiv.errors import GradDivError
from graddiv.report import style
from graddiv.report.comparison import Comparison, Measurement, ReportRun
from graddiv.report.output import Figure

Shown = TypeVar("Shown")
Draw = Callable[[Comparison], Figure]

FIGURES: dict[str, Draw] = {}
"""Every figure of the paper by name."""


def styled(draw: Callable[[Shown], Figure]) -> Callable[[Shown], Figure]:
    """Draw a figure in our style."""

    @wraps(draw)
    def drawn(shown: Shown) -> Figure:
        with style.style():
            drawing = draw(shown)
            # laid out once: each saving would move things by a hair, and equal figures would differ
            drawing.figure.draw_without_rendering()
            drawing.figure.set_layout_engine("none")
        return drawing

    return drawn


def draws(name: str) -> Callable[[Draw], Draw]:
    """Register a figure of comparisons, and draw it in our style."""

    def register(draw: Draw) -> Draw:
        FIGURES[name] = styled(draw)
        return FIGURES[name]

    return register


def missing(figure: str, what: str, command: str) -> GradDivError:
    """The error of a figure whose records are not there."""
    return GradDivError(f"the figure {figure} needs {what}: 'graddiv {command}' makes them")


def panels(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Canvas, list[Axes]]:
    """A figure and its axes, row by row."""
    figure = Canvas(figsize=(width, height))
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(grid.flat)


def with_record(
    comparison: Comparison, kind: type[Measurement], **wanted: Any
) -> list[tuple[ReportRun, Measurement, style.Look]]:
    """The runs that have a measurement of this kind, with it and how they are drawn."""
    of_run = dict(zip([run.path for run in comparison.runs], looks(comparison.runs), strict=True))
    return [(run, record, of_run[run.path]) for run, record in comparison.with_measurement(kind, **wanted)]


def looks(runs: Sequence[ReportRun]) -> list[style.Look]:
    """How runs are drawn."""
    return style.looks([run.method for run in runs])


LONG = 45
"""Letters of a label beside which there is no room for another."""

FEW = 6
"""Lines of a legend that leave room for the axes."""


def legend_below(figure: Canvas, handles: Sequence[Line2D], most: int) -> None:
    """One legend for all panels, where it covers no data; in even lines of at most so many entries, one if long."""
    if len(handles) <= FEW and any(len(str(each.get_label())) > LONG for each in handles):
        most = 1
    lines = -(-len(handles) // most)
    columns = -(-len(handles) // lines)
    figure.legend(handles=list(handles), loc="outside lower center", ncols=columns, handlelength=3.2)


def handle(look: style.Look, label: str, **options: Any) -> Line2D:
    """A line of the legend."""
    values = {"color": look.colour, "marker": look.marker, "linestyle": look.dash, "label": label, **options}
    return Line2D([], [], **values)


def listed(parts: Sequence[str]) -> str:
    """A, B and C."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def change(before: float, after: float) -> str:
    """How a number goes from one run to another, in words that hold either way."""
    verb = "falls" if after < before else "rises" if after > before else "stays"
    return f"{verb} from {number(before)} to {number(after)}"


def number(value: float) -> str:
    """Three digits, without powers of ten; 0 for what is only rounding."""
    return "0" if abs(value) < 1e-6 else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def pair(comparison: Comparison) -> tuple[ReportRun, ReportRun] | None:
    """A run without GradDiv and one with it, of the same method otherwise: what captions compare."""
    for plain in comparison.runs:
        for regularized in comparison.runs:
            if plain.lam == 0 < regularized.lam and regularized.method.split("+")[0] == plain.method.split("+")[0]:
                return plain, regularized
    return None


def scale(comparison: Comparison, *settings: str) -> str:
    """The sentence that ends each caption: at which scale and settings ours were obtained."""
    return f"Ours: {', '.join([f'recipe scale {comparison.scale}', comparison.data, *settings])}."
