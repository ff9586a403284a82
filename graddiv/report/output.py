"""Tables and figures as values, the registry that draws them, and their files; equal values give equal bytes."""

import base64
import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jinja2

from graddiv import __version__, store
from graddiv.errors import GradDivError
from graddiv.records import MeasurementRecord
from graddiv.registries import Registry
from graddiv.report.comparison import Comparison, Measurement, ReportRun, titles

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

NOT_RUN = "not run"
NOT_APPLICABLE = "–"  #: in cells of modes that a deterministic network does not have


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """A table or a figure."""

    name: str = ""
    title: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...]  #: the texts of a table, the numbers that a figure shows
    caption: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Table(Drawn):
    """A table of texts; `published` cells are the paper's, and every writer marks them."""

    published: frozenset[int] = frozenset()  #: columns that hold the paper's values
    published_rows: frozenset[int] = frozenset()  #: rows that do
    highlighted: frozenset[tuple[int, int]] = frozenset()  #: cells (row, column) to stand out
    number_columns: tuple[str, ...] = ()
    numbers: tuple[tuple[object, ...], ...] = ()  #: the numbers behind the cells, unrounded, for a second CSV

    def is_published(self, row: int, column: int) -> bool:
        """Whether a cell, or with row -1 the name of a column, is of the paper's."""
        marked = column in self.published or row in self.published_rows
        return marked and (row < 0 or self.rows[row][column] != NOT_APPLICABLE)


@dataclass(frozen=True, kw_only=True, eq=False)
class Figure(Drawn):
    """A figure of matplotlib."""

    figure: "Canvas"


def drawing() -> AbstractContextManager[None]:
    """Draw and save under our settings, and leave the caller's as they were; also a decorator."""
    from matplotlib import style

    return style.context(Path(__file__).with_name("figures.mplstyle"))


D = TypeVar("D", Table, Figure)
Found = list[tuple[ReportRun, Measurement]]
RENDERERS: Registry[Callable[[Comparison], Any]] = Registry("renderer")  #: makes the table or figure that a plan names
DRAWN_OF: dict[str, list[str]] = {}  #: renderers by the kind of measurement that they draw


def draws(
    name: str, title: str = "", columns: str = "", of: type[MeasurementRecord] | None = None, *, by: str = ""
) -> Callable[[Callable[..., D | None]], Callable[[Comparison], D]]:
    """Register what makes the table or figure that plans call `name`, of exactly the records of a comparison.

    title: may hold {data}.  columns: names with commas between them.  of: measurements, passed to the function as
    [(run, record)].  by: the command that makes its records, for the error if the function returns None.
    """
    command = by or f"measure RUN --what {of.kind.removeprefix('loss-') if of else name}"

    def register(draw: Callable[..., D | None]) -> Callable[[Comparison], D]:
        @wraps(draw)
        def drawn(comparison: Comparison) -> D:
            found = [comparison.with_measurement(of)] if of else []
            with drawing():
                made: D | None = draw(comparison, *found) if all(found) else None
            if made is None:
                raise GradDivError(f"no run has the records that {name} is made of: 'graddiv {command}' makes them")
            shown = made.title or title.format(data=comparison.data_title)
            named = made.columns or tuple(columns.split(", "))
            return replace(made, name=made.name or name, title=shown, columns=named)

        RENDERERS[name] = drawn
        if of is not None:
            DRAWN_OF.setdefault(of.kind, []).append(name)
        return drawn

    return register


def save(what: Drawn, directory: Path) -> list[Path]:
    """Write all forms of a table (md, tex, csv) or of a figure (svg, pdf, png, csv)."""
    store.make_directory(directory)
    files = drawn_files(what)
    for name, content in files.items():
        store.write(directory / name, content)
    return [directory / name for name in files]


def drawn_files(what: Drawn) -> dict[str, bytes]:
    """The files of a table or figure by name."""
    files = {".csv": csv_text(what.columns, what.rows).encode()}
    if isinstance(what, Figure):
        files |= {f".{form}": image(what, form) for form in ("svg", "pdf", "png")}
    if isinstance(what, Table):
        files |= {".md": markdown(what).encode(), ".tex": latex(what).encode()}
    if isinstance(what, Table) and what.numbers:
        files["-numbers.csv"] = csv_text(what.number_columns, what.numbers).encode()
    return {f"{what.name}{end}": content for end, content in files.items()}


@lru_cache(maxsize=128)  # a figure is wanted twice, for its file and for the page
def image(drawn: Figure, form: str) -> bytes:
    """The figure as svg, pdf or png, without the date that would make equal figures differ."""
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    metadata = {**dates[form], "Title": drawn.title, "Subject" if form == "pdf" else "Description": drawn.caption}
    buffer = io.BytesIO()
    with drawing():
        drawn.figure.savefig(buffer, format=form, metadata=metadata)
    return buffer.getvalue()


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Comma-separated values under a line of names."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([columns, *rows])
    return buffer.getvalue()


