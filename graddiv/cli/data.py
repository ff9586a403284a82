"""`graddiv data`: the data sets."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from graddiv.cli.common import suggest

app = typer.Typer(help="List, verify and fetch the data sets.", no_args_is_help=True)

DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        help="Folder of the official files, laid out as torchvision does; "
        "default: $GRADDIV_DATA, ./data, ~/data, ~/datasets and the user's cache.",
    ),
]


@app.command("list")
def list_(data_root: DataRoot = None) -> None:
    """List the data sets: shape, sizes, and where each was found or the command that gets it."""
    from graddiv.data import lookup, names, status

    for source in map(lookup, names()):
        shape = "x".join(map(str, source.shape))
        train, test = source.training_examples, source.sizes["test"]
        sizes = f"{train:>6} train {source.held_out:>5} validation {test:>6} test"
        print(f"{source.name:<11} {shape:<8} {sizes}  {status(source, data_root)}")
    suggest("graddiv train NAME/adv-bnn --scale demo; graddiv recipes lists all")


@app.command()
def verify(
    name: Annotated[str | None, typer.Argument(help="One data set; default: every one that was found.")] = None,
    data_root: DataRoot = None,
) -> None:
    """Compute the md5 of each official file and compare; exits with 1 if one is wrong or missing."""
    from graddiv.data import lookup, names
    from graddiv.data.files import fetch_command, inspect

    failed = False
    for source in map(lookup, [name] if name else names()):
        findings = list(inspect(source, data_root))
        present = [md5 for _, md5 in findings if md5 is not None]
        if not findings:
            print(f"{source.name}: generated, no file to verify")
        elif not present and name is None:
            print(f"{source.name}: not here; get it with '{fetch_command(source, data_root)}'")
        else:
            for copy, md5 in findings:
                print(f"{source.name}: {copy.path}: {_verdict(md5, copy.md5)}")
            failed |= any(md5 != copy.md5 for copy, md5 in findings)
    suggest("graddiv data fetch NAME for what is wrong or missing" if failed else "graddiv recipes")
    if failed:
        raise typer.Exit(1)


@app.command()
def fetch(name: Annotated[str, typer.Argument(help="The data set to download.")], data_root: DataRoot = None) -> None:
    """Download a data set's official files; a download that was cut resumes where it stopped."""
    from graddiv.data import lookup, status
    from graddiv.data.fetch import fetch as download
    from graddiv.data.files import fetch_root, inspect

    source = lookup(name)
    if not source.downloads:
        print(f"{name}: {status(source)}, nothing to fetch")
    elif all(md5 == copy.md5 for copy, md5 in inspect(source, data_root)):
        print(f"{name}: {status(source, data_root)}, nothing to fetch")
    else:
        root = fetch_root(source, data_root)
        download(source, root, _progress)
        print(f"{name}: fetched and verified in {root}")
    suggest(f"graddiv train {name}/adv-bnn --scale demo")


def _verdict(md5: str | None, expected: str) -> str:
    if md5 is None:
        return "missing"
    return "ok" if md5 == expected else f"wrong, md5 {md5}, expected {expected}"


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar on a terminal, and elsewhere a line at each tenth (each 100 MB where the size is not known)."""
    if not sys.stderr.isatty():
        shown = -1

        def line(here: int, total: int | None) -> None:
            nonlocal shown
            tenth = 10 * here // total if total else here // 10**8
            if tenth > shown:
                shown = tenth
                print(f"{title}: {here} of {total or 'unknown'} bytes", file=sys.stderr, flush=True)

        yield line
        return

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda here, total: bar.update(task, completed=here, total=total)
