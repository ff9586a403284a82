"""`graddiv audit` and `graddiv board`: networks of any kind."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from graddiv.cli.options import Machine, command, number, numbers, suggest, words
from graddiv.errors import GradDivError
from graddiv.progress import Bar

if TYPE_CHECKING:
    from graddiv.evaluation.card import Audit
    from graddiv.evaluation.examples import Bounds


@command
def audit(
    model: str, /, *, data: str = "", epsilon: str = "", norm: str = "linf", budget: str = "quick",
    bounds: str = "", examples: int | None = None, name: str | None = None, about: list[str] = [],  # noqa: B006
    peers: list[str] = [], out: Path | None = None, seed: int = 0, batch: int = 100, machine: Machine,  # noqa: B006
) -> None:  # fmt: skip
    """Audit any stochastic (or deterministic) network: look, attack, and say what is proved and what is not.

    Writes a page, a card (JSON) and the adversarial examples.  Exits with 0 if the audit is complete, with 3 if its
    evidence is not sufficient.  The same command again goes on where it stopped.  Several processes share the work:
    torchrun --nproc-per-node N -m graddiv -- audit ...
    """
    from graddiv.evaluation.audit import audit as carry_out
    from graddiv.evaluation.examples import read_examples
    from graddiv.evaluation.measurements import l2_radius
    from graddiv.evaluation.models import load_model
    from graddiv.recipes import radius as radius_of_training
    from graddiv.runs import Run

    given, radius = load_model(model), number(epsilon) if epsilon else 8 / 255
    if isinstance(given, Path):
        data = data or Run(given).experiment.data.name
    elif not data:
        raise GradDivError("--data is missing, expected an .npz file with the arrays x and y, or a data set by name")
    x, y = read_examples(data, 100 if examples is None and budget == "quick" else examples, machine.root)
    if isinstance(given, Path) and not epsilon:
        radius = radius_of_training(Run(given).experiment)
        radius = radius if norm == "linf" else l2_radius(radius, x[0].numel())
    directory = out or Path("audits") / (name or (given.name if isinstance(given, Path) else model.rpartition(":")[2]))
    with machine.process() as process, Bar() as progress:
        found = carry_out(
            given, x, y, epsilon=radius, norm=norm, bounds=_bounds(bounds),
            budget=budget, name=name, about=_pairs(about), peers=peers, out=directory, seed=seed, batch=batch,
            progress=progress, process=process, device=process.device, data_root=machine.root,
        )  # fmt: skip
    _print(found)
    typer.echo(f"report: {directory / 'report.html'}")
    suggest(f"open it in a browser; docs/audit.md says how to read it; graddiv board {directory.parent} ranks audits")
    raise typer.Exit(found.exit_code)


@command
def board(
    directory: Path, /, *, rescore: bool = False, model: str = "", images: Path | None = None, who: str = "",
    attack: str = "",
) -> None:  # fmt: skip
    """Make one static page that ranks all audited networks below a directory by what is sure to be left of them.

    With --rescore check one entry: 'graddiv board CARD --rescore --model FILE:FACTORY' scores its adversarial examples
    on other draws, and --images lowers it if its examples leave less.
    """
    from graddiv.evaluation.card import board as make
    from graddiv.evaluation.card import rescore as score
    from graddiv.evaluation.models import load_model

    if not (rescore or model or images):
        typer.echo(f"board: {make(directory)}")
        suggest("open it in a browser; graddiv board CARD --rescore --model FILE:FACTORY checks an entry")
        return
    if not model:
        raise GradDivError("--model is missing, expected file.py:factory of the network that the card is of, or a run")
    found = score(directory, load_model(model), images, who=who, attack=attack)
    if not found["same_network"]:
        typer.echo("the parameters are not those that the card was made with")
    typer.echo(f"ensemble: {found['now']}\non the card: {found['before']}")
    typer.echo(f"per draw: {100 * found['per_draw'].mean:.1f} %")
    if images is not None:
        typer.echo("the card is lowered" if found["lowered"] else "the card stays as it is")
    suggest("graddiv board DIRECTORY ranks it again, in the directory that holds the audits")


def _print(found: "Audit") -> None:
    """The checks that did not pass, how attacks behaved, and the three numbers."""
    from graddiv.cli.show import interval_of, print_titled, print_verdicts

    if odd := [item for item in found.checks.values() if item.verdict != "pass"]:
        print_verdicts(odd, "Before the attacks: what was found")
    print_verdicts(found.indicators, "How the attacks behaved")
    rows = [(name, f"{100 * a.mean:.1f}", f"{100 * b.mean:.1f}", interval_of(b)) for name, a, b in found.rows]
    print_titled("Three numbers", ("", "clean %", "attacked %", "95 % over images"), rows)
    for text in found.shortcomings:
        typer.echo(f"evidence insufficient: {text}")


def _pairs(texts: list[str]) -> dict[str, str]:
    """KEY=VALUE, several times."""
    if broken := [text for text in texts if "=" not in text]:
        raise GradDivError(f"--about is {broken[0]!r}, expected KEY=VALUE such as authors='A. Author'")
    return {key.strip(): value for key, _, value in (text.partition("=") for text in texts)}


def _bounds(text: str) -> "Bounds | None":
    """0,255; for several channels 0:0:0,1:1:1."""
    parts = [numbers(part.replace(":", ",")) for part in words(text)]
    if not parts:
        return None
    if len(parts) != 2:
        raise GradDivError(f"--bounds is {text!r}, expected two numbers such as 0,255")
    low, high = (part[0] if len(part) == 1 else part for part in parts)
    return low, high
