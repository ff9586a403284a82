"""`graddiv reproduce`: any table or figure of the paper, from training to the page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graddiv.cli.common import beginning, leads, progress_bar, suggest, whole_number, words
from graddiv.cli.data import DataRoot
from graddiv.cli.train import Device, Overrides, scales
from graddiv.errors import GradDivError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from graddiv.paper.entry import Entry
    from graddiv.paper.stages import Stage, StageRunner
    from graddiv.report.output import Table


FITS = 6
"""Columns that a terminal has room for; wider tables are in the report."""


def _targets() -> "Iterable[str]":
    from graddiv.paper.targets import targets

    return targets()


def reproduce(
    target: Annotated[
        str | None,
        typer.Argument(
            help="demo, mnist-study, zoo, mnist, cifar10, stl10, or a table or figure: see --list.",
            autocompletion=beginning(_targets),
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the targets with what they cost.")] = False,
    scale: Annotated[
        str | None,
        typer.Option(
            help="paper, quick or demo, as in 'graddiv train'; quick, and demo for the demo.",
            autocompletion=beginning(scales),
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Another data set than the paper's, such as mnist-mini.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where tables, figures and page go; reports/TARGET-SCALE.")] = None,
    runs: Annotated[Path, typer.Option(help="Where trained runs and their records are kept and looked for.")] = Path(
        "runs"
    ),
    overrides: Overrides = [],  # noqa: B006 -- Typer copies it
    seeds: Annotated[
        str, typer.Option(help="Train every run once for each of these seeds, such as 0,1,2; tables show the spread.")
    ] = "",
    suite: Annotated[
        str,
        typer.Option(
            help="published: in the table of attacks APGD, FAB and B&B return what the libraries of the paper's time "
            "did, instead of what is strongest on randomized networks."
        ),
    ] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Of the demo: a minute of it, without training.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a report of another target or scale.")] = False,
    data_root: DataRoot = None,
    device: Device = None,
) -> None:
    """Reproduce a table or figure of the paper, or a whole data set: train, measure, draw.

    First says what is missing and about how long it takes; killed at any moment, the same command goes on.  The demo
    needs no data but what comes with the package.
    """
    from rich.console import Console

    from graddiv.paper.entries import QUICK_DEMO
    from graddiv.paper.targets import entries_of

    console = Console()
    if list_ or target is None:
        _list(console)
        return
    if quick and target != "demo":
        raise GradDivError(f"--quick is a shorter demo, but the target is {target}: take --scale demo for it")
    entries = QUICK_DEMO if quick else entries_of(target)
    from graddiv.distributed import join_processes
    from graddiv.experiment import duration
    from graddiv.paper.planning import Request, plan_report
    from graddiv.paper.published import PaperValues
    from graddiv.paper.stages import StageRunner, claim, stages_of
    from graddiv.performance import keep_memory
    from graddiv.report.renderers import render
    from graddiv.training.display import Display

    keep_memory()
    scale = scale or ("demo" if target == "demo" else "quick")
    request = Request(
        entries, scale, data, overrides, [whole_number(seed) for seed in words(seeds)], suite == "published", quick
    )
    if suite not in ("", "published"):
        raise GradDivError(f"--suite is {suite!r}, expected published, or nothing for the strongest rules")
    stages, plan = stages_of(request, runs), plan_report(request, runs)
    directory = out or Path("reports") / f"{target}-{'quick' if quick else scale}"
    with join_processes(device) as process:
        runner = StageRunner(process, str(data_root) if data_root else None)
        left, missing = _estimates(runner, stages)
        if leads():
            for stage, seconds in left.items():
                time = "?" if seconds is None else duration(seconds) if seconds else "done"
                console.print(f"  {time:>8}  {stage.label}", highlight=False)
            known = sum(seconds for seconds in left.values() if seconds is not None)
            unknown = sum(seconds is None for seconds in left.values())
            rest = f", a partial total: the data of {unknown} of {len(left)} stages is missing" if unknown else ""
            console.print(f"about {duration(known)} on this machine{rest}; the report goes to {directory}")
        if missing is not None and not dry_run:
            raise missing
        if dry_run:
            if missing is not None:
                console.print(f"first: {missing}", highlight=False)
            suggest("the same command without --dry-run")
            return
        if leads():
            claim(
                directory,
                {"target": target, "scale": scale, "data": data, "set": overrides, "seeds": seeds, "suite": suite}
                | ({"quick": True} if quick else {}),
                force,
            )
        for number, stage in enumerate(stages, 1):
            if leads():
                console.print(f"[{number}/{len(stages)}] {stage.label}", highlight=False, markup=False)
            if stage.need is None:
                with Display(stage.plan.experiment.method, quiet=not leads()) as display:
                    runner.carry_out(stage, listeners=[display])
            else:
                with progress_bar() as progress:
                    runner.carry_out(stage, progress=progress)
    if leads():
        page, tables = render(plan, directory, PaperValues)
        for made in tables:
            if len(made.columns) <= FITS:
                _print(console, made)
        console.print(f"report: {page}", highlight=False)
        suggest("open it in a browser; graddiv reproduce --list has all other tables and figures")


def _estimates(runner: "StageRunner", stages: "list[Stage]") -> "tuple[dict[Stage, float | None], GradDivError | None]":
    """The seconds of each stage; where its data set is missing none, and the error that says how to get it."""
    left: dict[Stage, float | None] = {}
    missing = None
    for stage in stages:
        try:
            left[stage] = runner.seconds(stage)
        except GradDivError as error:
            left[stage], missing = None, error
    return left, missing


def _print(console: "Console", made: "Table") -> None:
    """A table of the report on the terminal."""
    from rich.table import Table as Shown
    from rich.text import Text

    shown = Shown(*made.columns, title=made.title, title_justify="left", caption=made.caption, caption_justify="left")
    for i, row in enumerate(made.rows):
        shown.add_row(*(Text(cell, style=_look(made, i, j)) for j, cell in enumerate(row)))
    console.print(shown)


def _look(made: "Table", row: int, column: int) -> str:
    if (row, column) in made.highlighted:
        return "bold"
    return "italic" if made.is_published(row, column) else ""


def _list(console: "Console") -> None:
    """The targets, with the time that training their runs takes at each scale."""
    from rich.table import Column, Table

    from graddiv.experiment import duration, listed_speed
    from graddiv.paper.costs import seconds_to_train
    from graddiv.paper.targets import targets
    from graddiv.recipes import SCALES

    longest = max(map(len, targets()))
    table = Table(
        Column("target", no_wrap=True, min_width=longest),
        "what",
        *SCALES,
        Column("picture", overflow="fold"),
        box=None,
        pad_edge=False,
    )
    for name, entries in targets().items():
        seconds = [seconds_to_train(entries, scale, listed_speed) for scale in SCALES]
        costs = ["" if each is None else duration(each) for each in seconds]
        table.add_row(
            name,
            entries[0].title if len(entries) == 1 else f"all of {name}'s tables and figures",
            *costs,
            _picture(name, entries),
        )
    console.print(table)
    console.print(
        "\nThe time to train, about: on this machine where such a network was tried here before, else on two CPU cores."
        "\n'graddiv reproduce TARGET --dry-run' tries them, and adds what is measured."
        "\nPictures are those that were drawn below this directory before; those in results/ are of fewer methods."
    )
    suggest("graddiv reproduce demo --quick, a minute")


def _picture(target: str, entries: "tuple[Entry, ...]") -> str:
    """A figure or table of the target that is already there: of its own report, or of those that a checkout holds."""
    first = entries[0]
    places = [Path("reports") / f"{target}-{scale}" for scale in ("paper", "quick", "demo")]
    stored = [Path("results") / name for name in ("mnist-study", "zoo")]
    places += stored if first.data == "mnist" and not first.settings else []
    names = [first.name, *(render.renderer for render in first.renders)]
    found = (place / f"{name}.{kind}" for place in places for name in names for kind in ("png", "md"))
    return next((str(path) for path in found if path.exists()), "")
