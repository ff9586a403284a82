"""From a plan to files: its tables and figures, and report.html, which holds them all and needs no network."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import graddiv.report.tables  # noqa: F401  registers what it draws
from graddiv import store
from graddiv.errors import GradDivError
from graddiv.records import wilson
from graddiv.report.closeups import Grid, close_ups, crossing, grid_of, verdict
from graddiv.report.comparison import Comparison, ReportRun, titles
from graddiv.report.figures import accuracy, gradients, matrices  # noqa: F401  these register, too
from graddiv.report.output import RENDERERS, Figure, Table, data_uri, fill, image, save
from graddiv.report.plan import ATTACK_TABLE, Plan, PlanReader
from graddiv.report.published import PaperValues, Publication
from graddiv.report.style import looks

LEAD = "accuracy-epsilon"  #: draws the figure that stands first on a page; of several such figures the first one
SIZE = 3_000_000  #: bytes that the page stays below: it can be mailed
ROOM_FOR_TEXT = 500_000  #: bytes that no picture may take
HEAVY = 100_000  #: bytes from which a figure's SVG gives way to a smaller PNG
LONG = 60  #: rows from which the numbers of a figure are left to its CSV
WIDE = 480  #: pixels from which a figure has a row to itself


def render(plan: Plan, directory: Path, published: Publication = PaperValues) -> tuple[Path, list[Table]]:
    """Draw what the plan names and store it beside the report; return the page and the tables."""
    reader, grids, drawn = PlanReader(plan, published), dict[str, Grid](), dict[str, Table | Figure]()
    for item in plan.items:
        comparison = reader.comparison(item)
        made = RENDERERS[item.renderer](comparison)
        title = f"{item.about}: {made.title}" if item.about else made.title
        drawn[item.name] = replace(made, name=item.name, title=title)
        if item.renderer == ATTACK_TABLE:
            grids[item.name] = grid_of(comparison, made)
    if plan.headline is not None and plan.headline not in grids:
        tables_of_attacks = ", ".join(grids) or "none, for there is no table of attacks"
        raise GradDivError(f"the headline of the plan is {plan.headline!r}, expected one of {tables_of_attacks}")
    for what in drawn.values():
        save(what, directory)
    tables = {name: what for name, what in drawn.items() if isinstance(what, Table)}
    figures = {name: what for name, what in drawn.items() if isinstance(what, Figure)}
    shown_elsewhere = {item.name for item in plan.items if item.renderer in (ATTACK_TABLE, "checklist")}
    lead = next((item for item in plan.items if item.renderer == LEAD), None)
    html = text_of(
        reader.everything(),
        list(grids.values()),
        grids[plan.headline] if plan.headline else None,
        lead=figures.pop(lead.name) if lead else None,
        curve=reader.comparison(lead) if lead else None,
        tables=[table for name, table in tables.items() if name not in shown_elsewhere],
        figures=list(figures.values()),
    )
    plan.save(directory)
    store.write(directory / "report.html", html.encode())
    return directory / "report.html", list(tables.values())


def text_of(
    comparison: Comparison, grids: Sequence[Grid], default: Grid | None, tables: Sequence[Table] = (),
    figures: Sequence[Figure] = (), lead: Figure | None = None, curve: Comparison | None = None,
) -> str:  # fmt: skip
    """The page; equal records give equal bytes.

    comparison: all runs with all records.  grids: the tables of attacks that a reader chooses among.
    default: the one by which runs are compared in words.  tables, figures: the others.
    lead: accuracy against epsilon, which stands first.  curve: what that figure is drawn from.
    """
    whole = {run: run for run in comparison.runs}  # those of a grid have the records of its table only
    pairs = [(whole[a], whole[b]) for a, b in (default.comparison if default else comparison).pairs]
    compared = pairs[0] if pairs else comparison.runs[:2]
    names = titles(comparison.runs)
    shown_lead, shown = lead and shown_figure(lead), [shown_figure(figure) for figure in figures]
    room = SIZE - ROOM_FOR_TEXT - sum(len(figure["source"]) for figure in (shown_lead, *shown) if figure)
    differing = [(a.title, b.title, store.differences(a.experiment.dump(), b.experiment.dump())) for a, b in pairs]
    return fill(
        "page.html.jinja",
        comparison=comparison,
        compared=compared,
        default=default,
        verdicts=[(names[b], verdict(a, b, default)) for a, b in pairs] if default else [],
        crossing=crossing(curve) if curve else None,
        choices=[_choice(comparison, grid) for grid in grids],
        tables=[shown_table(table) for table in tables],
        examples=close_ups(comparison, compared, grids, default, room) if default else [],
        lead=shown_lead,
        figures=shown,
        names=names,
        differing=list({str(found): found for found in differing}.values()),
        costs=[(run, _spent(run)) for run in comparison.runs],
        wilson=wilson,
        titles=[run.title for run in comparison.runs],
        attacked=sorted({_place(comparison, run) for grid in grids for run in grid.comparison.runs}),
        colours=[look.colour for look in looks([run.method for run in comparison.runs])],
        square=["+graddiv" in run.method for run in comparison.runs],
    )


def shown_table(table: Table) -> dict[str, Any]:
    """A table of the report's; the Totals at its end stay there when it is sorted."""
    foot = [i for i, row in enumerate(table.rows) if row[0].startswith("Total")]
    body = [i for i in range(len(table.rows)) if i not in foot]
    words = {j for j in range(len(table.columns)) if not any(row[j][:1].isdigit() for row in table.rows)}
    return {"table": table, "words": words, "body": body, "foot": foot, "tips": {}, "marks": {}, "n": 0}


