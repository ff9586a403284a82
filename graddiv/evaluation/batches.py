"""Long evaluations in batches: each is a file, so that a kill loses at most one, and processes share them."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graddiv import store
from graddiv.distributed import ALONE, World
from graddiv.errors import GradDivError
from graddiv.records import Record

Compute = Callable[[slice], Mapping[str, np.ndarray]]
"""What is found for the examples of a slice: arrays whose first axis is the example."""


def in_batches(
    path: Path | None,
    description: dict[str, Any],
    examples: int,
    batch: int,
    compute: Compute,
    *,
    here: World = ALONE,
    skipped: Callable[[slice], None] = lambda rows: None,
) -> Record:
    """The record of `examples` examples, computed in batches; those already on disk are not computed again.

    A finished record is one file.  Until then each batch is a file in a directory beside it; batches are dealt out to
    the processes in turn, and the first one joins them.  Without a path nothing is kept on disk.
    """
    slices = [slice(start, min(start + batch, examples)) for start in range(0, examples, batch)]
    if path is None:
        return Record(description, _joined([compute(rows) for rows in slices]))
    if path.exists():
        for rows in slices:
            skipped(rows)
        return _checked(Record.load(path), description, path)
    parts = path.with_suffix(".parts")
    store.make_directory(parts)
    for number, rows in enumerate(slices):
        part = parts / f"{number:05d}"
        if part.exists():
            _checked(Record.load(part), description, path)
            skipped(rows)
        elif number % here.size == here.rank:
            store.write_arrays(part, compute(rows), description)
        else:
            skipped(rows)
    here.wait()
    if here.writes:
        found = [store.read_arrays(parts / f"{number:05d}")[0] for number in range(len(slices))]
        Record(description, _joined(found)).save(path)
        shutil.rmtree(parts)
    here.wait()
    return Record.load(path)


def _joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays of all batches behind each other; counters, which have no axis, are added up."""
    return {
        name: np.concatenate([part[name] for part in parts])
        if parts[0][name].ndim
        else np.sum([part[name] for part in parts], axis=0)
        for name in parts[0]
    }


def _checked(record: Record, description: dict[str, Any], path: Path) -> Record:
    """The record, if it is of this very evaluation."""
    different = store.differences(record.description, description)
    if different:
        key, found, wanted = different[0]
        raise GradDivError(
            f"{path} was made with {key} = {found!r}, now it is {wanted!r}: "
            "choose another directory with --out, or the settings of that one"
        )
    return record
