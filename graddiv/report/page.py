"""report.html: verdict, tables, figures, checklist, recipe, cost and caveats on one page that needs no network.

All that a control can choose is in the page as HTML; scripts only show, hide and sort, so no value is formatted twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from graddiv import __version__, store
from graddiv.report.caveats import caveats
from graddiv.report.closeups import close_ups
from graddiv.report.comparison import Comparison, ReportRun, titles
from graddiv.report.grids import Grid, find_pairs
from graddiv.report.output import Figure, Table, image
from graddiv.report.style import BLACK, looks
from graddiv.report.tables import attack_table
from graddiv.report.texts import bound, count, data_uri, duration, legible, percent, prose, sentence, terms
from graddiv.report.verdict import Crossing, crossing, verdict

SIZE = 3_000_000
"""The page stays below so many bytes: it can be mailed."""
ROOM_FOR_TEXT = 500_000
"""Bytes that no picture may take."""
HEAVY = 100_000
"""Bytes from which a figure's SVG gives way to a smaller PNG."""
LONG = 60
"""Rows from which the numbers of a figure are left to its CSV."""
WIDE = 480
"""Pixels from which a figure has a row to itself."""


@dataclass(frozen=True)
class Contents:
    """What a page shows."""

    comparison: Comparison
    """All runs with all records that the report is made of."""
    grids: Sequence[Grid]
    """The tables of attacks that a reader chooses among."""
    headline: Grid | None
    """The one by which runs are compared in words; the first to be shown."""
    tables: Sequence[Table] = ()
    """The other tables."""
    figures: Sequence[Figure] = ()
    """The other figures."""
    lead: Figure | None = None
    """Accuracy against epsilon, if the report has that figure: it stands first."""
    curve: Comparison | None = None
    """What that figure is drawn from: what it says stands above it."""


def write(contents: Contents, out: Path) -> Path:
    """Write report.html into a directory."""
    store.make_directory(out)
    path = out / "report.html"
    store.write(path, render(contents).encode())
    return path


def render(contents: Contents) -> str:
    """The page as text; equal records give equal bytes."""
    comparison, grids, default = contents.comparison, contents.grids, contents.headline
    by_path = {run.path: run for run in comparison.runs}
    pairs = [(by_path[a.path], by_path[b.path]) for a, b in find_pairs(default.comparison if default else comparison)]
    compared = pairs[0] if pairs else comparison.runs[:2]
    lead = shown_figure(contents.lead) if contents.lead is not None else None
    names = dict(zip(by_path, titles(comparison.runs), strict=True))
    figures = [shown_figure(figure) for figure in contents.figures]
    pictures = [*([lead] if lead else []), *figures]
    room = SIZE - ROOM_FOR_TEXT - sum(len(figure["source"]) for figure in pictures)
    content = {
        "verdicts": [replace(verdict(*pair, default), title=names[pair[1].path]) for pair in pairs] if default else [],
        "paired": bool(pairs),
        "crossing": _crossing(contents.curve),
        "choices": [_choice(comparison, grid) for grid in grids],
        "tables": [shown_table(table) for table in contents.tables],
        "examples": close_ups(comparison, compared, grids, default, room) if default else [],
        "lead": lead,
        "figures": figures,
        "checklist": _checklist(comparison, names),
        "recipes": [_recipe(run) for run in comparison.runs],
        "differing": list({str(found): found for found in (_differing(*pair) for pair in pairs)}.values()),
        "judging": _judging(comparison),
        "costs": [_cost(run, names[run.path]) for run in comparison.runs],
        "caveats": caveats(comparison, default),
    }
    return fill(
        "page.html.jinja",
        **content,
        comparison=comparison,
        compared=compared,
        default=default,
        epsilons=[(epsilon, bound(epsilon)) for epsilon in sorted({grid.epsilon for grid in grids})],
        ns=[(n, str(n)) for n in sorted({grid.n for grid in grids})],
        titles=[run.title for run in comparison.runs],
        methods=list(dict.fromkeys(run.title for run in comparison.runs)),
        attacked=sorted({_place(comparison, run) for grid in grids for run in grid.comparison.runs}),
        colours=[colours(look.colour) for look in looks([run.method for run in comparison.runs])],
        square=["+graddiv" in run.method for run in comparison.runs],
        noun="digit" if "mnist" in comparison.data else "image",
    )


