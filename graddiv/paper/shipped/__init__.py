"""Two networks of the study, trained on all of MNIST: what the demo attacks, and can be trained on from."""

from pathlib import Path

from graddiv.errors import unknown
from graddiv.runs import Run

SHIPPED = Path(__file__).parent


def shipped(method: str) -> Run:
    """The shipped run of a method."""
    known = sorted(path.parent.name for path in SHIPPED.glob("*/experiment.json"))
    if method not in known:
        raise unknown("shipped network", method, known)
    return Run(SHIPPED / method)
