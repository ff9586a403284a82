"""What several commands share."""

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

import typer

from graddiv.errors import GradDivError
from graddiv.progress import leads, progress_bar

if TYPE_CHECKING:
    from graddiv.records import Summary

__all__ = [
    "INTERVAL",
    "SPREADS",
    "beginning",
    "interval_of",
    "leads",
    "number",
    "percent",
    "progress_bar",
    "suggest",
    "whole_number",
    "words",
]

INTERVAL = "95 % interval"
SPREADS = "±: over draws. Interval: of other draws and other test examples."
"""What stands below accuracies."""


def suggest(what: str) -> None:
    """The last line of a command: what to do next."""
    typer.echo(f"next: {what}", err=True)


def beginning(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What a shell completes a word to: the names that begin with it, looked up when they are asked for."""

    def matching(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return matching


def words(text: str) -> list[str]:
    """The comma-separated parts of an option."""
    return [word.strip() for word in text.split(",") if word.strip()]


def number(text: str) -> float:
    """0.3 or 8/255."""
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise GradDivError(f"{text!r} is no number, expected one such as 0.3 or 8/255") from None


def whole_number(text: str) -> int:
    """A seed or a count."""
    try:
        return int(text)
    except ValueError:
        raise GradDivError(f"{text!r} is no whole number, expected one such as 3") from None


def percent(a: "Summary") -> str:
    """An accuracy, and its spread over draws where two ensembles or repeats differ: 83.10 ± 1.20."""
    return f"{100 * a.mean:.2f}" + (f" ± {100 * a.std:.2f}" if a.std > 0 else "")


def interval_of(a: "Summary") -> str:
    """The interval that goes by the name of INTERVAL."""
    return f"{100 * a.interval.low:.1f} to {100 * a.interval.high:.1f}"
