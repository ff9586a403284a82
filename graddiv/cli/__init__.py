"""The `graddiv` command.  Torch is imported inside the commands that need it, so `--help` answers at once."""

import codecs
import io
import os
import shlex
import sys
import warnings
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from graddiv import __version__
from graddiv.cli import attack, compare, doctor, report, train
from graddiv.errors import GradDivError, GradDivWarning
from graddiv.progress import leads

INTERRUPTED = 130  #: The exit code after Ctrl-C.
GO_ON = {"train", "tune", "attack", "measure", "audit", "compare", "reproduce", "data"}
"""Commands that resume where they stopped when repeated."""


def _sweep(words: list[str]) -> list[str]:
    """`sweep RUNS --over n --values 1,5` is `attack RUNS --n 1,5`, with EOT-PGD of 20 iterations."""
    old = ArgumentParser(add_help=False, allow_abbrev=False)
    for option, usual in {"--over": "lam", "--values": "", "--attack": "pgd"}.items():
        old.add_argument(option, default=usual)
    given, words = old.parse_known_args(words)
    compared = [] if given.over == "lam" else [f"--{given.over}", given.values]
    return ["attack", "--attacks", given.attack, "--modes", "eot", "--m", "20", *words, *compared]


OLD: dict[str, Callable[[list[str]], list[str]]] = {
    "transfer": lambda words: ["measure", "--what", "transfer", *words],
    "checklist": lambda words: ["measure", "--what", "checklist", *words],
    "sweep": _sweep,
    "records": lambda words: ["report", "--records", *words],
    "rescore": lambda words: ["board", "--rescore", *words],
    "recipes show": lambda words: ["recipes", *words],
}
"""Old commands, which work until 0.2, and functions that translate their arguments to the new command line."""


class Commands(TyperGroup):
    """The commands; old ones are translated, with a warning."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for old, renewed in OLD.items():
            words = old.split()
            if args[: len(words)] == words:
                args = renewed(args[len(words) :])
                line = f"'graddiv {old}' goes with version 0.2: it is now 'graddiv {shlex.join(args)}'"
                print(f"graddiv: DeprecationWarning: {line}", file=sys.stderr)
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="graddiv",
    cls=Commands,
    epilog="Start with 'graddiv doctor': what is installed, which data sets were found and what is missing. "
    "'graddiv --install-completion' completes commands in your shell.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for function in (
    doctor.doctor, doctor.data, train.recipes, train.train, train.tune, attack.attack, attack.measure, attack.audit,
    compare.compare, attack.board, report.reproduce, report.report,
):  # fmt: skip
    app.command(cls=attack.MeasureCommand if function is attack.measure else None)(function)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Train, attack and honestly measure randomized neural networks."""
    if version:
        typer.echo(f"graddiv {__version__}")
        raise typer.Exit


def share_cores() -> None:
    """Make torch's idle threads sleep early, unless the user has configured how they wait.

    By default the threads of GNU OpenMP spin after each loop.  On a busy machine they then block the core of the thread
    they wait for, and passes take many times as long (`make bench ARGS=threads`).  Call it before torch is imported.
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


def _complain(sentence: str, code: int = 2) -> None:
    print(f"graddiv: {sentence}", file=sys.stderr)
    with suppress(OSError):
        sys.stdout.flush()
        sys.exit(code)
    os._exit(code)  # the output cannot be written, and Python would say so at length


def _prepare_output() -> None:
    """Flush each line, also into a pipe and in any locale; only one process of torchrun prints."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            if codecs.lookup(stream.encoding).name == "ascii":
                stream.reconfigure(encoding="utf-8", errors="surrogateescape", line_buffering=True)
            else:
                stream.reconfigure(errors="replace", line_buffering=True)
    if not leads():
        sys.stdout = io.StringIO()


def _show_warning(
    before: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any, **rest: Any
) -> None:
    """Show a warning of ours without the line of code, which says nothing to the user of a command."""
    if issubclass(category, GradDivWarning):
        print(f"graddiv: warning: {message}", file=sys.stderr)
    else:
        before(message, category, *where, **rest)
