"""From a plan to files: every table and figure by the name that plans use, and the page that holds them all."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from graddiv.errors import GradDivError, unknown
from graddiv.report import page
from graddiv.report.comparison import Comparison, NothingPublished, Published
from graddiv.report.figures import FIGURES
from graddiv.report.gradient_noise import gradient_noise_table
from graddiv.report.grids import Grid, grid_of
from graddiv.report.output import Figure, Table, save
from graddiv.report.plan import Plan, PlanReader
from graddiv.report.summary import accuracy_summary
from graddiv.report.tables import accuracy_table, attack_table, checklist_table
from graddiv.report.zoo import zoo_table

ATTACK_TABLE = "attack-table"
CHECKLIST_TABLE = "checklist"
LEAD = "accuracy-epsilon"
"""What draws the figure that stands first on a page; of several such figures the first one."""

RENDERERS: dict[str, Callable[[Comparison], Table] | Callable[[Comparison], Figure]] = {
    ATTACK_TABLE: attack_table,
    "accuracy-table": accuracy_table,
    "accuracy-summary": accuracy_summary,
    "gradient-noise": gradient_noise_table,
    CHECKLIST_TABLE: checklist_table,
    "zoo-table": zoo_table,
    **FIGURES,
}
"""What an item of a plan names -> the function that makes it."""


def render(plan: Plan, directory: Path, published: Published = NothingPublished) -> tuple[Path, list[Table]]:
    """Draw what the plan names, from exactly the records it names; return the page and the tables.

    The plan is stored beside the report, so that it can be drawn again.
    """
    reader = PlanReader(plan, published)
    grids: dict[str, Grid] = {}
    made: list[Table | Figure] = []
    for item in plan.items:
        if item.renderer not in RENDERERS:
            raise unknown("renderer", item.renderer, RENDERERS)
        comparison = reader.comparison(item)
        drawn = RENDERERS[item.renderer](comparison)
        title = f"{item.about}: {drawn.title}" if item.about else drawn.title
        made.append(replace(drawn, name=item.name, title=title))
        if item.renderer == ATTACK_TABLE:
            grids[item.name] = grid_of(comparison)
    if plan.headline is not None and plan.headline not in grids:
        tables_of_attacks = ", ".join(grids) or "none, for there is no table of attacks"
        raise GradDivError(f"the headline of the plan is {plan.headline!r}, expected one of {tables_of_attacks}")
    for what in made:
        save(what, directory)
    tables = [what for what in made if isinstance(what, Table)]
    shown_elsewhere = {item.name for item in plan.items if item.renderer in (ATTACK_TABLE, CHECKLIST_TABLE)}
    lead = next((item for item in plan.items if item.renderer == LEAD), None)
    figures = {what.name: what for what in made if isinstance(what, Figure)}
    contents = page.Contents(
        comparison=reader.everything(),
        grids=list(grids.values()),
        headline=grids[plan.headline] if plan.headline else None,
        lead=figures.pop(lead.name) if lead else None,
        curve=reader.comparison(lead) if lead else None,
        tables=[table for table in tables if table.name not in shown_elsewhere],
        figures=list(figures.values()),
    )
    plan.save(directory)
    return page.write(contents, directory), tables
