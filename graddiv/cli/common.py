"""What several commands share."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction

from graddiv.errors import GradDivError


def leads() -> bool:
    """Whether this process speaks for all that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


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


@contextmanager
def progress_bar() -> Iterator[Callable[[float, float, str], None]]:
    """A bar with the time left on a terminal, a line every half minute elsewhere; told (done, total, what)."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, quiet=not leads())
    columns = (TextColumn("{task.description:<16}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        begun = spoken = time.monotonic()

        def show(done: float, total: float, what: str) -> None:
            nonlocal spoken
            bar.update(task, completed=done, total=total, description=what)
            now = time.monotonic()
            if not console.is_terminal and now - spoken > 30:
                spoken = now
                left = (now - begun) / done * (total - done) / 60
                console.print(f"{what}: {done / total:.0%} of the suite, {left:.0f} min left", highlight=False)

        yield show
