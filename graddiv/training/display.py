"""How training shows itself: live lines on a terminal, plain lines elsewhere, TensorBoard on request."""

import time
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from graddiv.errors import GradDivError

PLAIN_EVERY = 30.0
"""Seconds between two lines where there is no terminal."""


class Display:
    """Tells of steps and epochs on the console."""

    def __init__(self, title: str, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console(quiet=quiet)
        self._begun = self._spoken = time.monotonic()
        self._first = 0
        self._rho: dict[str, float] = {}
        self._live: Live | None = None
        if self.console.is_terminal and not self.console.quiet:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("left"),
            )
            self._task = self._bar.add_task(title, total=None)
            self._values = Text()
            self._live = Live(Group(self._bar, self._values), console=self.console)

    def __enter__(self) -> "Display":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def titled(self, title: str) -> "Display":
        """Show another training from here on."""
        self._rho = {}
        if self._live is not None:
            self._bar.update(self._task, description=title)
        self._say(title)
        return self

    def begin(self, done: int, total: int) -> None:
        """Say what was done before."""
        self._begun, self._first = time.monotonic(), done
        if self._live is not None:
            self._bar.reset(self._task, total=total, completed=done)
        if done == total:
            self._say(f"nothing left to do: all {total} steps were done before")
        elif done:
            self._say(f"goes on after step {done} of {total}")

    def step(self, done: int, total: int, values: dict[str, float]) -> None:
        """Move the bar, or every half minute say a line."""
        values = {**values, **self._rho}
        if self._live is not None:
            self._bar.update(self._task, completed=done)
            self._values.plain = _line(values)
            return
        now = time.monotonic()
        if now - self._spoken > PLAIN_EVERY:
            self._spoken = now
            left = (now - self._begun) / (done - self._first) * (total - done)
            self._say(f"step {done}/{total}, {_duration(left)} left, {_line(values)}")

    def epoch(self, epoch: int, values: dict[str, float]) -> None:
        """One line for each epoch."""
        self._spoken = time.monotonic()
        self._rho = {"rho": values["rho"]} if "rho" in values else {}
        self._say(f"epoch {epoch}: {_line(values)}")

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)


class TensorBoard:
    """Writes the values of every epoch for TensorBoard."""

    def __init__(self, directory: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise GradDivError(
                "TensorBoard is not installed: pip install 'graddiv[tensorboard]', or leave out --tensorboard"
            ) from None
        self._writer = SummaryWriter(str(directory))

    def begin(self, done: int, total: int) -> None:
        """Curves go on by themselves."""

    def step(self, done: int, total: int, values: dict[str, float]) -> None:
        """Steps are too many."""

    def epoch(self, epoch: int, values: dict[str, float]) -> None:
        """One point of each curve."""
        for name, value in values.items():
            self._writer.add_scalar(f"train/{name}", value, epoch)
        self._writer.flush()


def _line(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
