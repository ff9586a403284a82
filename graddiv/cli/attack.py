"""`graddiv attack` and `graddiv records`."""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graddiv.cli.common import INTERVAL, SPREADS, interval_of, leads, number, percent, progress_bar, suggest, words
from graddiv.cli.data import DataRoot
from graddiv.cli.train import Device

if TYPE_CHECKING:
    import torch

    from graddiv.evaluation import Target
    from graddiv.experiment import Experiment
    from graddiv.records import AttackRecord, Record, Row

RunPath = Annotated[Path, typer.Argument(help="The directory of a trained run.")]
Examples = Annotated[int | None, typer.Option(help="Only the first so many test examples.")]
Out = Annotated[Path | None, typer.Option(help="Where records go; RUN/records if not given.")]
Epsilon = Annotated[str, typer.Option(help="Radii such as 8/255 or 0.1,0.2; that of training if not given.")]
Batch = Annotated[int, typer.Option(help="Images looked at together.")]
Seed = Annotated[int, typer.Option(help="Seed of the adversary and of the models that judge.")]
Split = Annotated[str, typer.Option(help="test, or validation to choose settings without looking at test data.")]


def attack(
    run: RunPath,
    suite: Annotated[
        str,
        typer.Option(
            help="paper: all attacks of the paper. published: the same as the libraries of its time ran them. quick, "
            "demo: fewer iterations. strong: attacks made for random networks, which choose n and m by themselves."
        ),
    ] = "quick",
    attacks: Annotated[
        str,
        typer.Option(
            help="Instead of all attacks of the suite, those of these names: fgsm, pgd, apgd-ce, apgd-dlr, fab, bb, "
            "square, spgd, spgd-ce, arc."
        ),
    ] = "",
    modes: Annotated[
        str, typer.Option(help="fixed, eot1, eot: how the adversary sees the network.")
    ] = "fixed,eot1,eot",
    epsilon: Epsilon = "",
    n: Annotated[int, typer.Option("--n", "--models", help="Sample models at each iteration of EOT.")] = 10,
    m: Annotated[
        int | None,
        typer.Option("--m", "--iterations", help="Iterations of all attacks but FGSM; the suite's if not given."),
    ] = None,
    passes: Annotated[
        int, typer.Option(help="Of the suite strong: forward and backward passes of each attack for an image.")
    ] = 400,
    repeats: Annotated[int, typer.Option(help="Times everything is done, with other draws.")] = 1,
    peers: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help="Also the attacks of another library, such as torchattacks, pyautoattack or foolbox, with the same n "
            "and m. May be given several times.",
        ),
    ] = None,
    total_only: Annotated[
        bool,
        typer.Option(
            help="Only the Total: an image leaves once it is fooled beyond doubt, which saves passes where few survive."
        ),
    ] = False,
    paper_rows: Annotated[
        bool,
        typer.Option(
            help="Only the 16 rows of the paper's Total, without Square, EOT-FAB and EOT-B&B, which take most passes."
        ),
    ] = False,
    examples: Examples = None,
    split: Split = "test",
    batch: Batch = 100,
    seed: Seed = 0,
    out: Out = None,
    data_root: DataRoot = None,
    device: Device = None,
) -> None:
    """Attack a trained run in three modes and print the paper's table.

    Success is judged afterwards, by an ensemble of 20 sample models the attack never saw.  Every number comes from
    records, example by example, below RUN/records; the same command again goes on where it stopped, and only
    computes what is missing.

    Several processes share the work: torchrun --nproc-per-node N -m graddiv -- attack ...  Without the two dashes alone
    torchrun takes --n and --m for beginnings of its own options; --models and --iterations are the same.
    """
    from graddiv.attacks.peers import peers as peers_of
    from graddiv.attacks.registry import STRONG
    from graddiv.distributed import join_processes
    from graddiv.evaluation import attack_all, attack_until_fooled, cells, papers_cells, strong_cells
    from graddiv.evaluation import suite as suite_of
    from graddiv.evaluation.batches import writing
    from graddiv.evaluation.cell import parse_modes
    from graddiv.performance import keep_memory
    from graddiv.runs import Run

    keep_memory()
    chosen, sights = suite_of(suite, words(attacks), m), parse_modes(words(modes))
    others = peers_of(peers or [], suite, m)
    strong = suite == STRONG and not attacks
    directory = out or Run(run).records
    with join_processes(device) as process:
        target, experiment = load_target(run, split, examples, batch, seed, data_root, process.device)
        radii = radii_of(epsilon, experiment)
        how = attack_until_fooled if total_only else attack_all
        with writing(directory, process), progress_bar() as progress:
            if strong:
                wanted = strong_cells(
                    target,
                    radii,
                    passes=passes,
                    repeats=repeats,
                    directory=directory,
                    process=process,
                    progress=progress,
                )
            else:
                wanted = cells(chosen, radii, modes=sights, n=n, repeats=repeats, random=target.random)
            wanted = papers_cells(wanted, target) if paper_rows else wanted
            beside = cells(others, radii, modes=["eot"], n=n, repeats=repeats, random=target.random)
            wanted = list(dict.fromkeys([*wanted, *beside]))  # the clean images are in both
            records = how(target, wanted, directory, process=process, progress=progress)
    if leads():
        print_records(records)
        typer.echo(f"records: {directory}")
        suggest(f"graddiv report {run}, or graddiv attack {run} --suite strong")


