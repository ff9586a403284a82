"""The data sets: `load(name, split)`, and `augmented` for their training batches."""

from graddiv.data.dataset import Dataset
from graddiv.data.files import status
from graddiv.data.registry import augmented, load, lookup, names
from graddiv.data.source import Source

__all__ = ["Dataset", "Source", "augmented", "load", "lookup", "names", "status"]
