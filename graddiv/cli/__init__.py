"""The `graddiv` command.  Torch is imported inside the commands that need it, so `--help` answers at once."""

import sys

import typer

from graddiv.cli import attack, data, measure, train
from graddiv.cli.doctor import doctor
from graddiv.cli.report import report
from graddiv.cli.reproduce import reproduce
from graddiv.errors import GradDivError

app = typer.Typer(
    name="graddiv",
    help="Train, attack and honestly measure randomized neural networks.",
    epilog="Start with 'graddiv doctor': what is installed, which data sets were found and what is missing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("doctor")(doctor)
app.command("train")(train.train)
app.command("tune")(train.tune)
app.command("attack")(attack.attack)
app.command("records")(attack.records)
app.command("measure")(measure.measure)
app.command("transfer")(measure.transfer)
app.command("checklist")(measure.checklist)
app.command("sweep")(measure.sweep)
app.command("reproduce")(reproduce)
app.command("report")(report)
app.add_typer(train.app, name="recipes")
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command; a user's mistake is one sentence on stderr and exit code 2."""
    try:
        app()
    except GradDivError as error:
        print(f"graddiv: {error}", file=sys.stderr)
        sys.exit(2)