def _choice(comparison: Comparison, grid: Grid) -> dict[str, Any]:
    """The table of one grid, and behind each of our numbers the counts and the interval."""
    table, groups = grid.table, grid.comparison.groups
    ours = [column for column in range(1, len(table.columns)) if column not in table.published]
    tips: dict[tuple[int, int], dict[str, Any]] = {}
    marks: dict[int, list[dict[str, Any]]] = {row: [] for row in range(len(table.rows))}
    for i, numbers in enumerate(table.numbers):
        place, row = divmod(i, len(table.rows))
        found = dict(zip(table.number_columns, numbers, strict=True))
        if found["mean"] != "":
            first, trainings = groups[place][0], len(groups[place])
            told = {"title": first.title, "trainings": trainings, "examples": grid.records(first)[-1].examples}
            tips[row, ours[place]] = found | told
            bounds = {name: 100 * float(str(found[name])) for name in ("mean", "low", "high")}
            marks[row].append({"run": _place(comparison, first), **bounds})
    return {**shown_table(table), "epsilon": grid.epsilon, "n": grid.n, "tips": tips, "marks": marks}


def _place(comparison: Comparison, run: ReportRun) -> int:
    """Where the page has the method of a run: all its trainings are drawn as the first one is."""
    return [other.title for other in comparison.runs].index(run.title)


def shown_figure(drawing: Figure) -> dict[str, Any]:
    """A figure as the page holds it: inside, as the smaller of SVG and PNG."""
    kind, content = "image/svg+xml", image(drawing, "svg")
    if len(content) > HEAVY:
        kind, content = min((kind, content), ("image/png", image(drawing, "png")), key=lambda form: len(form[1]))
    width, height = (round(96 * inches) for inches in drawing.figure.get_size_inches())
    size = {"width": width, "height": height, "wide": width > WIDE}
    return {"drawing": drawing, "source": data_uri(kind, content), "numbers": len(drawing.rows) <= LONG, **size}


def _spent(run: ReportRun) -> dict[str, list[int]]:
    """Forward passes, backward passes and draws by attack, over all its records."""
    rows: dict[str, np.ndarray] = {}
    for r in run.attacks:
        spent = np.array([cost.sum() for cost in (r.cost_forwards, r.cost_backwards, r.cost_draws)])
        rows[r.label] = rows.get(r.label, 0) + spent
    return {label: spent.tolist() for label, spent in rows.items()}
