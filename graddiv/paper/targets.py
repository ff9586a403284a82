"""What `graddiv reproduce` takes, by name."""

from graddiv.errors import unknown
from graddiv.paper.entries import DEMO, ENTRIES
from graddiv.paper.entry import Entry
from graddiv.paper.study import STUDY, STUDY_WHOLE, ZOO


def targets() -> dict[str, tuple[Entry, ...]]:
    """What can be reproduced: the demo, every table and figure alone, and all of a data set."""
    of_data = {data: tuple(e for e in ENTRIES.values() if e.data == data) for data in ("mnist", "cifar10", "stl10")}
    return {
        "demo": DEMO,
        "mnist-study": STUDY,
        **{e.name: (e,) for e in (*STUDY, STUDY_WHOLE, ZOO)},
        **of_data,
        **{name: (entry,) for name, entry in ENTRIES.items()},
    }


def entries_of(target: str) -> tuple[Entry, ...]:
    """The entries of a target."""
    known = targets()
    if target not in known:
        raise unknown("target", target, known)
    return known[target]
