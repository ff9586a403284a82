"""`graddiv audit`, `graddiv board` and `graddiv rescore`: networks of any kind."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graddiv.cli.common import leads, number, progress_bar, suggest, words
from graddiv.cli.data import DataRoot
from graddiv.cli.measure import print_items
from graddiv.cli.train import Device
from graddiv.errors import GradDivError

if TYPE_CHECKING:
    from graddiv.auditing import Audit
    from graddiv.auditing.inputs import Bounds

ModelReference = Annotated[
    str,
    typer.Argument(
        help="file.py:factory, a function without arguments that returns the model (or the model itself); or the "
        "directory of a run of graddiv."
    ),
]


def audit(
    model: ModelReference,
    data: Annotated[
        str, typer.Option(help="An .npz file with the arrays x and y, or a data set by name; for a run, its own.")
    ] = "",
    epsilon: Annotated[
        str,
        typer.Option(
            help="The radius, as a share of the range of a pixel; 8/255 if not given, for a run that of its training."
        ),
    ] = "",
    norm: Annotated[str, typer.Option(help="linf or l2.")] = "linf",
    budget: Annotated[str, typer.Option(help="quick: minutes. standard: hours. exhaustive: days.")] = "quick",
    bounds: Annotated[str, typer.Option(help="The range of a pixel if it is not 0,1: such as 0,255.")] = "",
    examples: Annotated[int | None, typer.Option(help="Only the first so many; 100 where the budget is quick.")] = None,
    name: Annotated[str | None, typer.Option(help="What the network is called.")] = None,
    about: Annotated[
        list[str], typer.Option("--about", metavar="KEY=VALUE", help="For the card: authors, link, dataset, ...")
    ] = [],  # noqa: B006 -- Typer copies it
    peers: Annotated[
        list[str],
        typer.Option("--with", metavar="LIBRARY", help="Also run the attacks of this library: torchattacks, ..."),
    ] = [],  # noqa: B006 -- Typer copies it
    out: Annotated[Path | None, typer.Option(help="Where everything goes; audits/NAME if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    batch: Annotated[int, typer.Option(help="Images looked at together.")] = 100,
    data_root: DataRoot = None,
    device: Device = None,
) -> None:
    """Audit any stochastic (or deterministic) network: look, attack, and say what is proved and what is not.

    Writes a page, a card (JSON) and the adversarial examples.  Exits with 0 if the audit is complete, with 3 if its
    evidence is not sufficient.  The same command again goes on where it stopped.  Several processes share the work:
    torchrun --nproc-per-node N -m graddiv -- audit ...
    """
    from graddiv.auditing import audit as carry_out
    from graddiv.auditing.inputs import read_examples
    from graddiv.auditing.model import load_model
    from graddiv.distributed import join_processes
    from graddiv.performance import keep_memory

    keep_memory()
    root = str(data_root) if data_root else None
    few = 100 if examples is None and budget == "quick" else examples
    given = load_model(model)
    if not isinstance(given, Path) and not data:
        raise GradDivError("--data is missing, expected an .npz file with the arrays x and y, or a data set by name")
    x, y = read_examples(data or _data_of(model), few, root)
    directory = out or Path("audits") / (name or (given.name if isinstance(given, Path) else model.rpartition(":")[2]))
    with join_processes(device) as process, progress_bar() as progress:
        found = carry_out(
            given,
            x,
            y,
            epsilon=number(epsilon) if epsilon else _radius_of(model) if isinstance(given, Path) else 8 / 255,
            norm=norm,
            bounds=_bounds(bounds),
            budget=budget,
            name=name,
            about=_pairs(about),
            peers=peers,
            out=directory,
            seed=seed,
            batch=batch,
            progress=progress,
            process=process,
            device=process.device,
            data_root=root,
        )
    if leads():
        _print(found)
        typer.echo(f"report: {directory / 'report.html'}")
        suggest(
            f"open it in a browser; docs/audit.md says how to read it; graddiv board {directory.parent} ranks audits"
        )
    raise typer.Exit(found.exit_code)


def board(directory: Annotated[Path, typer.Argument(help="A directory with audits, at any depth.")]) -> None:
    """Make one static page that ranks all audited networks below a directory by what is sure to be left of them."""
    from graddiv.auditing.board import board as make

    typer.echo(f"board: {make(directory)}")
    suggest("open it in a browser; graddiv rescore CARD --model FILE:FACTORY checks an entry")


def rescore(
    card: Annotated[Path, typer.Argument(help="A card, or the directory of an audit.")],
    model: Annotated[str, typer.Option(help="file.py:factory of the network that the card is of, or a run.")],
    images: Annotated[
        Path | None, typer.Option(help="An .npz file with other adversarial examples, x_adv; the card's own if absent.")
    ] = None,
    who: Annotated[str, typer.Option(help="Who found them.")] = "",
    attack: Annotated[str, typer.Option(help="How they were found.")] = "",
) -> None:
    """Score the adversarial examples of a card again, or lower it with a file of better ones."""
    from graddiv.auditing.board import rescore as score
    from graddiv.auditing.model import load_model

    found = score(card, load_model(model), images, who=who, attack=attack)
    if not found["same_network"]:
        typer.echo("the parameters are not those that the card was made with")
    before, now = found["before"], found["now"]
    typer.echo(f"ensemble: {now}")
    typer.echo(f"on the card: {before}")
    typer.echo(f"per draw: {100 * found['per_draw'].mean:.1f} %")
    if images is not None:
        typer.echo("the card is lowered" if found["lowered"] else "the card stays as it is")
    suggest("graddiv board DIRECTORY ranks it again, in the directory that holds the audits")


def _print(found: "Audit") -> None:
    """The checks that did not pass, how attacks behaved, and the three numbers."""
    from rich.console import Console
    from rich.table import Table

    odd = [item for item in found.checks.values() if item.verdict != "pass"]
    if odd:
        print_items(odd, "Before the attacks: what was found")
    print_items(found.indicators, "How the attacks behaved")
    table = Table("", "clean %", "attacked %", "95 % over images", title="Three numbers", title_justify="left")
    for name, clean, robust in found.rows:
        interval = f"{100 * robust.low:.1f} to {100 * robust.high:.1f}"
        table.add_row(name, f"{100 * clean.mean:.1f}", f"{100 * robust.mean:.1f}", interval)
    Console().print(table)
    for text in found.shortcomings:
        typer.echo(f"evidence insufficient: {text}")


def _pairs(texts: list[str]) -> dict[str, str]:
    """KEY=VALUE, several times."""
    if broken := [text for text in texts if "=" not in text]:
        raise GradDivError(f"--about is {broken[0]!r}, expected KEY=VALUE such as authors='A. Author'")
    return {key.strip(): value for key, _, value in (text.partition("=") for text in texts)}


def _bounds(text: str) -> "Bounds | None":
    """0,255; for several channels low and high by turns: 0:0:0,1:1:1."""
    if not text:
        return None
    parts = [[number(value) for value in part.split(":")] for part in words(text)]
    if len(parts) != 2:
        raise GradDivError(f"--bounds is {text!r}, expected two numbers such as 0,255")
    low, high = (part[0] if len(part) == 1 else part for part in parts)
    return low, high


def _data_of(run: str) -> str:
    from graddiv.runs import Run

    return Run(Path(run)).experiment.data.name


def _radius_of(run: str) -> float:
    from graddiv.recipes import radius
    from graddiv.runs import Run

    return radius(Run(Path(run)).experiment)
