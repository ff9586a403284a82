"""What several commands share."""

from collections.abc import Callable, Iterable
from fractions import Fraction

import typer

from graddiv.errors import GradDivError
from graddiv.progress import leads, progress_bar

__all__ = ["beginning", "leads", "number", "progress_bar", "suggest", "whole_number", "words"]


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
