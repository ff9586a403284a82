"""The page, tables and figure of a comparison of models, drawn from its rows and pairs."""

from collections.abc import Sequence
from pathlib import Path

from graddiv import store
from graddiv.records.statistics import COMPARED, Compared
from graddiv.report import style
from graddiv.report.output import Figure, Table, bound, caption, drawing, fill, save
from graddiv.report.page import shown_figure, shown_table
from graddiv.report.style import Sheet, looks, percents, plot

PAIRS = ("models", "ε", "only the first right", "only the second right", "p")


def comparison_table(rows: Sequence[Compared]) -> Table:
    """Accuracy of every model at every radius, what randomness buys, and cost."""
    numbers = [(r.name, r.epsilon, r.accuracy.mean, *r.accuracy.interval, r.per_draw, r.known, r.passes) for r in rows]
    return Table(
        name="comparison",
        title="Accuracy under the worst of all attacks",
        columns=COMPARED,
        rows=tuple(row.cells for row in rows),
        caption=caption("comparison"),
        number_columns=("model", "epsilon", "accuracy", "low", "high", "per_draw", "draw_known", "passes"),
        numbers=tuple(numbers),
    )


def pairs_table(pairs: Sequence[tuple[str, str, float, int, int, float]]) -> Table:
    """How many images flip between two models, with a test."""
    rows = [(f"{a} / {b}", bound(e), str(lost), str(won), f"{p:.2g}") for a, b, e, lost, won, p in pairs]
    title = "Images on which only one of two models is right"
    return Table(name="flips", title=title, columns=PAIRS, rows=tuple(rows), caption=caption("flips"))


def accuracy_curve(rows: Sequence[Compared]) -> Figure:
    """Accuracy of every model against epsilon."""
    names = list(dict.fromkeys(row.name for row in rows))
    sheet = Sheet(1, 1, style.ONE_COLUMN * 1.35, 3.3)
    for name, look in zip(names, looks(names), strict=True):
        points = sorted((r.epsilon, *(100 * v for v in (r.accuracy.mean, *r.accuracy.interval)))
                        for r in rows if r.name == name)  # fmt: skip
        plot(sheet.axes[0], look, *zip(*points, strict=True))
        sheet.entry(look, name)
        sheet.rows += [(name, *point) for point in points]
    percents(sheet.axes[0], "radius ε of the attack")
    columns, title = ("model", "epsilon", "accuracy", "low", "high"), "Accuracy against the radius of the attack"
    return sheet.done(caption("comparison_curve"), most=3, name="accuracy-epsilon", title=title, columns=columns)


def write_comparison(
    rows: Sequence[Compared], pairs: Sequence[tuple[str, str, float, int, int, float]], directory: Path
) -> Path:
    """Write report.html, and tables and the figure beside it."""
    tables = [comparison_table(rows), pairs_table(pairs)]
    with drawing():
        figure = accuracy_curve(rows)
    for what in (*tables, figure):
        save(what, directory)
    names = list(dict.fromkeys(row.name for row in rows))
    layout = {"titles": names, "colours": [look.colour for look in looks(names)], "square": [False] * len(names)}
    shown = {"tables": [shown_table(each) for each in tables], "lead": shown_figure(figure), "attacked": []}
    html = fill("models.html.jinja", names=names, **layout, **shown)
    store.write(directory / "report.html", html.encode())
    return directory / "report.html"
