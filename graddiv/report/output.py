"""Tables and figures as values, and the files they become: equal values give equal bytes."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graddiv import store

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

NOT_RUN = "not run"
NOT_APPLICABLE = "–"
"""In cells of modes that a deterministic network does not have."""


@dataclass(frozen=True)
class Table:
    """A table of texts; `published` cells are the paper's, and every writer marks them."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    published: frozenset[int] = frozenset()
    """Columns that hold the paper's values."""
    highlighted: frozenset[tuple[int, int]] = frozenset()
    """Cells (row, column) to stand out, such as the attack that decides the Total."""
    published_rows: frozenset[int] = frozenset()
    """Rows that hold the paper's values."""
    number_columns: tuple[str, ...] = ()
    numbers: tuple[tuple[object, ...], ...] = ()
    """The numbers behind the texts, unrounded, one cell of the table in each row: for a second CSV."""

    def is_published(self, row: int, column: int) -> bool:
        """Whether a cell, or with row -1 the name of a column, is of the paper's."""
        marked = column in self.published or row in self.published_rows
        return marked and (row < 0 or self.rows[row][column] != NOT_APPLICABLE)


@dataclass(frozen=True)
class Figure:
    """A figure and the numbers it shows."""

    name: str
    title: str
    figure: "Canvas"
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    """The data of the figure, for its CSV."""
    caption: str
    """What to see."""


def save(what: Table | Figure, directory: Path) -> list[Path]:
    """Write all forms of a table (md, tex, csv) or of a figure (svg, pdf, png, csv)."""
    store.make_directory(directory)
    files = table_files(what) if isinstance(what, Table) else drawing_files(what)
    paths = []
    for name, content in files.items():
        store.write(directory / name, content)
        paths.append(directory / name)
    return paths


def table_files(table: Table) -> dict[str, bytes]:
    """The files of a table by name."""
    files = {
        f"{table.name}.md": markdown(table).encode(),
        f"{table.name}.tex": latex(table).encode(),
        f"{table.name}.csv": csv_text(table.columns, table.rows).encode(),
    }
    if table.numbers:
        files[f"{table.name}-numbers.csv"] = csv_text(table.number_columns, table.numbers).encode()
    return files


def drawing_files(drawing: Figure) -> dict[str, bytes]:
    """The files of a figure by name."""
    images = {f"{drawing.name}.{form}": image(drawing, form) for form in ("svg", "pdf", "png")}
    return images | {f"{drawing.name}.csv": csv_text(drawing.columns, drawing.rows).encode()}


def image(drawing: Figure, form: str) -> bytes:
    """The figure as svg, pdf or png, without the date that would make equal figures differ."""
    return _drawn(drawing.figure, drawing.title, drawing.caption, form)


@lru_cache(maxsize=128)  # a figure is wanted twice, for its file and for the page
def _drawn(figure: "Canvas", title: str, caption: str, form: str) -> bytes:
    from graddiv.report.style import style

    about: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Title": title, "Description": caption},
        "pdf": {"CreationDate": None, "Title": title, "Subject": caption},
        "png": {"Title": title, "Description": caption},
    }
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format=form, metadata=about[form])
    return buffer.getvalue()


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Comma-separated values under a line of names."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def markdown(table: Table) -> str:
    """The table in Markdown: the paper's values in italics, highlighted cells in bold."""

    def cell(row: int, column: int, text: str) -> str:
        text = text.replace("|", "\\|")
        if (row, column) in table.highlighted:
            return f"**{text}**"
        return f"*{text}*" if table.is_published(row, column) else text

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    body = [line(cell(i, j, text) for j, text in enumerate(row)) for i, row in enumerate(table.rows)]
    head = [line(cell(-1, j, name) for j, name in enumerate(table.columns)), line(["---"] * len(table.columns))]
    return "\n".join([f"**{table.title}**", "", *head, *body, "", table.caption, ""])


def latex(table: Table) -> str:
    """The table in LaTeX (booktabs): the paper's values in italics, highlighted cells in bold."""

    def cell(row: int, column: int, text: str) -> str:
        text = latex_text(text)
        if (row, column) in table.highlighted:
            return rf"\textbf{{{text}}}"
        return rf"\textit{{{text}}}" if table.is_published(row, column) else text

    def line(row: int, texts: Sequence[str]) -> str:
        return "  " + " & ".join(cell(row, j, text) for j, text in enumerate(texts)) + r" \\"

    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{\textbf{{{latex_text(table.title)}.}} {latex_text(table.caption)}}}",
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"  \toprule",
            line(-1, table.columns),
            r"  \midrule",
            *(line(i, row) for i, row in enumerate(table.rows)),
            r"  \bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


LATEX = {
    "\\": r"\textbackslash{}",
    "κ̂": r"$\hat\kappa$",
    "ρ̂": r"$\hat\rho$",
    "EOT^1": "EOT$^1$",
    **{c: rf"\{c}" for c in "&%_#${}"},
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\le$",
    "–": "--",
    "−": "$-$",
    "°": r"$^\circ$",
    "ε": r"$\epsilon$",
    "κ": r"$\kappa$",
    "λ": r"$\lambda$",
    "ρ": r"$\rho$",
    "θ": r"$\theta$",
    "ℓ": r"$\ell$",
    "∞": r"$_\infty$",
}


def latex_text(text: str) -> str:
    """Text as LaTeX wants it written; longer keys come first where one begins another."""
    done, i = [], 0
    while i < len(text):
        key = next((k for k in LATEX if text.startswith(k, i)), text[i])
        done.append(LATEX.get(key, key))
        i += len(key)
    return "".join(done)
