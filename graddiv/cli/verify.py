"""Whether the files of a directory are as they were written: what `graddiv doctor RUN` looks at."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from graddiv import store
from graddiv.errors import GradDivError


class Finding(NamedTuple):
    """What was found of one file."""

    path: Path
    problem: str | None
    """None if it is as it was written."""
    has_checksum: bool
    """Whether that is certain; settings are text for people to read, and have none."""


def verify(directory: Path) -> Iterator[Finding]:
    """Read every file of graddiv's below a directory: runs, records, reports, and whatever holds several of them."""
    if not directory.is_dir():
        raise GradDivError(f"there is no directory {directory}: expected that of a run, of records or of a report")
    for path in sorted(directory.rglob("*")):
        read = _reader(path)
        if read is not None:
            try:
                read(path)
                problem = None
            except GradDivError as error:
                problem = str(error)
            yield Finding(path, problem, _carries_checksum(path) and path not in store.WITHOUT_CHECKSUM)


def _reader(path: Path) -> Callable[[Path], Any] | None:
    """What reads a file of this name; None for files that are not graddiv's, or that a process is writing."""
    from graddiv.records import Record
    from graddiv.report.plan import PLAN, Plan
    from graddiv.runs import CHECKLIST, Run

    run = Run(path.parent)
    if path.name.startswith("."):
        return None
    if path.parent.suffix == ".parts":
        return store.read_arrays
    if path.suffix == ".safetensors":
        return _read_checkpoint
    if path.suffix == ".record":
        return Record.load
    return {
        run.version_file.name: lambda path: Run(path.parent).check_format(),
        run.experiment_file.name: lambda path: Run(path.parent).experiment,
        run.data_file.name: store.read_json,
        run.recipe_file.name: store.read_toml,
        run.log_file.name: lambda path: Run(path.parent).log,
        PLAN: lambda path: Plan.load(path.parent),
        CHECKLIST: store.read_json,
    }.get(path.name)


def _read_checkpoint(path: Path) -> None:
    """Read a checkpoint; that of the end of training must fit the network and the log beside it."""
    from graddiv.runs import Run, TrainingPosition

    _, description = store.read_tensors(path)
    TrainingPosition.of(description, path)
    run = Run(path.parent.parent)
    needs_data = run.finished and run.experiment.defense.interpolated
    if run.finished and path == run.trained_checkpoint and not needs_data:
        run.network()


def _carries_checksum(path: Path) -> bool:
    return path.suffix in (".safetensors", ".record", ".jsonl") or path.parent.suffix == ".parts"
