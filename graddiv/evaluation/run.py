"""Runs the jobs of every evaluation batch by batch; a finished batch is a file, so that a kill loses at most one."""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from graddiv import store
from graddiv.distributed import ALONE, Process
from graddiv.errors import GradDivError
from graddiv.progress import Progress, listening, silent
from graddiv.records import Record

R = TypeVar("R", bound=Record)
T = TypeVar("T")

Advance = Callable[[float], None]  #: Called with the share of the current batch that is done, in [0, 1].
Arrays = Mapping[str, np.ndarray]  #: Arrays by name; the first axis is the example.
#: Seconds to wait for the batches of other processes while none arrives: a single batch may take hours.
PATIENCE = 12 * 3600.0


@dataclass(frozen=True, eq=False)
class Job(Generic[R]):
    """A record to be made: what it is, and what computes it."""

    record: type[R]  #: The kind of record that it makes.
    label: str  #: Shown to the user while the job runs.
    description: dict[str, Any]  #: All settings that the numbers depend on, as JSON values.
    file: str  #: The record's path below the directory of the session.
    examples: int  #: How many examples there are in all; at least 1.
    batch: int  #: How many examples make a batch; at least 1.
    work: float  #: Rough cost of one batch in forward-equivalents, for the estimate of the time left.
    compute: Callable[[slice, Advance], Arrays]  #: (examples, advance) -> the arrays of one batch.

    def __post_init__(self) -> None:
        if self.examples < 1 or self.batch < 1:
            found = f"there are {self.examples} examples in batches of {self.batch}"
            raise GradDivError(f"{found}, expected at least one of each")
        # As JSON returns it (tuples become lists), so that it can be compared with that of a file.
        object.__setattr__(self, "description", json.loads(json.dumps(self.description)))

    @property
    def slices(self) -> list[slice]:
        return [slice(start, min(start + self.batch, self.examples)) for start in range(0, self.examples, self.batch)]

    def below(self, folder: str) -> "Job[R]":
        """The same job with its record in a folder of its own."""
        return replace(self, file=f"{folder}/{self.file}")


@dataclass(frozen=True)
class Session:
    """The directory of records, the process that makes them, and the callback for the progress."""

    directory: Path | None = None  #: None: nothing is stored.
    process: Process = ALONE
    progress: Progress = silent

    @classmethod
    @contextmanager
    def open(
        cls, directory: Path | str | None, process: Process = ALONE, progress: bool | Progress = False
    ) -> "Iterator[Session]":
        """Lock the directory for this evaluation and all its processes."""
        if directory is not None and not isinstance(directory, str | Path):
            raise GradDivError(f"the directory is {directory!r}, expected a path")
        folder = None if directory is None else Path(directory)
        locked = nullcontext() if folder is None or not process.writes else store.locked(folder)
        with locked, listening(progress) as listener:
            process.wait()
            yield cls(folder, process, listener)

    def left(self, job: Job[R]) -> int:
        """Count the batches of a job that are not on disk; no file is read."""
        files = _Files(job, self.directory)
        if files.path is None:
            return len(files.numbers)
        return 0 if files.path.exists() else sum(not files.part(batch).exists() for batch in files.numbers)

    def passes(self, jobs: Sequence[Job[Any]]) -> float:
        """Forward passes of all examples that are left for jobs, about."""
        return sum((self.left(job) / len(job.slices) * job.work for job in jobs), 0.0)

    def run(self, jobs: Sequence[Job[R]]) -> list[R]:
        """Run all jobs and return their records; processes share the directory and take missing batches in turn."""
        names = [job.file for job in jobs]
        if self.directory is not None and (twice := next((n for n in names if names.count(n) > 1), None)):
            raise GradDivError(f"two evaluations would both be written to {Path(twice).name}: leave one of them out")
        process, files = self.process, [_Files(job, self.directory) for job in jobs]
        # One process makes the list for all, so that it is the same even if files appear meanwhile.
        todo = process.broadcast([(i, batch) for i, each in enumerate(files) for batch in each.missing()])
        mine = [item for turn, item in enumerate(todo) if self.directory is None or turn % process.size == process.rank]
        done, total = 0.0, float(sum(jobs[i].work for i, _ in mine))
        for i, batch in mine:

            def advance(share: float, before: float = done, job: Job[R] = jobs[i]) -> None:
                self.progress(before + share * job.work, total, job.label)

            files[i].keep(batch, jobs[i].compute(jobs[i].slices[batch], advance))
            done += jobs[i].work
            self.progress(done, total, jobs[i].label)
            if process.size == 1 and len(files[i].parts) == len(files[i].numbers):
                files[i].merge()
        if process.size > 1 and self.directory is not None:
            _wait_for([(files[i], batch) for i, batch in todo])
        process.wait()
        if process.writes:
            for each in files:
                each.merge()
        process.wait()
        return [each.result() for each in files]


