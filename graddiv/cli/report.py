"""`graddiv reproduce` and `graddiv report`: tables, figures and page, from training on or from records on disk."""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from graddiv.cli.options import Machine, command, number, suggest, whole_numbers
from graddiv.errors import GradDivError
from graddiv.progress import Bar, leads, shown

if TYPE_CHECKING:
    from graddiv.paper.entries import Entry
    from graddiv.paper.tasks import Task, TaskRunner

FITS = 6  #: Columns that a terminal has room for; wider tables are in the report.


@command
def reproduce(
    target: str = "", /, *, list_: bool = False, scale: str = "", data: str | None = None,
    overrides: list[str] = [], seeds: str = "", suite: str = "", quick: bool = False, norm: str = "linf",  # noqa: B006
    out: Path | None = None, runs: Path = Path("runs"), dry_run: bool = False, force: bool = False, machine: Machine,
) -> None:  # fmt: skip
    """Reproduce a table or figure of the paper, or all of a data set: train, attack, draw.

    graddiv reproduce demo --quick

    graddiv reproduce table-mnist --scale quick --dry-run

    graddiv reproduce table1 --scale demo --data xs.npz

    The command first says what is missing and about how long it takes.  Run it again to continue after a kill.  The
    demo needs no other data than the package has.
    """
    if list_ or not target:
        _list()
        return
    from graddiv.cli.show import print_table
    from graddiv.paper.entries import QUICK_DEMO, entries_of
    from graddiv.paper.planning import Request
    from graddiv.paper.tasks import TaskRunner, claim, tasks_of
    from graddiv.report.page import render

    if quick and target != "demo":
        raise GradDivError(f"--quick is a shorter demo, but the target is {target}: take --scale demo for it")
    if suite not in ("", "published"):
        raise GradDivError(f"--suite is {suite!r}, expected published, or nothing for the strongest rules")
    entries = _in_norm(QUICK_DEMO if quick else entries_of(target), norm)
    scale = scale or ("demo" if target == "demo" else "quick")
    request = Request(entries, scale, data, overrides, whole_numbers(seeds), suite == "published", quick, norm)
    tasks, plan = tasks_of(request, runs), request.report(runs)
    size = ("quick" if quick else scale) + ("" if norm == "linf" else f"-{norm}")
    directory = out or Path("reports") / f"{target}-{size}"
    about: dict[str, object] = {"target": target, "scale": scale, "data": data, "set": overrides, "seeds": seeds}
    about |= {"suite": suite, **({"quick": True} if quick else {}), **({"norm": norm} if norm != "linf" else {})}
    with machine.process() as process:
        runner = TaskRunner(process, machine.data_root)
        missing = _print_plan(runner, tasks, directory)
        if dry_run:
            if missing is not None:
                typer.echo(f"first: {missing}")
            suggest("the same command without --dry-run")
            return
        if missing is not None:
            raise missing
        if leads():
            claim(directory, about, force)
        for i, task in enumerate(tasks, 1):
            typer.echo(f"[{i}/{len(tasks)}] {task.label}")
            with Bar(stderr=task.need is not None) as bar:
                runner.carry_out(task, listeners=[shown(bar, task.compared.experiment.method)], progress=bar)
    if leads():
        page, tables = render(plan, directory)
        for made in tables:
            if len(made.columns) <= FITS:
                print_table(made)
        typer.echo(f"report: {page}")
    suggest("open it in a browser; graddiv reproduce --list has all other tables and figures")


def _in_norm(entries: "Sequence[Entry]", norm: str) -> "list[Entry]":
    """Return the entries that can be measured in the norm; print why others cannot, or raise if there is only one."""
    from graddiv.paper.planning import check_norm

    found = []
    for entry in entries:
        try:
            for need in entry.needs:
                check_norm(need, norm)
            found.append(entry)
        except GradDivError as error:
            if len(entries) == 1:
                raise
            typer.echo(f"{entry.name} is left out: {error}", err=True)
    return found


def _print_plan(runner: "TaskRunner", tasks: "list[Task]", directory: Path) -> GradDivError | None:
    """Print each task with its time; where its data set is missing, return the error that says how to get it."""
    from graddiv.experiment import duration

    left, unknown, missing = 0.0, 0, None
    for task in tasks:
        try:
            seconds = runner.seconds(task)
            left, time = left + seconds, duration(seconds) if seconds else "done"
        except GradDivError as error:
            unknown, time, missing = unknown + 1, "?", error
        typer.echo(f"  {time:>8}  {task.label}")
    rest = f", a partial total: the data of {unknown} of {len(tasks)} tasks is missing" if unknown else ""
    typer.echo(f"about {duration(left)} on this machine{rest}; the report goes to {directory}")
    return missing


