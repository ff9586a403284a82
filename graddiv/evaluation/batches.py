"""Long evaluations, batch by batch.

Every finished batch is a file, so that a kill loses at most one batch, and several processes can share the work.
"""

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
"""Called with the share of the current batch that is done, in [0, 1]."""

Compute = Callable[[slice, Advance], Mapping[str, np.ndarray]]
"""(examples, advance) -> arrays by name, whose first axis is the example: what a job computes for one batch."""

PATIENCE = 12 * 3600.0
"""Seconds to wait for the batches of other processes while none arrives: a single batch may take hours."""

WorkListener = Callable[[float, float, str], None]
"""Called with the work done, all the work there was at the start, and the label of the job under way.

Work is measured in forward-equivalents, the unit of `Job.work`.
"""


def silent(done: float, total: float, what: str) -> None:
    """Ignore the progress: the default `WorkListener`."""


R = TypeVar("R", bound=Record)


@dataclass(frozen=True, eq=False)
class Job(Generic[R]):
    """A record to be made.

    The finished record is one file; until then each finished batch is a file in a directory beside it.
    """

    record: type[R]
    """The kind of record that it makes."""
    label: str
    """What is shown to the user while the job runs."""
    description: dict[str, Any]
    """The description of the record: all settings that its numbers depend on, as JSON values."""
    path: Path | None
    """The file of the record; None if nothing is to be stored on disk."""
    examples: int
    """How many examples there are in all; at least 1."""
    batch: int
    """How many examples make a batch; at least 1."""
    work: float
    """The rough cost of one batch in forward-equivalents, from which the time left is estimated."""
    compute: Compute
    """Computes the arrays of one batch."""

    def __post_init__(self) -> None:
        if self.examples < 1 or self.batch < 1:
            raise GradDivError(
                f"there are {self.examples} examples in batches of {self.batch}, expected at least one of each"
            )
        # In the form in which a file gives it back (tuples become lists), so that both can be compared.
        object.__setattr__(self, "description", json.loads(json.dumps(self.description)))

    @property
    def slices(self) -> list[slice]:
        """The examples of each batch, in order."""
        starts = range(0, self.examples, self.batch)
        return [slice(start, min(start + self.batch, self.examples)) for start in starts]

    def missing(self) -> list[int]:
        """Return the numbers of the batches not yet on disk; files that another evaluation wrote there are an error."""
        numbers = list(range(len(self.slices)))
        if self.path is None:
            return numbers
        if self.path.exists():
            self._check_description(self.path)
            return []
        for batch_number in numbers:
            if self._batch_path(batch_number).exists():
                self._check_description(self._batch_path(batch_number))
        return [batch_number for batch_number in numbers if not self._batch_path(batch_number).exists()]

    def is_stored(self, batch_number: int) -> bool:
        """Whether the file of a batch exists, or will never be written because the job stores nothing."""
        return self.path is None or self._batch_path(batch_number).exists()

    def write_batch(self, batch_number: int, found: Mapping[str, np.ndarray]) -> None:
        """Store the arrays of one batch."""
        store.make_directory(self._batch_path(batch_number).parent)
        store.write_arrays(self._batch_path(batch_number), found, self.description)

    def merge(self) -> None:
        """Make the record of the batches, all of which must be on disk, and delete them; an existing record stays."""
        if self.path is None:
            return
        if not self.path.exists():
            arrays = _joined([store.read_arrays(self._batch_path(number))[0] for number in range(len(self.slices))])
            self.record.made(self.description, arrays, str(self.path))
            store.write_arrays(self.path, arrays, self.description)
        shutil.rmtree(self._batch_path(0).parent, ignore_errors=True)

    def _batch_path(self, batch_number: int) -> Path:
        assert self.path is not None
        return self.path.with_suffix(".parts") / f"{batch_number:05d}"

    def _check_description(self, path: Path) -> None:
        different = store.differences(self.description, store.read_arrays(path)[1])
        if different:
            key, wanted, found = different[0]
            raise GradDivError(
                f"{self.path} was made with {key} = {found!r}, now it is {wanted!r}: "
                "choose another directory with --out, or the settings of that one"
            )


def run(jobs: Sequence[Job[R]], *, process: Process = ALONE, progress: WorkListener = silent) -> list[R]:
    """Run all jobs and return their records; batches that are on disk already are not computed again.

    The batches of all jobs are dealt out to the processes in turn, and no process waits for another before all its own
    batches are done.  All processes must see the same directory, because its files tell them what is done.
    """
    paths = [job.path for job in jobs if job.path is not None]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise GradDivError(f"two evaluations would both be written to {twice.name}: leave one of them out")
    # One process looks and tells the others, so that all deal out the same list even if files appear meanwhile.
    todo = process.broadcast(
        [(job_number, batch_number) for job_number, job in enumerate(jobs) for batch_number in job.missing()]
    )
    mine = [item for turn, item in enumerate(todo) if turn % process.size == process.rank or jobs[item[0]].path is None]
    done, total = 0.0, float(sum(jobs[job_number].work for job_number, _ in mine))
    in_memory: dict[int, list[Mapping[str, np.ndarray]]] = {}
    for job_number, job in enumerate(jobs):
        for batch_number in [batch for owner, batch in mine if owner == job_number]:

            def advance(share: float, before: float = done, job: Job[R] = job) -> None:
                progress(before + share * job.work, total, job.label)

            found = job.compute(job.slices[batch_number], advance)
            if job.path is None:
                in_memory.setdefault(job_number, []).append(found)
            else:
                job.write_batch(batch_number, found)
            done += job.work
            progress(done, total, job.label)
        if process.size == 1:
            job.merge()
    if process.size > 1:
        _wait_for_files([(jobs[job_number], batch_number) for job_number, batch_number in todo])
    process.wait()
    if process.writes:
        for job in jobs:
            job.merge()
    process.wait()
    return [
        job.record.load(job.path)
        if job.path is not None
        else job.record.made(job.description, _joined(in_memory[job_number]), job.label)
        for job_number, job in enumerate(jobs)
    ]


def _wait_for_files(todo: Sequence[tuple[Job[R], int]]) -> None:
    """Wait for the files of all processes.

    A barrier would not do: it times out after minutes, and a batch of a long attack may take hours.
    """
    missing, since = todo, time.monotonic()
    while left := [(job, batch_number) for job, batch_number in missing if not job.is_stored(batch_number)]:
        if len(left) < len(missing):
            missing, since = left, time.monotonic()
        if time.monotonic() - since > PATIENCE:
            job, batch_number = missing[0]
            raise GradDivError(
                f"batch {batch_number} of {job.path} and {len(missing) - 1} others are missing and for "
                f"{PATIENCE / 3600:.3g} hours none has come: expected a directory that all processes share"
            )
        time.sleep(0.1)


@contextmanager
def writing(directory: Path | None, process: Process = ALONE) -> Iterator[None]:
    """Be the only evaluation that writes into the directory; its processes hold the lock together."""
    with nullcontext() if directory is None or not process.writes else store.locked(directory):
        process.wait()
        yield


def _joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the arrays of all batches, concatenated."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
