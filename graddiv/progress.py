"""Progress on a terminal, and elsewhere a line every half minute."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graddiv.extras import require

Listener = Callable[[float, float, str], None]
"""Told of the work done, of all the work there is, and of what is under way."""


def leads() -> bool:
    """Whether this process speaks for all that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def progress_bar() -> Iterator[Listener]:
    """A bar with the time left on a terminal, a line every half minute elsewhere; told (done, total, what)."""
    import time

    require("cli")
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
            if not console.is_terminal and now - spoken > 30 and done > 0:
                spoken = now
                left = (now - begun) / done * (total - done) / 60
                console.print(f"{what}: {done / total:.0%} of the work, {left:.0f} min left", highlight=False)

        yield show


@contextmanager
def listening(progress: bool | Listener) -> Iterator[Listener]:
    """The function that is told of the progress: a bar if `progress` is True, or what it is itself."""
    if progress is True:
        with progress_bar() as show:
            yield show
    else:
        yield progress or (lambda done, total, what: None)