def records(
    directory: Annotated[Path, typer.Argument(help="A directory with records, at any depth.")],
    as_csv: Annotated[bool, typer.Option("--csv", help="One line for each record, as CSV.")] = False,
) -> None:
    """Print the tables that the records of a directory make, or all of them as CSV."""
    from graddiv.records import MeasurementRecord, as_rows, read_all

    found = read_all(directory)
    if not as_csv:
        print_records(found)
        others = sorted({record.kind for record in found if isinstance(record, MeasurementRecord)})
        if others:
            typer.echo(f"also there, for --csv and the report: {', '.join(others)}")
        suggest(f"graddiv records {directory} --csv, or graddiv report RUN")
        return
    lines = as_rows(found)
    columns = list(dict.fromkeys(key for line in lines for key in line))
    writer = csv.DictWriter(sys.stdout, columns, restval="")
    writer.writeheader()
    writer.writerows(lines)
    suggest("graddiv report RUN draws what they say")


def load_target(
    run: Path,
    split: str,
    examples: int | None,
    batch: int,
    seed: int,
    data_root: Path | None,
    device: "torch.device",
) -> "tuple[Target, Experiment]":
    """A trained run with the examples it is judged on, and its settings; the parameters are the options' values."""
    from graddiv.evaluation import target_of
    from graddiv.runs import Run

    root = str(data_root) if data_root else None
    experiment, F = Run(run).experiment, Run(run).network(root)
    target = target_of(
        experiment, F, split=split, examples=examples, batch=batch, seed=seed, data_root=root, device=device
    )
    return target, experiment


def radii_of(epsilon: str, experiment: "Experiment") -> list[float]:
    """The radii that the option names; if it names none, the one at which the run's method is compared."""
    from graddiv.recipes import radius

    return [number(text) for text in words(epsilon)] or [radius(experiment)]


def print_records(records: "Sequence[Record]") -> None:
    """The tables that records of attacks make, and those of Totals."""
    from graddiv.cli.total import print_totals
    from graddiv.records import AttackRecord, TotalRecord

    print_tables([record for record in records if isinstance(record, AttackRecord)])
    print_totals([record for record in records if isinstance(record, TotalRecord)])


def print_tables(records: "list[AttackRecord]") -> None:
    """One table for each network and epsilon: mean and std over draws, the interval apart."""
    from rich.console import Console
    from rich.table import Table

    from graddiv.cli.total import name_of
    from graddiv.records import by_value, table

    console = Console()
    groups: dict[object, list[AttackRecord]] = {}
    for record in records:
        groups.setdefault((record.target, record.parameters, record.data.sha256), []).append(record)
    for together in groups.values():
        clean = [record for record in together if record.label == "clean"]
        for epsilon, group in by_value([r for r in together if r.label != "clean"], "epsilon").items():
            first = group[0]
            shown = Table(
                "attack", "accuracy %", INTERVAL, "per draw %",
                title=f"{name_of(first, records)}: epsilon {epsilon:.4g}, "
                f"{first.examples} {first.data.split} examples, ensemble of {first.n_ensemble}",
                title_justify="left",
            )  # fmt: skip
            rows = table([*clean, *group])
            for row in rows:
                per_draw = "" if row.per_draw is None else f"{100 * row.per_draw:.2f}"
                label = _of_how_many(row, sum(r.per_draw is not None and r.label != "clean" for r in rows))
                shown.add_row(label, percent(row.accuracy), interval_of(row.accuracy), per_draw)
            console.print(shown)
    if groups:
        typer.echo(SPREADS)


def _of_how_many(row: "Row", attacks: int) -> str:
    """The label of a row; a Total of a part of the rows says so."""
    from graddiv.records import ALL_TOTAL, PAPER_ROWS, PAPERS_TOTAL

    if row.label == PAPERS_TOTAL and row.attacks < len(PAPER_ROWS):
        return f"Total ({row.attacks} of the paper's {len(PAPER_ROWS)} rows)"
    if row.label == ALL_TOTAL and row.attacks < attacks:
        return f"Total ({row.attacks} of all {attacks} rows)"
    return row.label
