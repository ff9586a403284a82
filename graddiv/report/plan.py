"""A plan is data: which records every table and figure of a report is made of.

It is stored as plan.json beside the report, which is drawn from exactly the records it names.  An archive is a plan
with its runs in one file, small enough for a repository: without images and optimizers.
"""

import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from graddiv import store
from graddiv.errors import GradDivError
from graddiv.records import Record
from graddiv.report.comparison import Comparison, load_run, validated
from graddiv.runs import CHECKLIST, Run

PLAN = "plan.json"
FORMAT = 1
ATTACK_TABLE = "attack-table"  #: what draws the tables by which a page compares runs
RUNS, PACKED = "runs", "runs.zip"
UNPACKED = ".unpacked"  #: in a directory of unpacked runs: the sha256 of the archive that they come from
NO_DATE = (1980, 1, 1, 0, 0, 0)  #: equal runs give equal bytes


class Part(BaseModel):
    """A model that is read from a file and admits no other fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PlannedRun(Part):
    """A run of the report."""

    path: str  #: its directory, as seen from that of the plan
    title: str  #: its name in tables and legends


class PlannedItem(Part):
    """One table or figure."""

    name: str  #: of its files
    renderer: str  #: what draws it: a name in RENDERERS
    records: dict[str, tuple[str, ...]]  #: run -> the files below its records; none where the training log is enough
    about: str = ""  #: its topic, before its title, if a report has several of its kind


class Plan(Part):
    """A report before it is drawn."""

    format: int = FORMAT
    title: str
    scale: str  #: at which its runs were trained and measured
    runs: dict[str, PlannedRun]
    items: tuple[PlannedItem, ...]
    headline: str | None = None  #: the item, a table of attacks, by which the page compares the runs in words
    papers: bool = True  #: whether the paper's values stand beside ours

    def save(self, directory: Path) -> None:
        """Write it beside the report, with the paths of its runs as seen from there."""
        base = directory.resolve()
        plan = self._with_paths(lambda name, run: os.path.relpath(Path(run.path).resolve(), base))
        store.write_json(directory / PLAN, plan.model_dump(mode="json"))

    @classmethod
    def load(cls, directory: Path) -> "Plan":
        """Read the plan of a report, and unpack its runs; their paths are then as seen from here."""
        path = directory / PLAN
        found = store.read_json(path).get("format")
        if found != FORMAT:
            raise GradDivError(f"{path} has format {found!r}, expected {FORMAT}")
        plan = validated(cls, path)
        _unpack(directory)
        return plan._with_paths(lambda name, run: directory / run.path)

    def _with_paths(self, path: Callable[[str, PlannedRun], str | Path]) -> "Plan":
        runs = {name: run.model_copy(update={"path": str(path(name, run))}) for name, run in self.runs.items()}
        return self.model_copy(update={"runs": runs})


class PlanReader:
    """Reads the records of a plan, each file once."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self._read = plan, cache(Record.load)

    def comparison(self, *items: PlannedItem) -> Comparison:
        """The runs and records of one table or figure, or of several."""
        named: dict[str, dict[str, None]] = {}
        for item in items:
            for run, files in item.records.items():
                named.setdefault(run, {}).update(dict.fromkeys(files))
        if unknown := [run for run in named if run not in self.plan.runs]:
            raise GradDivError(f"the plan names records of the run {unknown[0]!r}, which is none of its runs")
        runs = [(self.plan.runs[name], list(files)) for name, files in named.items()]
        found = [load_run(Path(run.path), run.title, files, self._read) for run, files in runs]
        return Comparison(tuple(found), self.plan.scale, self.plan.papers)

    def everything(self) -> Comparison:
        """All runs with all records that the plan names."""
        runs = PlannedItem(name="", renderer="", records=dict.fromkeys(self.plan.runs, ()))
        return self.comparison(runs, *self.plan.items)


def archive(plan: Plan, directory: Path, *, networks: bool | Collection[str] = True) -> Plan:
    """Copy the runs of a plan below a directory, and pack them; returns the plan of the copies.

    networks: whether the trained networks are kept, or the runs whose are.
    """
    written = list[Path]()
    for key, run in plan.runs.items():
        names = {name for item in plan.items for name in item.records.get(key, ())}
        network = networks if isinstance(networks, bool) else key in networks
        written += copy_run(Run(Path(run.path)), Run(directory / RUNS / key), sorted(names), network=network)
    _pack(directory, written)
    return plan._with_paths(lambda name, run: directory / RUNS / name)


def copy_run(source: Run, target: Run, records: Iterable[str] = (), *, network: bool = True) -> list[Path]:
    """Copy a finished run without its optimizer, with these records but no images; return the files."""
    written = [_copy_record(source.records / name, target.records / name) for name in records]
    if network and source.last_checkpoint.exists():
        written += _copy_network(source, target)
    # last of all, the log at the end: it says that the run is finished, so a copy that was killed must not have it
    store.make_directory(target.path)
    for path in (p for p in source.description_files if p.exists()):
        store.write(target.path / path.name, store.read(path))
        written.append(target.path / path.name)
    return written


def _copy_record(source: Path, target: Path) -> Path:
    store.make_directory(target.parent)
    if source.name == CHECKLIST:
        store.write(target, store.read(source))
    else:
        arrays, description = store.read_arrays(source)
        if description.get("kind", "attack") == "attack" and "images" in arrays:
            arrays = {**arrays, "images": arrays["images"][:0]}
        store.write_arrays(target, arrays, description)
    return target


def _copy_network(source: Run, target: Run) -> list[Path]:
    """The parameters and buffers of the trained network, without the optimizer's."""
    store.make_directory(target.checkpoints)
    paths = {source.last_checkpoint, source.trained_checkpoint}
    for path in paths:
        arrays, description = store.read_arrays(path)
        network = {name: array for name, array in arrays.items() if name.startswith("network.")}
        store.write_arrays(target.checkpoints / path.name, network, description)
    return [target.checkpoints / path.name for path in paths]


def _pack(directory: Path, paths: Iterable[Path]) -> None:
    """Pack these files below DIRECTORY/runs into DIRECTORY/runs.zip."""
    runs, buffer = directory / RUNS, io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(paths):
            about = zipfile.ZipInfo(path.relative_to(runs).as_posix(), NO_DATE)
            archive.writestr(about, store.read(path), zipfile.ZIP_LZMA)
    store.write(directory / PACKED, buffer.getvalue())
    store.write(runs / UNPACKED, store.digest(buffer.getvalue()).encode())


def _unpack(directory: Path) -> None:
    """Unpack DIRECTORY/runs.zip into DIRECTORY/runs, unless that has been done; other files there stay."""
    runs, packed = directory / RUNS, directory / PACKED
    if not packed.exists():
        return
    content, mark = store.read(packed), runs / UNPACKED
    if mark.exists() and store.read(mark) == store.digest(content).encode():
        return
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                path = runs / name
                if not path.resolve().is_relative_to(runs.resolve()):
                    raise GradDivError(f"{packed} holds {name!r}, which is no file of a run")
                store.make_directory(path.parent)
                temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # another process may read meanwhile
                temporary.write_bytes(archive.read(name))
                temporary.replace(path)
    except (zipfile.BadZipFile, lzma.LZMAError, zlib.error, NotImplementedError, EOFError) as error:
        raise GradDivError(f"cannot read {packed} as an archive of runs: {error}; restore it from a copy") from None
    store.write(mark, store.digest(content).encode())
