"""What results/ holds of a table or figure: the file that is there, or one that its records suffice to draw."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from graddiv.errors import GradDivError, GradDivWarning
from graddiv.paper.entries import ENTRIES
from graddiv.paper.entry import Entry, Render
from graddiv.paper.published import PaperValues
from graddiv.paper.shipped import shipped
from graddiv.paper.study import STUDY, ZOO
from graddiv.recipes import title
from graddiv.report.comparison import Comparison, load_run
from graddiv.report.output import save
from graddiv.report.plan import Plan, PlannedItem, PlanReader
from graddiv.report.renderers import RENDERERS

DOCS = Path(__file__).parents[1]
RESULTS = DOCS.parent / "results"
DRAWN = DOCS / "_build" / "gallery"
"""Where the site keeps what it draws itself."""

NEEDS = {render.renderer: render.needs for entry in reversed((*STUDY, ZOO)) for render in entry.renders}
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
        if entry.shipped:
            found = _of_shipped(entry, render)
        else:
            found = next(filter(None, (_of_report(report, entry, render) for report in _reports(entry))), None)
        if found is not None:
            yield found


def _reports(entry: Entry) -> list[Path]:
    """Stored reports of the entry's data set; with settings of its own, it is of other runs than theirs."""
    if entry.settings or entry.lambdas or entry.data != "mnist":
        return []
    return [RESULTS / "zoo"] if entry is ZOO else [RESULTS / "mnist-study"]


def _of_report(report: Path, entry: Entry, render: Render) -> Shown | None:
    plan, of_paper = _plan(report), entry.name in ENTRIES
    wanted = {title(method) for method in entry.methods}
    there = {run.title for run in plan.runs.values()}
    if not of_paper and not wanted <= there:
        return None  # an entry of the paper is shown for those of its methods that were run
    named = next((item for item in plan.items if item.renderer == render.renderer), None)
    if not of_paper and NEEDS[render.renderer] != render.needs:
        named = None  # it would be of other settings
    item = named or _same_records(plan, render, wanted)
    if item is None:
        return None
    methods = tuple(dict.fromkeys(plan.runs[name].title for name in item.records))
    if named is not None:
        path = next(path for suffix in ("png", "md") if (path := report / f"{item.name}.{suffix}").exists())
        return Shown(path, report, methods, plan.scale, drawn=False)
    with warnings.catch_warnings(action="ignore", category=GradDivWarning):  # of files older than checksums
        try:
            path = _draw(render, PlanReader(plan, PaperValues).comparison(item), report.name)
        except GradDivError:  # it needs more methods than were run
            return None
    return Shown(path, report, methods, plan.scale, drawn=True)


def _same_records(plan: Plan, render: Render, wanted: set[str]) -> PlannedItem | None:
    """An item made of what `render` needs; where that is the log alone, the first training of each wanted method."""
    if render.needs:
        return next((item for item in plan.items if NEEDS.get(item.renderer) == render.needs), None)
    first = {run.title: name for name, run in reversed(plan.runs.items()) if run.title in wanted}
    if not first:
        return None
    records: dict[str, tuple[str, ...]] = dict.fromkeys(reversed(first.values()), ())
    return PlannedItem(name=render.renderer, renderer=render.renderer, records=records)


def _of_shipped(entry: Entry, render: Render) -> Shown | None:
    """Of the networks in the package only the logs of their training are there."""
    if render.needs:
        return None
    runs = [load_run(shipped(method).path, title(method), ()) for method in entry.methods]
    comparison = Comparison(tuple(runs), runs[0].experiment.scale, PaperValues)
    methods = tuple(run.title for run in runs)
    path = _draw(render, comparison, "shipped")
    return Shown(path, shipped(entry.methods[0]).path.parent, methods, comparison.scale, drawn=True)


def _draw(render: Render, comparison: Comparison, of: str) -> Path:
    made = replace(RENDERERS[render.renderer](comparison), name=f"{of}-{render.renderer}")
    save(made, DRAWN)
    return next(path for suffix in ("png", "md") if (path := DRAWN / f"{made.name}.{suffix}").exists())


@cache
def _plan(report: Path) -> Plan:
    return Plan.load(report)
