"""From a plan to files: its tables and figures, and report.html, which holds them all and needs no network.

All that a control can choose is in the page as HTML; scripts only show, hide and sort, so no value is formatted twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

import graddiv.report.figures
import graddiv.report.tables
import graddiv.report.zoo  # noqa: F401  these register what they draw
from graddiv import __version__, store
from graddiv.errors import GradDivError, unknown
from graddiv.report import output
from graddiv.report.closeups import Grid, close_ups, find_pairs, grid_of
from graddiv.report.comparison import Comparison, NothingPublished, Published, ReportRun, titles
from graddiv.report.output import RENDERERS, Drawn, Figure, Table, bound, data_uri, image, percent
from graddiv.report.plan import ATTACK_TABLE, Plan, PlanReader
from graddiv.report.style import looks_of
from graddiv.report.verdict import Crossing, crossing, sample, verdict

LEAD = "accuracy-epsilon"  #: draws the figure that stands first on a page; of several such figures the first one
SIZE = 3_000_000  #: bytes that the page stays below: it can be mailed
ROOM_FOR_TEXT = 500_000  #: bytes that no picture may take
HEAVY = 100_000  #: bytes from which a figure's SVG gives way to a smaller PNG
LONG = 60  #: rows from which the numbers of a figure are left to its CSV
WIDE = 480  #: pixels from which a figure has a row to itself


@dataclass(frozen=True)
class Contents:
    """What a page shows."""

    comparison: Comparison  #: all runs with all records that the report is made of
    grids: Sequence[Grid]  #: the tables of attacks that a reader chooses among
    headline: Grid | None  #: the one by which runs are compared in words; the first to be shown
    tables: Sequence[Table] = ()  #: the other tables
    figures: Sequence[Figure] = ()  #: the other figures
    lead: Figure | None = None  #: accuracy against epsilon, if the report has that figure: it stands first
    curve: Comparison | None = None  #: what that figure is drawn from: what it says stands above it


def render(plan: Plan, directory: Path, published: Published = NothingPublished) -> tuple[Path, list[Table]]:
    """Draw what the plan names, from exactly the records it names; return the page and the tables.

    The plan is stored beside the report, so that it can be drawn again.
    """
    reader = PlanReader(plan, published)
    grids: dict[str, Grid] = {}
    made: dict[str, Drawn] = {}
    for item in plan.items:
        comparison = reader.comparison(item)
        drawn = draw(item.renderer, comparison)
        title = f"{item.about}: {drawn.title}" if item.about else drawn.title
        made[item.name] = replace(drawn, name=item.name, title=title)
        if isinstance(drawn, Table) and item.renderer == ATTACK_TABLE:
            grids[item.name] = grid_of(comparison, drawn)
    if plan.headline is not None and plan.headline not in grids:
        tables_of_attacks = ", ".join(grids) or "none, for there is no table of attacks"
        raise GradDivError(f"the headline of the plan is {plan.headline!r}, expected one of {tables_of_attacks}")
    for what in made.values():
        output.save(what, directory)
    tables = [what for what in made.values() if isinstance(what, Table)]
    shown_elsewhere = {item.name for item in plan.items if item.renderer in (ATTACK_TABLE, "checklist")}
    lead = next((item for item in plan.items if item.renderer == LEAD), None)
    figures = {name: what for name, what in made.items() if isinstance(what, Figure)}
    contents = Contents(
        comparison=reader.everything(),
        grids=list(grids.values()),
        headline=grids[plan.headline] if plan.headline else None,
        lead=figures.pop(lead.name) if lead else None,
        curve=reader.comparison(lead) if lead else None,
        tables=[table for table in tables if table.name not in shown_elsewhere],
        figures=list(figures.values()),
    )
    plan.save(directory)
    path = directory / "report.html"
    store.write(path, text_of(contents).encode())
    return path, tables


def draw(renderer: str, comparison: Comparison) -> Drawn:
    """The table or figure that plans call so."""
    if renderer not in RENDERERS:
        raise unknown("renderer", renderer, RENDERERS)
    made: Drawn = RENDERERS[renderer](comparison)
    return made


def text_of(contents: Contents) -> str:
    """The page; equal records give equal bytes."""
    comparison, grids, default = contents.comparison, contents.grids, contents.headline
    by_path = {run.path: run for run in comparison.runs}
    pairs = [(by_path[a.path], by_path[b.path]) for a, b in find_pairs(default.comparison if default else comparison)]
    compared = pairs[0] if pairs else comparison.runs[:2]
    names = dict(zip(by_path, titles(comparison.runs), strict=True))
    lead = shown_figure(contents.lead) if contents.lead is not None else None
    figures = [shown_figure(figure) for figure in contents.figures]
    room = SIZE - ROOM_FOR_TEXT - sum(len(figure["source"]) for figure in (lead, *figures) if figure)
    return fill(
        "page.html.jinja",
        comparison=comparison,
        compared=compared,
        default=default,
        verdicts=[(names[pair[1].path], verdict(*pair, default)) for pair in pairs] if default else [],
        paired=bool(pairs),
        crossing=_crossing(contents.curve),
        choices=[_choice(comparison, grid) for grid in grids],
        tables=[shown_table(table) for table in contents.tables],
        examples=close_ups(comparison, compared, grids, default, room) if default else [],
        lead=lead,
        figures=figures,
        checklist=_checklist(comparison, names),
        differing=list({str(found): found for found in (_differing(*pair) for pair in pairs)}.values()),
        judging=_judging(comparison),
        costs=[_cost(run, names[run.path]) for run in comparison.runs],
        sample=sample(default),
        epsilons=[(epsilon, bound(epsilon)) for epsilon in sorted({grid.epsilon for grid in grids})],
        ns=[(n, str(n)) for n in sorted({grid.n for grid in grids})],
        titles=[run.title for run in comparison.runs],
        attacked=sorted({_place(comparison, run) for grid in grids for run in grid.comparison.runs}),
        colours=[look.colour for look in looks_of(comparison.runs).values()],
        square=["+graddiv" in run.method for run in comparison.runs],
    )


def fill(template: str, **content: Any) -> str:
    """The page that a template of this package makes of its content."""
    loader = jinja2.FunctionLoader(lambda name: (files("graddiv.report") / name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=loader
    )
    environment.filters |= output.FILTERS
    return environment.get_template(template).render(**content, version=__version__)


def _crossing(curve: Comparison | None) -> Crossing | None:
    """What the curves over epsilon say of the first pair that has them."""
    for plain, regularized in find_pairs(curve)[:1] if curve is not None else []:
        if curve is not None and plain.epsilon and plain.epsilon == regularized.epsilon:
            trainings = {run.path: group for group in curve.groups for run in group}
            return crossing(trainings[plain.path], trainings[regularized.path], plain.epsilon)
    return None


# Tables


def shown_table(table: Table) -> dict[str, Any]:
    """A table of the report's; the Totals at its end stay there when it is sorted."""
    ends = len(table.rows)
    while ends and table.rows[ends - 1][0].startswith("Total"):
        ends -= 1
    words = {j for j in range(len(table.columns)) if not any(row[j][:1].isdigit() for row in table.rows)}
    body, foot = range(ends), range(ends, len(table.rows))
    return {"table": table, "words": words, "body": body, "foot": foot, "tips": {}, "marks": {}, "n": 0}


