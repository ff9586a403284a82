"""The `graddiv` command.  Torch is imported inside the commands that need it, so `--help` answers at once."""

import codecs
import io
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import typer

from graddiv import __version__
from graddiv.cli import attack, audit, data, measure, train
from graddiv.cli.doctor import doctor
from graddiv.cli.report import report
from graddiv.cli.reproduce import reproduce
from graddiv.errors import GradDivError, GradDivWarning

app = typer.Typer(
    name="graddiv",
    epilog="Start with 'graddiv doctor': what is installed, which data sets were found and what is missing. "
    "'graddiv --install-completion' completes commands in your shell.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("doctor")(doctor)
app.command("train")(train.train)
app.command("tune")(train.tune)
app.command("attack")(attack.attack)
app.command("records")(attack.records)
app.command("measure", cls=measure.MeasureCommand)(measure.measure)
app.command("transfer")(measure.transfer)
app.command("checklist")(measure.checklist)
app.command("sweep")(measure.sweep)
app.command("audit")(audit.audit)
app.command("board")(audit.board)
app.command("rescore")(audit.rescore)
app.command("reproduce")(reproduce)
app.command("report")(report)
app.add_typer(train.app, name="recipes")
app.add_typer(data.app, name="data")


GO_ON = {"train", "tune", "attack", "measure", "transfer", "checklist", "sweep", "audit", "reproduce", "data"}
"""Commands that, given again, go on where they stopped."""


def _print_version(wanted: bool | None) -> None:
    if wanted:
        typer.echo(f"graddiv {__version__}")
        raise typer.Exit


@app.callback(help="Train, attack and honestly measure randomized neural networks.")
def _options(
    version: Annotated[
        bool | None, typer.Option("--version", help="Print the version and stop.", callback=_print_version)
    ] = None,
) -> None:
    pass


def share_cores() -> None:
    """Let torch's threads sleep soon while they wait for each other, unless the user has said how they wait.

    GNU OpenMP's spin for long after each loop.  Beside other work that keeps the very thread they wait for from a core,
    and passes take many times as long (`make bench ARGS=threads`).  Must come before torch, which reads it once.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "1000"


def main() -> None:
    """Run the command; a user's mistake is one sentence on stderr and exit code 2."""
    _prepare_output()
    share_cores()
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    try:
        app()
    except GradDivError as error:
        _complain(str(error))
    except OSError as error:  # such as a full disk behind stdout
        _complain(f"{error.filename or 'the output'}: {error.strerror or error}")
    except (SystemExit, KeyboardInterrupt) as end:
        if isinstance(end, KeyboardInterrupt) or end.code == INTERRUPTED:
            goes_on = GO_ON.intersection(sys.argv[1:2])
            _complain(f"stopped{'; the same command goes on where it stopped' if goes_on else ''}", INTERRUPTED)
        raise


INTERRUPTED = 130
"""The exit code after Ctrl-C."""


def _complain(sentence: str, code: int = 2) -> None:
    print(f"graddiv: {sentence}", file=sys.stderr)
    with suppress(OSError):
        sys.stdout.flush()
        sys.exit(code)
    os._exit(code)  # the output cannot be written, and Python would say so at length


def _prepare_output() -> None:
    """Print each line when it is written, also into a pipe, and signs beyond ASCII in every locale.

    They are UTF-8 where the locale is that of ASCII, elsewhere as it has them, or else "?".
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            if codecs.lookup(stream.encoding).name == "ascii":
                stream.reconfigure(encoding="utf-8", errors="surrogateescape", line_buffering=True)
            else:
                stream.reconfigure(errors="replace", line_buffering=True)


def _show_warning(
    before: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any, **rest: Any
) -> None:
    """Show a warning of ours without the line of code, which says nothing to the user of a command."""
    if issubclass(category, GradDivWarning):
        print(f"graddiv: warning: {message}", file=sys.stderr)
    else:
        before(message, category, *where, **rest)
