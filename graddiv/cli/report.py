"""`graddiv report`: draw tables, figures and page from records on disk."""

from pathlib import Path
from typing import Annotated

import typer

from graddiv.cli.common import number, suggest
from graddiv.errors import GradDivError


def report(
    paths: Annotated[
        list[Path], typer.Argument(help="The directory of a report with its plan.json, or one or more trained runs.")
    ],
    out: Annotated[Path | None, typer.Option(help="Where tables, figures and page go; for runs: reports/NAME.")] = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            help="Write the report here, with all that it is drawn from (logs, records without images, networks "
            "in half precision), so that it can be kept and drawn again."
        ),
    ] = None,
    networks: Annotated[bool, typer.Option(help="Whether the archive holds the trained networks.")] = True,
    epsilon: Annotated[str, typer.Option(help="For runs: the radius of the table that compares them in words.")] = "",
    n: Annotated[int | None, typer.Option(help="For runs: EOT with so many sample models.")] = None,
    m: Annotated[int | None, typer.Option(help="For runs: attacks of so many iterations.")] = None,
    restarts: Annotated[int | None, typer.Option(help="For runs: attacks with so many restarts.")] = None,
    examples: Annotated[int | None, typer.Option(help="For runs: records of so many examples.")] = None,
) -> None:
    """Draw a report again from exactly the records that its plan names, or make one of runs.

    A report that 'graddiv reproduce' made holds a plan.json: every table and figure is drawn from the records named
    there, whatever else lies beside them.  For runs without a plan all records are taken; where one attack was run
    with several settings, the command lists them and asks for one with --n, --m, --restarts or --examples.
    """
    from graddiv.paper.published import PaperValues
    from graddiv.report.archive import archive as copied
    from graddiv.report.choose import Choices, plan_for
    from graddiv.report.plan import PLAN, Plan
    from graddiv.report.renderers import render
    from graddiv.runs import Run

    if len(paths) == 1 and (paths[0] / PLAN).exists():
        plan, directory = Plan.load(paths[0]), out or paths[0]
    else:
        for path in paths:
            if not path.is_dir():
                raise GradDivError(f"there is no directory {path}: expected a report or a trained run")
        choices = Choices(number(epsilon) if epsilon else None, n, m, restarts, examples)
        plan = plan_for(paths, choices)
        named = {name for item in plan.items for names in item.records.values() for name in names}
        every = [
            str(path.relative_to(Run(run).records)) for run in paths for path in Run(run).records.rglob("*.record")
        ]
        there = [name for name in every if name not in named]
        if there:
            typer.echo(f"{len(there)} records of the runs are not part of the report, such as {there[0]}")
        directory = out or Path("reports") / "-".join(path.resolve().name for path in paths)
    if archive is not None:
        plan, directory = copied(plan, archive, networks=networks), archive
    page, tables = render(plan, directory, PaperValues)
    typer.echo(f"{len(plan.items)} tables and figures, {len(tables)} of them tables")
    typer.echo(f"report: {page}")
    suggest("open it in a browser; graddiv report ... --archive DIR keeps it with its records")