def _choice(comparison: Comparison, grid: Grid) -> dict[str, Any]:
    """The table of one grid, and behind each of our numbers the counts and the interval."""
    table, groups = grid.table, grid.comparison.groups
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
    counts = (len(trainings), "trainings"), (found["repeats"], "repeats")
    several = " and ".join(f"{number} {what}" for number, what in counts if number > 1)
    texts = [
        f"{trainings[0].title}, {found['attack']}",
        f"{found['mean'] * examples:.4g} of {examples} right" + (f", mean of {several}" if several else ""),
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
    size = {"width": width, "height": height, "wide": width > WIDE}
    return {"drawing": drawing, "source": data_uri(kind, content), "numbers": len(drawing.rows) <= LONG, **size}


def _checklist(comparison: Comparison, titles_of: Mapping[Path, str]) -> list[dict[str, Any]]:
    """Items with what each run's checklist says of them."""
    of_runs = [(titles_of[run.path], {item["name"]: item for item in run.checklist}) for run in comparison.runs]
    names = dict.fromkeys(name for _, items in of_runs for name in items)
    return [{"name": name, "runs": [(t, items.get(name)) for t, items in of_runs if items]} for name in names]


def _differing(plain: ReportRun, regularized: ReportRun) -> dict[str, Any]:
    """What the recipes of a pair do not share."""
    found = store.differences(plain.experiment.dump(), regularized.experiment.dump())
    return {"titles": (plain.title, regularized.title), "keys": [d for d in found if d[0] != "method"]}


def _judging(comparison: Comparison) -> list[tuple[str, str]]:
    """How the records were made: what is needed to make them again."""
    found = [record for run in comparison.runs for record in run.attacks]
    names = {"examples": "Examples", "n_ensemble": "Models of the ensemble that judges"}
    names["seed"] = "Seed of attacks and ensembles"
    data = {f"{r.data.name}, {r.data.split} split, sha256 {r.data.sha256[:12]}" for r in found}
    settings = [(text, ", ".join(map(str, sorted({r.value(name) for r in found})))) for name, text in names.items()]
    repeats = str(len({r.repeat for r in found}))
    return [("Data", "; ".join(sorted(data))), *settings, ("Repeats", repeats)] if found else []


def _cost(run: ReportRun, title: str) -> dict[str, Any]:
    """Passes and draws by attack, and how fast it trained."""
    speeds = [epoch["images_per_second"] for epoch in run.epochs if "images_per_second" in epoch]
    examples = run.experiment.data.examples
    rows: dict[str, np.ndarray] = {}
    for record in run.attacks:
        spent = np.array([c.sum() for c in (record.cost_forwards, record.cost_backwards, record.cost_draws)])
        rows[record.label] = rows.get(record.label, 0) + spent
    return {
        "title": title,
        "speed": float(np.mean(speeds)) if speeds else None,
        "epochs": len(speeds),
        "seconds": sum(examples / speed for speed in speeds) if speeds and examples else None,
        "rows": {label: spent.tolist() for label, spent in rows.items()},
        "total": sum(rows.values(), np.zeros(3, int)).tolist(),
    }
