"""What the training behind tables and figures takes."""

from collections.abc import Callable, Collection, Sequence

from graddiv.experiment import Experiment
from graddiv.experiment.cost import training_work
from graddiv.paper.entry import Entry


def seconds_to_train(entries: Sequence[Entry], scale: str, speed: Callable[[Experiment], float]) -> float | None:
    """Of all runs, each once, at a speed in work per second; None if one of the entries has no such scale.

    Runs that come with the package take none.
    """
    if not all(scale in entry.scales for entry in entries):
        return None
    trained = [entry for entry in entries if not entry.shipped]
    runs = {e.run_name: e for entry in trained for e in entry.experiments(scale, None, ())}
    seconds, before = 0.0, set[str]()
    for experiment in runs.values():
        seconds += training_work(experiment, epochs_taken_over(experiment, before)) / speed(experiment)
        before.add(experiment.digest)
    return seconds


def epochs_taken_over(experiment: Experiment, before: Collection[str]) -> int:
    """How many epochs a training copies from one of just its first stages, if the digest of that is among these."""
    return next((first.epochs for first in experiment.first_stages if first.digest in before), 0)