def fill(template: str, **content: Any) -> str:
    """The page that a template of this package makes of its content."""
    loader = jinja2.FunctionLoader(lambda name: (files("graddiv.report") / name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=loader
    )
    environment.filters |= {f.__name__: f for f in (prose, sentence, legible, count, duration, terms)}
    return environment.get_template(template).render(**content, version=__version__)


def _crossing(curve: Comparison | None) -> Crossing | None:
    """What the curves over epsilon say of the first pair that has them."""
    pairs = find_pairs(curve) if curve is not None else []
    if curve is None or not pairs:
        return None
    trainings = {run.path: group for group in curve.groups for run in group}
    baseline, graddiv = pairs[0]
    if not baseline.epsilon or baseline.epsilon != graddiv.epsilon:
        return None
    return crossing(trainings[baseline.path], trainings[graddiv.path], baseline.epsilon)


# Tables


def shown_table(table: Table) -> dict[str, Any]:
    """A table of the report's; the Totals at its end stay there when it is sorted."""
    ends = len(table.rows)
    while ends and table.rows[ends - 1][0].startswith("Total"):
        ends -= 1
    columns = range(len(table.columns))
    words = {j for j in columns if not any(row[j][:1].isdigit() for row in table.rows)}
    return {
        "table": table,
        "words": words,
        "body": range(ends),
        "foot": range(ends, len(table.rows)),
        "tips": {},
        "marks": {},
        "n": 0,
    }


def _choice(comparison: Comparison, grid: Grid) -> dict[str, Any]:
    """The table of one grid, and behind each of our numbers the counts and the interval."""
    table = attack_table(grid.comparison)
    groups = grid.comparison.groups
    ours = [column for column in range(1, len(table.columns)) if column not in table.published]
    tips: dict[tuple[int, int], str] = {}
    marks: dict[int, list[dict[str, Any]]] = {row: [] for row in range(len(table.rows))}
    for i, numbers in enumerate(table.numbers):
        place, row = divmod(i, len(table.rows))
        found = dict(zip(table.number_columns, numbers, strict=True))
        if found["mean"] != "":
            tips[row, ours[place]] = _tip(groups[place], grid, found)
            bounds = {name: 100 * float(str(found[name])) for name in ("mean", "low", "high")}
            marks[row].append({"run": _place(comparison, groups[place][0]), **bounds})
    return {**shown_table(table), "epsilon": grid.epsilon, "n": grid.n, "tips": tips, "marks": marks}


def _place(comparison: Comparison, run: ReportRun) -> int:
    """Where the page has the method of a run: all its trainings are drawn as the first one is."""
    return [other.title for other in comparison.runs].index(run.title)


def _tip(trainings: Sequence[ReportRun], grid: Grid, found: Mapping[str, Any]) -> str:
    """What, how many, how sure: a line each."""
    examples = grid.records(trainings[0].path)[-1].examples
    right = found["mean"] * examples
    several = [
        f"{count} {what}" for count, what in ((len(trainings), "trainings"), (found["repeats"], "repeats")) if count > 1
    ]
    texts = [
        f"{trainings[0].title}, {found['attack']}",
        f"{right:.4g} of {examples} right" + (f", mean of {' and '.join(several)}" if several else ""),
        f"95 % interval {percent(found['low'])} to {percent(found['high'])}",
    ]
    if found["per_draw"] != "":
        texts.append(f"single sample models: {percent(found['per_draw'])} % right")
    return "\n".join(texts)


# Figures, checklist, recipe, cost


def shown_figure(drawing: Figure) -> dict[str, Any]:
    """A figure as the page holds it: inside, as the smaller of SVG and PNG."""
    kind, content = "image/svg+xml", image(drawing, "svg")
    if len(content) > HEAVY:
        kind, content = min((kind, content), ("image/png", image(drawing, "png")), key=lambda form: len(form[1]))
    width, height = (round(96 * inches) for inches in drawing.figure.get_size_inches())
    return {
        "drawing": drawing,
        "source": data_uri(kind, content),
        "width": width,
        "height": height,
        "wide": width > WIDE,
        "numbers": len(drawing.rows) <= LONG,
    }


def _checklist(comparison: Comparison, titles_of: Mapping[Path, str]) -> list[dict[str, Any]]:
    """Items with what each run's checklist says of them."""
    of_runs = [(run, {item["name"]: item for item in run.checklist}) for run in comparison.runs]
    names = dict.fromkeys(name for _, items in of_runs for name in items)
    return [
        {"name": name, "runs": [(titles_of[run.path], items.get(name)) for run, items in of_runs if items]}
        for name in names
    ]


def _recipe(run: ReportRun) -> dict[str, Any]:
    start = next((line for line in run.log if line["event"] == "start"), {})
    return {
        "title": run.title,
        "method": run.method,
        "seed": run.experiment.seed,
        "toml": run.experiment.to_toml(),
        "versions": start.get("versions", {}),
        "parameters": next((r.parameters for r in run.attacks), None),
    }


def _differing(baseline: ReportRun, graddiv: ReportRun) -> dict[str, Any]:
    """What the recipes of a pair do not share."""
    found = store.differences(baseline.experiment.dump(), graddiv.experiment.dump())
    return {"titles": (baseline.title, graddiv.title), "keys": [d for d in found if d[0] != "method"]}


def _judging(comparison: Comparison) -> list[tuple[str, str]]:
    """How the records were made: what is needed to make them again."""
    found = [record for run in comparison.runs for record in run.attacks]
    if not found:
        return []

    def values(name: str) -> str:
        return ", ".join(str(value) for value in sorted({r.value(name) for r in found}))

    data = {f"{r.data.name}, {r.data.split} split, sha256 {r.data.sha256[:12]}" for r in found}
    return [
        ("Data", "; ".join(sorted(data))),
        ("Examples", values("examples")),
        ("Models of the ensemble that judges", values("n_ensemble")),
        ("Seed of attacks and ensembles", values("seed")),
        ("Repeats", str(len({r.repeat for r in found}))),
    ]


def _cost(run: ReportRun, title: str) -> dict[str, Any]:
    """Passes and draws by attack, and how fast it trained."""
    speeds = [epoch["images_per_second"] for epoch in run.epochs if "images_per_second" in epoch]
    examples = run.experiment.data.examples
    rows: dict[str, list[int]] = {}
    for record in run.attacks:
        spent = [int(c.sum()) for c in (record.cost_forwards, record.cost_backwards, record.cost_draws)]
        rows[record.label] = [a + b for a, b in zip(rows.get(record.label, [0, 0, 0]), spent, strict=True)]
    return {
        "title": title,
        "speed": float(np.mean(speeds)) if speeds else None,
        "epochs": len(speeds),
        "seconds": sum(examples / speed for speed in speeds) if speeds and examples else None,
        "rows": rows,
        "total": [sum(column) for column in zip(*rows.values(), strict=True)] if rows else [0, 0, 0],
    }


def colours(colour: str) -> tuple[str, str]:
    """Of a method on white and on black."""
    return colour, "#e8e8e8" if colour == BLACK else colour
