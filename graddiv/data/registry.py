"""The known data sets, by name; what is known of them before they are read, hence without torch."""

from graddiv.data import cifar10, mini, mnist, stl10, synthetic
from graddiv.data.source import Source
from graddiv.registries import Registry

SOURCES: Registry[Source] = Registry(
    "data set", {module.SOURCE.name: module.SOURCE for module in (mini, mnist, cifar10, stl10, synthetic)}
)

SPLITS = ("train", "validation", "test", "train+validation")
"""The splits that `load` knows."""


def names() -> tuple[str, ...]:
    """Return the names of the data sets that `load` knows."""
    return tuple(SOURCES)


def lookup(name: str) -> Source:
    """Return the data set's entry in the registry."""
    return SOURCES[name]
