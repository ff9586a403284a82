"""The data sets: `load(name, split)`, and `augmented` for their training batches.

What needs torch is imported when first used: recipes name data sets, and are read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from graddiv.data.files import status
from graddiv.data.registry import SOURCES, lookup, names
from graddiv.data.source import Source

if TYPE_CHECKING:
    from graddiv.data.dataset import Dataset as Dataset
    from graddiv.data.splits import augmented as augmented
    from graddiv.data.splits import load as load

_HOME = {"Dataset": "dataset", "augmented": "splits", "load": "splits"}

__all__ = ["SOURCES", "Dataset", "Source", "augmented", "load", "lookup", "names", "status"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'graddiv.data' has no attribute {name!r}")
    return getattr(import_module(f"graddiv.data.{_HOME[name]}"), name)