def _cells(table: Table, escape: Callable[[str], str], bold: str, italic: str) -> list[list[str]]:
    """The names of the columns and all rows: highlighted cells in bold, the paper's values in italics."""

    def cell(row: int, column: int, text: str) -> str:
        marked = bold if (row, column) in table.highlighted else italic if table.is_published(row, column) else "{}"
        return marked.replace("{}", escape(text))

    return [[cell(i, j, text) for j, text in enumerate(row)] for i, row in enumerate([table.columns, *table.rows], -1)]


def markdown(table: Table) -> str:
    """The table in Markdown."""
    rows = _cells(table, lambda text: text.replace("|", "\\|"), "**{}**", "*{}*")
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    ruled = f"| {' | '.join(['---'] * len(table.columns))} |"
    return "\n".join([f"**{table.title}**", "", head, ruled, *body, "", table.caption, ""])


def latex(table: Table) -> str:
    """The table in LaTeX (booktabs)."""
    head, *body = (f"  {' & '.join(row)} \\\\" for row in _cells(table, latex_text, r"\textbf{{}}", r"\textit{{}}"))
    return "\n".join(
        [
            "\\begin{table}\n\\centering",
            rf"\caption{{\textbf{{{latex_text(table.title)}.}} {latex_text(table.caption)}}}",
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            f"  \\toprule\n{head}\n  \\midrule",
            *body,
            "  \\bottomrule\n\\end{tabular}\n\\end{table}\n",
        ]
    )


LATEX = {
    "\\": r"\textbackslash{}", "κ̂": r"$\hat\kappa$", "ρ̂": r"$\hat\rho$", "EOT^1": "EOT$^1$",
    **{c: rf"\{c}" for c in "&%_#${}"}, "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "±": r"$\pm$",
    "×": r"$\times$", "≤": r"$\le$", "–": "--", "−": "$-$", "°": r"$^\circ$", "ε": r"$\epsilon$", "κ": r"$\kappa$",
    "λ": r"$\lambda$", "ρ": r"$\rho$", "θ": r"$\theta$", "ℓ": r"$\ell$", "∞": r"$_\infty$",
}  # fmt: skip
_LATEX = re.compile("|".join(map(re.escape, LATEX)))  # longer keys come first where one begins another


def latex_text(text: str) -> str:
    """Escape text for LaTeX."""
    return _LATEX.sub(lambda found: LATEX[found[0]], text)


def data_uri(kind: str, content: bytes) -> str:
    """A file inside the page."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def percent(share: float) -> str:
    """A share in percent, without the sign %."""
    return f"{100 * share:.1f}"


def bound(value: float) -> str:
    """8/255 for color images, as papers write it; 0.3 as it is."""
    whole = round(255 * value)
    return f"{whole}/255" if value < 0.1 and whole and abs(255 * value - whole) < 1e-3 else f"{value:.4g}"


def listed(parts: Sequence[str]) -> str:
    """A, B and C."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def legible(value: object) -> str:
    """Numbers with four digits, also inside lists and mappings; other values as text."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: NOT_APPLICABLE}[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {legible(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(legible(part) for part in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def prose(text: str) -> str:
    """Text with EOT¹, and no line breaks between numbers and their units or signs."""
    for breakable in (" %", " = ", " < ", " ± "):
        text = text.replace(breakable, breakable.replace(" ", "\u00a0"))
    return text.replace("EOT^1", "EOT¹")


def number(value: float) -> str:
    """Three digits, without powers of ten; 0 for what is only rounding."""
    return "0" if abs(value) < 1e-6 else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


_PAGES = jinja2.Environment(
    loader=jinja2.PackageLoader("graddiv", "report"), undefined=jinja2.StrictUndefined, autoescape=True,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
_PAGES.filters |= {f.__name__: f for f in (prose, legible, percent, bound, listed, number)}
_PAGES.globals |= {"titles": titles, "version": __version__}
_CAPTIONS = _PAGES.overlay(autoescape=False, trim_blocks=False)


def fill(template: str, **content: Any) -> str:
    """Fill a template of this package."""
    return _PAGES.get_template(template).render(**content)


def caption(name: str, *content: Any, **more: Any) -> str:
    """Fill the macro of this name in captions.jinja, as one line."""
    macro = getattr(_CAPTIONS.get_template("captions.jinja").module, name.replace("-", "_"))
    return re.sub(r"\s+", " ", macro(*content, **more)).strip()
