"""Progress on a terminal, and elsewhere a line every half minute."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from graddiv.errors import require

Progress = Callable[[float, float, str], None]  #: Callback (done, total, label).
#: Callback of training, (step, steps, values, epoch): at the beginning without values, after each step, and, with
#: `epoch`, after each epoch.
Listener = Callable[[int, int, Mapping[str, float], int | None], None]
PLAIN_EVERY = 30.0  #: Seconds between two lines where there is no terminal.
HOUR = 3600.0  #: Seconds of the past by which the time left is estimated: a single step may take minutes.


def silent(done: float, total: float, label: str) -> None:
    """Ignore the progress."""


def leads() -> bool:
    """Whether this process prints for all that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


class Bar:
    """A `Progress`: on a terminal a bar with the time left, elsewhere a line every half minute."""

    def __init__(self, console: Any = None, *, stderr: bool = True) -> None:
        require("cli")
        from rich import progress as rich
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text

        self.console = console or Console(stderr=stderr, quiet=not leads())
        self._spoken, self._left, self._values = time.monotonic(), rich.TimeRemainingColumn(), Text()
        columns = rich.TextColumn("{task.description:<16}"), rich.BarColumn(), rich.TaskProgressColumn(), self._left
        self._bar = rich.Progress(*columns, get_time=time.monotonic, speed_estimate_period=HOUR)
        self._bar.add_task("", total=None)
        self._plain = not self.console.is_terminal or self.console.quiet
        self._live = Live(Group(self._bar, self._values), console=self.console, transient=True)

    def __enter__(self) -> "Bar":
        if not self._plain:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()  # does nothing where it was not started

    def __call__(self, done: float | int, total: float | int, label: str, values: str = "") -> None:
        """Show how much is done; `values` stands below the bar."""
        (task,) = self._bar.tasks
        if done < task.completed:  # other work begins
            self._bar.reset(task.id)
        self._values.plain = values
        self._bar.update(task.id, completed=done, total=total, description=label)
        if self._plain and task.speed and time.monotonic() - self._spoken > PLAIN_EVERY:
            left = self._left.render(task)
            self.say(f"{label}: {done / total:.0%} done, {left} left" + (f", {values}" if values else ""))

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._spoken = time.monotonic()
        self.console.print(line, highlight=False, soft_wrap=True)


def listening(progress: bool | Progress) -> AbstractContextManager[Progress]:
    """The callback for `progress`: a bar if it is True, itself if it is a callback, else one that does nothing."""
    return Bar() if progress is True else nullcontext(progress or silent)


def shown(bar: Bar, title: str) -> Listener:
    """A listener that moves the bar and prints a line for each epoch."""
    rho: dict[str, float] = {}

    def listen(step: int, steps: int, values: Mapping[str, float], epoch: int | None) -> None:
        if epoch is not None:
            rho.update({"rho": values["rho"]} if "rho" in values else {})
            bar.say(f"epoch {epoch}: {_line(values)}")
        elif values:
            bar(step, steps, f"{title} {step}/{steps}", _line({**values, **rho}))
        else:
            bar(step, steps, title)
            about = f"goes on after step {step} of {steps}" if step else f"{steps} steps"
            bar.say(f"{title}: " + (f"nothing left to do, all {steps} steps are done" if step == steps else about))

    return listen


def tensorboard(directory: Path) -> Listener:
    """A listener that writes the values of every epoch for TensorBoard."""
    require("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(directory))

    def listen(step: int, steps: int, values: Mapping[str, float], epoch: int | None) -> None:
        if epoch is not None:
            for name, value in values.items():
                writer.add_scalar(f"train/{name}", value, epoch)
            writer.flush()

    return listen


def _line(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())