def _list() -> None:
    """List the targets, with the time to train their runs at each scale."""
    from graddiv.cli.show import print_rows
    from graddiv.experiment import TWO_CORES, duration
    from graddiv.paper.entries import targets
    from graddiv.paper.planning import seconds_to_train
    from graddiv.recipes import SCALES

    rows = []
    for name, entries in targets().items():
        seconds = [seconds_to_train(entries, scale, lambda _: TWO_CORES) for scale in SCALES]
        costs = ["" if each is None else duration(each) for each in seconds]
        what = entries[0].title if len(entries) == 1 else f"all of {name}'s tables and figures"
        rows.append((name, what, *costs))
    print_rows(("target", "what", *SCALES), rows)
    typer.echo(
        "\nThe time to train, about, on two CPU cores."
        "\n'graddiv reproduce TARGET --dry-run' tries them, and adds what is measured."
    )
    suggest("graddiv reproduce demo --quick, a minute")


@command
def report(
    paths: list[Path], /, *, target: str = "", records: bool = False, as_csv: bool = False, out: Path | None = None,
    archive: Path | None = None, networks: bool = True, epsilon: str = "", n: int | None = None,
    m: int | None = None, restarts: int | None = None, examples: int | None = None,
) -> None:  # fmt: skip
    """Draw a report again, make one from trained runs, or show records.

    graddiv report reports/demo

    graddiv report runs/A runs/B --epsilon 0.3

    graddiv report records/CNN

    Records of a model of yours, below records/NAME, are shown as tables.  A report that 'graddiv reproduce' made has a
    plan.json, which names the records of every table and figure.  Only these records are drawn.  For runs without a
    plan, all records are drawn.  If one attack was run with several settings, the command lists them; choose one with
    --n, --m, --restarts or --examples.
    """
    if records or as_csv:
        _print_records(paths, as_csv)
        return
    from graddiv.report.page import Choices, plan_for, render
    from graddiv.report.plan import PLAN, Plan
    from graddiv.report.plan import archive as copied
    from graddiv.runs import Run

    kept: bool | set[str] = networks
    if target:
        from graddiv.paper.planning import gathered

        if len(paths) != 1:
            raise GradDivError(f"--target is given with {len(paths)} directories, expected one that holds runs")
        plan, chosen = gathered(target, paths[0])
        kept, directory = networks and (chosen or True), out or Path("reports") / target
    elif len(paths) == 1 and (paths[0] / PLAN).exists():
        plan, directory = Plan.load(paths[0]), out or paths[0]
    else:
        if not _are_runs(paths):
            _print_records(paths, as_csv)
            return
        plan = plan_for(paths, Choices(number(epsilon) if epsilon else None, n, m, restarts, examples))
        named = {name for item in plan.items for names in item.records.values() for name in names}
        every = [path.name for run in paths for path in Run(run).records.glob("*.record")]
        if left := [name for name in every if name not in named]:
            typer.echo(f"{len(left)} records of the runs are not part of the report, such as {left[0]}")
        directory = out or Path("reports") / "-".join(path.resolve().name for path in paths)
    if archive is not None:
        plan, directory = copied(plan, archive, networks=kept), archive
    page, tables = render(plan, directory)
    typer.echo(f"{len(plan.items)} tables and figures, {len(tables)} of them tables")
    typer.echo(f"report: {page}")
    suggest("open it in a browser; graddiv report ... --archive DIR keeps it with its records")


def _are_runs(paths: list[Path]) -> bool:
    """Whether these are runs; False if they hold records alone, and the right command for anything else."""
    from graddiv.runs import Run

    for path in paths:
        if not path.is_dir():
            raise GradDivError(f"there is no directory {path}: expected a report, a trained run, or records")
        if (path / "card.json").exists():
            page = path / "report.html"
            raise GradDivError(f"{path} is an audit, whose page is {page}: 'graddiv board {path.parent}' ranks audits")
        inside = [str(run.path) for each in sorted(path.iterdir()) if (run := Run(each)).experiment_file.exists()]
        if inside and not Run(path).experiment_file.exists():
            raise GradDivError(f"{path} holds {len(inside)} runs: 'graddiv report {' '.join(inside)}' compares them")
    trained = [path for path in paths if Run(path).experiment_file.exists()]
    if trained and len(trained) < len(paths):
        others = [str(path) for path in paths if path not in trained]
        raise GradDivError(f"{', '.join(others)}: no trained run, and a report is of runs alone")
    return bool(trained)


def _print_records(paths: list[Path], as_csv: bool) -> None:
    """Print the tables of the records below some directories, or each record as a line of CSV."""
    from graddiv.cli.show import print_records
    from graddiv.records import MeasurementRecord, as_rows, read_all

    found = [record for path in paths for record in read_all(path)]
    if as_csv:
        lines = as_rows(found)
        writer = csv.DictWriter(sys.stdout, list(dict.fromkeys(key for line in lines for key in line)), restval="")
        writer.writeheader()
        writer.writerows(lines)
        suggest("graddiv report RUN draws what they say")
        return
    print_records(found)
    others = sorted({record.kind for record in found if isinstance(record, MeasurementRecord)})
    if others:
        typer.echo(f"also there, for --csv and the report: {', '.join(others)}")
    suggest(f"graddiv report --records {paths[0]} --csv, or graddiv report RUN")
