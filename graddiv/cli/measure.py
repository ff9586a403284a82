"""`graddiv measure`, `transfer`, `checklist` and `sweep`: what there is to know of a run besides the table."""

from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from graddiv.cli.attack import Batch, Epsilon, Examples, Out, RunPath, Seed, Split, load_target, radii_of
from graddiv.cli.common import INTERVAL, SPREADS, interval_of, leads, number, percent, progress_bar, suggest, words
from graddiv.cli.data import DataRoot
from graddiv.cli.train import Device
from graddiv.errors import GradDivError

if TYPE_CHECKING:
    from collections.abc import Callable

    from graddiv.evaluation import Target
    from graddiv.evaluation.batches import Job
    from graddiv.evaluation.verdicts import Item
    from graddiv.records import AttackRecord


class MeasureCommand(TyperCommand):
    """Its help lists the measurements; their registry needs torch, so only this help waits for it."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """What the docstring says, then each measurement with what its record is of."""
        from graddiv.evaluation.measurements import MEASUREMENTS

        about = {name: (each.record.__doc__ or "").strip().splitlines()[0] for name, each in MEASUREMENTS.items()}
        self.help = "\n\n".join(
            [cleandoc(measure.__doc__ or ""), *(f"[bold]{name}[/]: {text}" for name, text in about.items())]
        )
        super().format_help(ctx, formatter)


COLOURS = {"pass": "green", "warn": "yellow", "fail": "red", "not enough evidence": "dim"}


def measure(
    run: RunPath,
    what: Annotated[
        str, typer.Option(help="Which measurements, separated by commas; all that apply if not given.")
    ] = "",
    n: Annotated[
        int, typer.Option("--n", "--gradients", help="Gradients at each example, and models of the largest ensemble.")
    ] = 100,
    epsilon: Epsilon = "",
    examples: Examples = None,
    split: Split = "test",
    batch: Batch = 100,
    seed: Seed = 0,
    out: Out = None,
    data_root: DataRoot = None,
    device: Device = None,
) -> None:
    """Measure how concentrated a trained run's gradients are, and what an adversary gains by it.

    The figures of a report are drawn from these records, which lie below RUN/records.
    """
    from graddiv.evaluation.measurements import MEASUREMENTS, MeasurementSettings, measurement

    asked = [measurement(word) for word in words(what)]

    def jobs(target: "Target", directory: Path, radii: list[float]) -> "list[Job[Any]]":
        chosen = asked or [m for m in MEASUREMENTS.values() if target.random or not m.of_random_networks_only]
        settings = [MeasurementSettings(epsilon=radius, gradients=n) for radius in radii]
        found = [job for each in chosen for s in settings for job in each.jobs(target, directory, s)]
        return list({job.path: job for job in found}.values())  # some do not depend on the radius

    _make(jobs, run, epsilon, (split, examples, batch, seed), out, data_root, device)


def transfer(
    run: RunPath,
    k: Annotated[int, typer.Option(help="Sample models, each of them source and target.")] = 50,
    m: Annotated[int, typer.Option("--m", "--iterations", help="Iterations of PGD.")] = 20,
    epsilon: Epsilon = "",
    examples: Examples = None,
    split: Split = "test",
    batch: Batch = 100,
    seed: Seed = 0,
    out: Out = None,
    data_root: DataRoot = None,
    device: Device = None,
) -> None:
    """Attack each of k sample models and test the images on all of them."""
    from graddiv.evaluation.transfer import transfer_job

    def jobs(target: "Target", directory: Path, radii: list[float]) -> "list[Job[Any]]":
        return [transfer_job(target, directory, epsilon=radius, k=k, m=m) for radius in radii]

    _make(jobs, run, epsilon, (split, examples, batch, seed), out, data_root, device)


def _make(
    jobs_of: "Callable[[Target, Path, list[float]], list[Job[Any]]]",
    run: Path,
    epsilon: str,
    judged_on: tuple[str, int | None, int, int],
    out: Path | None,
    data_root: Path | None,
    device: str | None,
) -> None:
    """Make the records of a run that are missing, and tell what each found."""
    from graddiv.distributed import join_processes
    from graddiv.evaluation import batches
    from graddiv.performance import keep_memory
    from graddiv.runs import Run

    keep_memory()
    directory = out or Run(run).records
    with join_processes(device) as process:
        target, experiment = load_target(run, *judged_on, data_root, process.device)
        jobs = jobs_of(target, directory, radii_of(epsilon, experiment))
        with batches.writing(directory, process), progress_bar() as progress:
            records = batches.run(jobs, process=process, progress=progress)
    if leads():
        for record in records:
            typer.echo(record.summary)
        typer.echo(f"records: {directory}")
        suggest(f"graddiv report {run}")


def checklist(
    run: RunPath,
    quick: Annotated[bool, typer.Option("--quick", help="Few iterations, models and examples: minutes.")] = False,
    epsilon: Annotated[str, typer.Option(help="The radius; that of training if not given.")] = "",
    examples: Annotated[int | None, typer.Option(help="Only the first so many test examples; 100 if quick.")] = None,
    split: Split = "test",
    batch: Batch = 100,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Where records go; RUN/records, RUN/records-quick if quick.")] = None,
    data_root: DataRoot = None,
    device: Device = None,
) -> None:
    """Look for gradients that hide: the five behaviours of obfuscated gradients, each with a verdict and its numbers.

    Then, whether the attack has converged: does accuracy still fall with more models, iterations, restarts?  Records
    are those that 'graddiv attack' makes; the verdicts are written beside them.
    """
    from graddiv.distributed import join_processes
    from graddiv.evaluation.batches import writing
    from graddiv.evaluation.checklist import QUICK, Settings
    from graddiv.evaluation.checklist import checklist as check
    from graddiv.performance import keep_memory
    from graddiv.recipes import radius as default_radius
    from graddiv.runs import CHECKLIST, Run

    keep_memory()
    directory = out or (run / "records-quick" if quick else Run(run).records)
    examples = 100 if quick and examples is None else examples
    with join_processes(device) as process:
        target, experiment = load_target(run, split, examples, batch, seed, data_root, process.device)
        radius = number(epsilon) if epsilon else default_radius(experiment)
        with writing(directory, process), progress_bar() as progress:
            items = check(
                target,
                radius,
                directory,
                settings=QUICK if quick else Settings(),
                process=process,
                progress=progress,
            )
    if leads():
        print_items(items, f"{target.name}: epsilon {radius:.4g}, {len(target.data)} {split} examples")
        typer.echo(f"written: {directory / CHECKLIST}")
        suggest(f"graddiv attack {run} --suite strong, or graddiv report {run}")


def sweep(
    runs: Annotated[list[Path], typer.Argument(help="One or more trained runs.")],
    over: Annotated[str, typer.Option(help="n, m, epsilon, restarts; or lam: one point for each run.")],
    values: Annotated[str, typer.Option(help="The values, comma-separated; none for lam.")] = "",
    attack: Annotated[str, typer.Option(help="The attack by its name in 'graddiv attack --attacks'.")] = "pgd",
    epsilon: Annotated[str, typer.Option(help="The radius; that of training if not given.")] = "",
    n: Annotated[int, typer.Option("--n", "--models", help="Sample models at each iteration of EOT.")] = 10,
    m: Annotated[int, typer.Option("--m", "--iterations", help="Iterations of the attack.")] = 20,
    repeats: Annotated[int, typer.Option(help="Times everything is done, with other draws.")] = 1,
    examples: Examples = None,
    split: Split = "test",
    batch: Batch = 100,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Where records go, by run if there are several; RUN/records if not given.")
    ] = None,
    data_root: DataRoot = None,
    device: Device = None,
) -> None:
    """Attack with EOT at several values of one setting, everything else equal: accuracy against n, m, epsilon, lam."""
    from graddiv.distributed import join_processes
    from graddiv.evaluation import suite
    from graddiv.evaluation import sweep as attack_at
    from graddiv.evaluation.batches import writing
    from graddiv.performance import keep_memory
    from graddiv.recipes import radius as default_radius
    from graddiv.records import curve
    from graddiv.runs import Run

    keep_memory()
    points = [number(text) for text in words(values)]
    if (over == "lam") == bool(points):
        raise GradDivError(
            f"--values is {values!r} and --over {over!r}: values are needed, and for lam the runs are them"
        )
    [chosen] = suite("quick", [attack], m)
    records, directories = [], []
    with join_processes(device) as process:
        for run in runs:
            target, experiment = load_target(run, split, examples, batch, seed, data_root, process.device)
            radius = number(epsilon) if epsilon else default_radius(experiment)
            directory = Run(run).records if out is None else out / run.name if len(runs) > 1 else out
            directories.append(directory)
            with writing(directory, process), progress_bar() as progress:
                records += attack_at(
                    target,
                    chosen,
                    "n" if over == "lam" else over,
                    [n] if over == "lam" else points,
                    epsilon=radius,
                    n=n,
                    repeats=repeats,
                    directory=directory,
                    process=process,
                    progress=progress,
                )
    if leads():
        by_run = {"all runs": records} if over == "lam" else _by_target(records)
        for name, of_run in by_run.items():
            typer.echo(f"{name}: accuracy against {over}")
            for value, a in curve(of_run, over):
                typer.echo(f"  {value:<8.4g} {percent(a):>14} %   ({INTERVAL}: {interval_of(a)})")
        typer.echo(SPREADS)
        for directory in directories:
            typer.echo(f"records: {directory}")
        suggest(f"graddiv report {' '.join(map(str, runs))}")


def print_items(items: "list[Item]", title: str) -> None:
    """The checklist as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "verdict", "evidence", title=title, title_justify="left", show_lines=True)
    for item in items:
        table.add_row(item.name, f"[{COLOURS[item.verdict]}]{item.verdict}[/]", item.sentence)
    Console().print(table)


def _by_target(records: "list[AttackRecord]") -> "dict[str, list[AttackRecord]]":
    found: dict[str, list[AttackRecord]] = {}
    for record in records:
        found.setdefault(record.target, []).append(record)
    return found
