"""Long evaluations in batches: each is a file, so that a kill loses at most one, and processes share them."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from graddiv import store
from graddiv.distributed import ALONE, Process
from graddiv.errors import GradDivError
from graddiv.records import Record

Advance = Callable[[float], None]
"""Told which share of a batch is done."""

Compute = Callable[[slice, Advance], Mapping[str, np.ndarray]]
"""What is found for the examples of a slice: arrays whose first axis is the example."""

PATIENCE = 12 * 3600.0
"""Seconds for which the batches of other processes are waited for while none comes: one may take hours."""

WorkListener = Callable[[float, float, str], None]
"""Told the work done, all there was to do when it began, and what is being made."""


def silent(done: float, total: float, what: str) -> None:
    """WorkListener nobody looks at."""


R = TypeVar("R", bound=Record)


@dataclass(frozen=True, eq=False)
class Job(Generic[R]):
    """A record to be made: a finished one is a file; until then each batch is a file in a directory beside it."""

    record: type[R]
    """The kind of record that it makes."""
    label: str
    description: dict[str, Any]
    path: Path | None
    """None: nothing is kept on disk."""
    examples: int
    batch: int
    work: float
    """Forward-equivalents of one batch, about: for the time left."""
    compute: Compute

    def __post_init__(self) -> None:
        if self.examples < 1 or self.batch < 1:
            raise GradDivError(
                f"there are {self.examples} examples in batches of {self.batch}, expected at least one of each"
            )
        # as a file gives it back: tuples are lists there
        object.__setattr__(self, "description", json.loads(json.dumps(self.description)))

    @property
    def slices(self) -> list[slice]:
        """The examples of each batch."""
        starts = range(0, self.examples, self.batch)
        return [slice(start, min(start + self.batch, self.examples)) for start in starts]

    def missing(self) -> list[int]:
        """The batches not yet on disk; refuses what another evaluation has put in their place."""
        numbers = list(range(len(self.slices)))
        if self.path is None:
            return numbers
        if self.path.exists():
            self._check(self.path)
            return []
        for number in numbers:
            if self._part(number).exists():
                self._check(self._part(number))
        return [number for number in numbers if not self._part(number).exists()]

    def is_stored(self, number: int) -> bool:
        """Whether a batch has been written down, or never will be."""
        return self.path is None or self._part(number).exists()

    def keep(self, number: int, found: Mapping[str, np.ndarray]) -> None:
        """Write a batch down."""
        store.make_directory(self._part(number).parent)
        store.write_arrays(self._part(number), found, self.description)

    def join(self) -> None:
        """Make the record of its batches, all of which are there; a finished one stays as it is."""
        if self.path is None:
            return
        if not self.path.exists():
            arrays = _joined([store.read_arrays(self._part(number))[0] for number in range(len(self.slices))])
            self.record.made(self.description, arrays, str(self.path))
            store.write_arrays(self.path, arrays, self.description)
        shutil.rmtree(self._part(0).parent, ignore_errors=True)

    def _part(self, number: int) -> Path:
        assert self.path is not None
        return self.path.with_suffix(".parts") / f"{number:05d}"

    def _check(self, path: Path) -> None:
        different = store.differences(self.description, store.read_arrays(path)[1])
        if different:
            key, wanted, found = different[0]
            raise GradDivError(
                f"{self.path} was made with {key} = {found!r}, now it is {wanted!r}: "
                "choose another directory with --out, or the settings of that one"
            )


def run(jobs: Sequence[Job[R]], *, process: Process = ALONE, progress: WorkListener = silent) -> list[R]:
    """The records of all jobs; what is on disk already is not computed again.

    Batches are dealt out to the processes in turn, over all jobs, and nobody waits for anybody before all are done.
    All processes must see one directory, for they tell each other by its files what is done.
    """
    paths = [job.path for job in jobs if job.path is not None]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise GradDivError(f"two evaluations would both be written to {twice.name}: leave one of them out")
    # What one process sees is everybody's: files that others write in the meantime change nothing.
    todo = process.shared([(which, number) for which, job in enumerate(jobs) for number in job.missing()])
    mine = [item for turn, item in enumerate(todo) if turn % process.size == process.rank or jobs[item[0]].path is None]
    done, total = 0.0, float(sum(jobs[which].work for which, _ in mine))
    kept: dict[int, list[Mapping[str, np.ndarray]]] = {}
    for which, job in enumerate(jobs):
        for number in [number for of, number in mine if of == which]:

            def advance(share: float, before: float = done, job: Job[R] = job) -> None:
                progress(before + share * job.work, total, job.label)

            found = job.compute(job.slices[number], advance)
            if job.path is None:
                kept.setdefault(which, []).append(found)
            else:
                job.keep(number, found)
            done += job.work
            progress(done, total, job.label)
        if process.size == 1:
            job.join()
    if process.size > 1:
        _await([(jobs[which], number) for which, number in todo])
    process.wait()
    if process.writes:
        for job in jobs:
            job.join()
    process.wait()
    return [
        job.record.load(job.path)
        if job.path is not None
        else job.record.made(job.description, _joined(kept[which]), job.label)
        for which, job in enumerate(jobs)
    ]


def _await(todo: Sequence[tuple[Job[R], int]]) -> None:
    """Wait for everybody's files, not at a barrier, which loses patience: a batch of a long attack may take hours."""
    missing, since = todo, time.monotonic()
    while left := [(job, number) for job, number in missing if not job.is_stored(number)]:
        if len(left) < len(missing):
            missing, since = left, time.monotonic()
        if time.monotonic() - since > PATIENCE:
            job, number = missing[0]
            raise GradDivError(
                f"batch {number} of {job.path} and {len(missing) - 1} others are missing and for "
                f"{PATIENCE / 3600:.3g} hours none has come: expected a directory that all processes share"
            )
        time.sleep(0.1)


@contextmanager
def writing(directory: Path | None, process: Process = ALONE) -> Iterator[None]:
    """Be the only evaluation that writes into a directory, all of its processes together."""
    with nullcontext() if directory is None or not process.writes else store.locked(directory):
        process.wait()
        yield


def _joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays of all batches behind each other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
