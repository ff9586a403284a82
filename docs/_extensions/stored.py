"""What results/ holds of a table or figure: the file that is there, or one that its records suffice to draw."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import graddiv.report.page  # noqa: F401  registers what is drawn
from graddiv.errors import GradDivError
from graddiv.paper.entries import STUDY, ZOO, Entry, Render
from graddiv.paper.shipped import shipped
from graddiv.recipes import title
from graddiv.report.comparison import Comparison, load_run
from graddiv.report.output import RENDERERS, save
from graddiv.report.plan import Plan, PlannedItem, PlanReader

DOCS = Path(__file__).parents[1]
RESULTS = DOCS.parent / "results"
DRAWN = DOCS / "_build" / "gallery"
"""Where the site keeps what it draws itself."""

NEEDS = {render.draw: render.of for entry in reversed((*STUDY, ZOO)) for render in entry.renders}
"""What the items of the stored reports are made of; several entries of the study share one report, the first counts."""


class Shown(NamedTuple):
    """A table (.md) or figure (.png) of the gallery."""

    path: Path
    source: Path
    """The stored report that it belongs to, or whose records it is drawn from."""
    methods: tuple[str, ...]
    scale: str
    drawn: bool
    """Whether it was drawn for the site."""


def shown(entry: Entry) -> Iterator[Shown]:
    """What can be shown of an entry."""
    for render in entry.renders:
        found = _of_shipped(entry, render) if entry.shipped else _of_report(entry, render)
        if found is not None:
            yield found


def _of_report(entry: Entry, render: Render) -> Shown | None:
    """Of the stored report of the entry's data set: an item of its own, or for the paper's entries one like it."""
    if entry.data != "mnist":
        return None
    reports = ["zoo"] if entry is ZOO else ["mnist-study"] if entry in STUDY else ["mnist-study", "mnist-12-epochs"]
    return next(filter(None, (_of_stored(RESULTS / report, entry, render) for report in reports)), None)


def _of_stored(report: Path, entry: Entry, render: Render) -> Shown | None:
    plan, name = _plan(report), f"{entry.prefix}{render.name or render.draw}"
    own = entry.prefix is not None
    item = next((item for item in plan.items if (item.name == name if own else item.renderer == render.draw)), None)
    if item is None and not own:
        item = _same_records(plan, render, {title(method) for method in entry.methods})
    if item is None:
        return None
    methods = tuple(dict.fromkeys(plan.runs[name].title for name in item.records))
    stored = [path for suffix in ("png", "md") if (path := report / f"{item.name}.{suffix}").exists()]
    if stored and item in plan.items and item.renderer == render.draw:
        return Shown(stored[0], report, methods, plan.scale, drawn=False)
    try:
        path = _draw(render, PlanReader(plan).comparison(item), f"{report.name}-{item.name}")
    except GradDivError:  # it needs more methods than were run
        return None
    return Shown(path, report, methods, plan.scale, drawn=True)


def _same_records(plan: Plan, render: Render, wanted: set[str]) -> PlannedItem | None:
    """An item made of what `render` needs; where that is the log alone, the first training of each wanted method."""
    if render.of:
        return next((item for item in plan.items if NEEDS.get(item.renderer) == render.of), None)
    first = {run.title: name for name, run in reversed(plan.runs.items()) if run.title in wanted}
    if not first:
        return None
    records: dict[str, tuple[str, ...]] = dict.fromkeys(reversed(first.values()), ())
    return PlannedItem(name=render.draw, renderer=render.draw, records=records)


def _of_shipped(entry: Entry, render: Render) -> Shown | None:
    """Of the networks in the package only the logs of their training are there."""
    if render.of:
        return None
    runs = [load_run(shipped(method).path, title(method), ()) for method in entry.methods]
    comparison = Comparison(tuple(runs), runs[0].experiment.scale)
    methods = tuple(run.title for run in runs)
    path = _draw(render, comparison, "shipped")
    return Shown(path, shipped(entry.methods[0]).path.parent, methods, comparison.scale, drawn=True)


def _draw(render: Render, comparison: Comparison, of: str) -> Path:
    made = replace(RENDERERS[render.draw](comparison), name=f"{of}-{render.draw}")
    save(made, DRAWN)
    return next(path for suffix in ("png", "md") if (path := DRAWN / f"{made.name}.{suffix}").exists())


@cache
def _plan(report: Path) -> Plan:
    return Plan.load(report)
