"""What the training behind tables and figures takes."""

from collections.abc import Callable, Sequence

from graddiv.experiment import Experiment
from graddiv.paper.entry import Entry


def seconds_to_train(entries: Sequence[Entry], scale: str, speed: Callable[[Experiment], float]) -> float | None:
    """Of all runs, each once, at a speed in work per second; None if one of the entries has no such scale.

    Runs that come with the package take none.
    """
    if not all(scale in entry.scales for entry in entries):
        return None
    trained = [entry for entry in entries if not entry.shipped]
    runs = {e.run_name: e for entry in trained for e in entry.experiments(scale, None, ())}
    return sum(e.work / speed(e) for e in runs.values())
