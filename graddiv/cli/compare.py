"""`graddiv compare`: several networks side by side, on the same examples, attacks and draws."""

from pathlib import Path
from typing import Any

import typer

from graddiv.cli.options import Machine, command, numbers, suggest, words
from graddiv.errors import GradDivError


@command
def compare(
    models: list[str], /, *, data: str = "", epsilon: str = "8/255", norm: str = "linf", suite: str = "quick",
    attacks: str = "", n: int = 10, m: int | None = None, examples: int | None = None, repeats: int = 1,
    seed: int = 0, batch: int = 100, out: Path | None = None, machine: Machine,
) -> None:  # fmt: skip
    """Compare networks on the same examples, with the same attacks and draws.

    graddiv compare plain=models.py:CNN models.py:Dropout --data xs.npz --epsilon 4/255,8/255

    graddiv compare runs/A runs/B --attacks pgd,apgd-ce --examples 200 --out comparisons/mine

    Prints a table, and writes a page, tables (CSV, LaTeX), the curve against epsilon and all records.  The same command
    again goes on where it stopped.
    """
    from graddiv.cli.show import print_table
    from graddiv.evaluation.compare import compare as carry_out
    from graddiv.evaluation.examples import read_examples
    from graddiv.evaluation.models import load_model
    from graddiv.report.models import comparison_table
    from graddiv.runs import Run

    named = [_named(text) for text in models]
    if twice := [name for i, (name, _) in enumerate(named) if name in dict(named[:i])]:
        raise GradDivError(f"two models are called {twice[0]!r}, expected NAME=MODEL with a name for each")
    given = {name: load_model(reference) for name, reference in named}
    first = next((model for model in given.values() if isinstance(model, Path)), None)
    if not data and first is None:
        raise GradDivError("--data is missing, expected an .npz file with the arrays x and y, or a data set by name")
    x, y = read_examples(data or Run(Path(str(first))).experiment.data.name, examples, machine.data_root)
    directory = out or Path("comparisons") / "-".join(given)
    options: dict[str, Any] = {"suite": suite, "attacks": words(attacks), "norm": norm, "n": n, "m": m}
    options |= {"repeats": repeats, "seed": seed, "batch": batch, "progress": True}
    with machine.process():
        found = carry_out(given, x, y, epsilon=numbers(epsilon), out=directory, **options)
    print_table(comparison_table(found.rows))
    typer.echo(f"report: {directory / 'report.html'}")
    suggest("open it in a browser; graddiv audit MODEL looks closely at one of them")


def _named(text: str) -> tuple[str, str]:
    """NAME=MODEL, or a model that is called by the last part of its reference."""
    name, given, reference = text.partition("=")
    return (name, reference) if given else (text.rpartition(":")[2].rstrip("/").rpartition("/")[2], text)
