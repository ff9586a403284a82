"""report.html: verdict, tables, figures, checklist, recipe, cost and caveats on one page that needs no network.

All that a control can choose is in the page as HTML; scripts only show, hide and sort, so no value is formatted twice.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from graddiv import __version__, store
from graddiv.report.caveats import caveats
from graddiv.report.closeups import close_ups
from graddiv.report.grids import Grid, all_grids, default_grid, find_pairs
from graddiv.report.output import Figure, Table, image
from graddiv.report.study import RunFiles, Study
from graddiv.report.style import BLACK, looks
from graddiv.report.tables import attack_table
from graddiv.report.texts import bound, count, data_uri, duration, legible, percent, prose, sentence
from graddiv.report.verdict import verdict
from graddiv.runs import Run

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
EXPLORED = "attacks-eps"
"""So begin the names of tables that are on the page anyway, one for each epsilon and n."""


def write(study: Study, out: Path, tables: Sequence[Table] = (), drawings: Sequence[Figure] = ()) -> Path:
    """Write report.html into a directory."""
    store.make_directory(out)
    path = out / "report.html"
    store.write(path, render(study, tables, drawings).encode())
    return path


def render(study: Study, tables: Sequence[Table] = (), drawings: Sequence[Figure] = ()) -> str:
    """The page as text; equal records give equal bytes."""
    grids, pairs = all_grids(study), find_pairs(study)
    default = default_grid(study, grids)
    compared = pairs[0] if pairs else study.runs[:2]
    figures = [_figure(drawing) for drawing in drawings]
    room = SIZE - ROOM_FOR_TEXT - sum(len(figure["source"]) for figure in figures)
    content = {
        "verdicts": [verdict(*pair, default) for pair in pairs] if default else [],
        "choices": [_choice(study, grid) for grid in grids],
        "tables": [_shown(table) for table in tables if not table.name.startswith(EXPLORED)],
        "examples": close_ups(study, compared, grids, default, room) if default else [],
        "figures": figures,
        "checklist": _checklist(study),
        "recipes": [_recipe(run) for run in study.runs],
        "differing": [_differing(*pair) for pair in pairs],
        "judging": _judging(study),
        "costs": [_cost(run) for run in study.runs],
        "caveats": caveats(study, default),
    }
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {f.__name__: f for f in (prose, sentence, legible, count, duration)}
    return environment.from_string((files("graddiv.report") / "page.html.jinja").read_text()).render(
        **content,
        study=study,
        compared=compared,
        default=default,
        epsilons=[(epsilon, bound(epsilon)) for epsilon in sorted({grid.epsilon for grid in grids})],
        ns=[(n, str(n)) for n in sorted({grid.n for grid in grids})],
        colours=[_colours(look.colour) for look in looks([run.method for run in study.runs])],
        square=["+graddiv" in run.method for run in study.runs],
        noun="digit" if "mnist" in study.data else "image",
        version=__version__,
    )


# Tables


def _shown(table: Table) -> dict[str, Any]:
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


def _choice(study: Study, grid: Grid) -> dict[str, Any]:
    """The table of one grid, and behind each of our numbers the counts and the interval."""
    table = attack_table(study, grid.epsilon, grid.n or None)
    ours = [column for column in range(1, len(table.columns)) if column not in table.published]
    tips: dict[tuple[int, int], str] = {}
    marks: dict[int, list[dict[str, Any]]] = {row: [] for row in range(len(table.rows))}
    for i, numbers in enumerate(table.numbers):
        place, row = divmod(i, len(table.rows))
        found = dict(zip(table.number_columns, numbers, strict=True))
        if found["mean"] != "":
            tips[row, ours[place]] = _tip(study.runs[place], grid, found)
            bounds = {name: 100 * float(str(found[name])) for name in ("mean", "low", "high")}
            marks[row].append({"run": place, **bounds})
    return {**_shown(table), "epsilon": grid.epsilon, "n": grid.n, "tips": tips, "marks": marks}


def _tip(run: RunFiles, grid: Grid, found: Mapping[str, Any]) -> str:
    """What, how many, how sure: a line each."""
    examples = grid.records[run.path][-1].examples
    right = found["mean"] * examples
    texts = [
        f"{run.title}, {found['attack']}",
        f"{right:.4g} of {examples} right" + (f", mean of {found['repeats']} repeats" if found["repeats"] > 1 else ""),
        f"95 % interval {percent(found['low'])} to {percent(found['high'])}",
    ]
    if found["per_draw"] != "":
        texts.append(f"single sample models: {percent(found['per_draw'])} % right")
    return "\n".join(texts)


# Figures, checklist, recipe, cost


def _figure(drawing: Figure) -> dict[str, Any]:
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


def _checklist(study: Study) -> list[dict[str, Any]]:
    """Items with what each run's checklist says of them."""
    of_runs = [(run, {item["name"]: item for item in run.checklist or []}) for run in study.runs]
    names = dict.fromkeys(name for _, items in of_runs for name in items)
    return [{"name": name, "runs": [(run.title, items.get(name)) for run, items in of_runs if items]} for name in names]


def _recipe(run: RunFiles) -> dict[str, Any]:
    start = next((line for line in Run(run.path).log if line["event"] == "start"), {})
    recipe = Run(run.path).recipe_file
    return {
        "title": run.title,
        "method": run.method,
        "seed": run.experiment["seed"],
        "toml": recipe.read_text() if recipe.exists() else None,
        "versions": start.get("versions", {}),
        "parameters": next((str(r.parameters) for r in run.attacks() if "parameters" in r.description), None),
    }


def _differing(baseline: RunFiles, graddiv: RunFiles) -> dict[str, Any]:
    """What the recipes of a pair do not share."""
    found = store.differences(baseline.experiment, graddiv.experiment)
    return {"titles": (baseline.title, graddiv.title), "keys": [d for d in found if d[0] != "method"]}


def _judging(study: Study) -> list[tuple[str, str]]:
    """How the records were made: what is needed to make them again."""
    found = [record for run in study.runs for record in run.attacks()]
    if not found:
        return []

    def values(name: str) -> str:
        return ", ".join(str(value) for value in sorted({r.description[name] for r in found}))

    data = {f"{r.data['name']}, {r.data['split']} split, sha256 {r.data['sha256'][:12]}" for r in found}
    return [
        ("Data", "; ".join(sorted(data))),
        ("Examples", values("examples")),
        ("Models of the ensemble that judges", values("n_ensemble")),
        ("Seed of attacks and ensembles", values("seed")),
        ("Repeats", str(len({r.repeat for r in found}))),
    ]


def _cost(run: RunFiles) -> dict[str, Any]:
    """Passes and draws by attack, and how fast it trained."""
    speeds = [epoch["images_per_second"] for epoch in run.epochs if "images_per_second" in epoch]
    examples = run.experiment["data"].get("examples")
    rows: dict[str, list[int]] = {}
    for record in run.attacks():
        spent = [int(record[f"cost_{name}"].sum()) for name in ("forwards", "backwards", "draws")]
        rows[record.label] = [a + b for a, b in zip(rows.get(record.label, [0, 0, 0]), spent, strict=True)]
    return {
        "title": run.title,
        "speed": float(np.mean(speeds)) if speeds else None,
        "epochs": len(speeds),
        "seconds": sum(examples / speed for speed in speeds) if speeds and examples else None,
        "rows": rows,
        "total": [sum(column) for column in zip(*rows.values(), strict=True)] if rows else [0, 0, 0],
    }


def _colours(colour: str) -> tuple[str, str]:
    """Of a method on white and on black."""
    return colour, "#e8e8e8" if colour == BLACK else colour