IN_MEMORY = Session()  #: Stores nothing and shows no progress.


def reporting(items: Iterable[T], count: int, advance: Advance, start: float = 0.0, end: float = 1.0) -> Iterator[T]:
    """Yield `count` items, and report after each how far between `start` and `end` the batch is."""
    for number, item in enumerate(items, 1):
        yield item
        advance(start + (end - start) * number / count)


class _Files(Generic[R]):
    """The files of a job; it keeps what this process wrote or read, so that nothing is read again."""

    def __init__(self, job: Job[R], directory: Path | None) -> None:
        self.job, self.numbers = job, range(len(job.slices))
        self.path = None if directory is None else directory / job.file
        self.parts: dict[int, Arrays] = {}
        self.record: R | None = None

    def part(self, batch: int) -> Path:
        """The file of a batch: the record itself where there is one batch only."""
        assert self.path is not None
        return self.path if len(self.numbers) == 1 else self.path.with_suffix(".parts") / f"{batch:05d}"

    def missing(self) -> list[int]:
        """Read what is on disk and return the other batches; files that another evaluation wrote are an error."""
        if self.path is not None and self.path.exists():
            self.record = self.job.record.made(self.job.description, self._read(self.path), str(self.path))
            return []
        if self.path is not None:
            self.parts = {batch: self._read(self.part(batch)) for batch in self.numbers if self.part(batch).exists()}
        return [batch for batch in self.numbers if batch not in self.parts]

    def keep(self, batch: int, found: Arrays) -> None:
        self.parts[batch] = found
        if len(self.numbers) == 1:
            self.merge()
        else:
            self._write(self.path and self.part(batch), found)

    def merge(self) -> None:
        """Make the record of the batches and delete their files; an existing record stays."""
        if self.record is None and (self.path is None or not self.path.exists()):
            parts = [self.parts[i] if i in self.parts else self._read(self.part(i)) for i in self.numbers]
            arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            self.record = self.job.record.made(self.job.description, arrays, str(self.path or self.job.label))
            self._write(self.path, arrays)
        if self.path is not None:
            shutil.rmtree(self.path.with_suffix(".parts"), ignore_errors=True)
        self.parts = {}

    def result(self) -> R:
        """The record, which another process may have written."""
        if self.record is None and self.path is None:
            self.merge()
        return self.record or self.job.record.load(self.path or Path())

    def _write(self, path: Path | None, arrays: Arrays) -> None:
        if path is not None:
            store.make_directory(path.parent)
            store.write_arrays(path, arrays, self.job.description)

    def _read(self, path: Path) -> Arrays:
        """Read the arrays of a file; refuse one that another job wrote."""
        arrays, description = store.read_arrays(path)
        store.check_same(self.path, description, self.job.description)
        return arrays


def _wait_for(todo: Sequence[tuple[_Files[R], int]]) -> None:
    """Wait for the files of all processes: a barrier would time out while a batch of a long attack takes hours."""
    missing, since = todo, time.monotonic()
    while left := [(files, batch) for files, batch in missing if not files.part(batch).exists()]:
        if len(left) < len(missing):
            missing, since = left, time.monotonic()
        if time.monotonic() - since > PATIENCE:
            files, batch = missing[0]
            lacking = f"batch {batch} of {files.path} and {len(missing) - 1} others are missing"
            late = f"for {PATIENCE / 3600:.3g} hours none has come"
            raise GradDivError(f"{lacking} and {late}: expected a directory that all processes share")
        time.sleep(0.1)
