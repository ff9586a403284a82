"""A plan is data: which records every table and figure of a report is made of.

It is made before anything is drawn, stored as plan.json beside the report, and a report is drawn from exactly the
records it names: other files in the same directories change nothing.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from graddiv import store
from graddiv.errors import GradDivError
from graddiv.records import Record
from graddiv.report.comparison import Comparison, NothingPublished, Published, load_run

PLAN = "plan.json"
FORMAT = 1


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlannedRun(_Part):
    """A run of the report."""

    path: str
    """Its directory, as seen from that of the plan."""
    title: str
    """Its name in tables and legends."""


class PlannedItem(_Part):
    """One table or figure."""

    name: str
    """Of its files."""
    renderer: str
    """What draws it: a name in `graddiv.report.renderers`."""
    records: dict[str, tuple[str, ...]]
    """Run -> the files below its records that it is made of; none where the training log is all it needs."""
    about: str = ""
    """What it looks into, where a report has several of its kind; stands before its title."""


class Plan(_Part):
    """A report before it is drawn."""

    format: int = FORMAT
    title: str
    scale: str
    """At which scale its runs were trained and measured."""
    runs: dict[str, PlannedRun]
    items: tuple[PlannedItem, ...]
    headline: str | None = None
    """The item, a table of attacks, by which the runs are compared in words at the top of the page."""

    def save(self, directory: Path) -> None:
        """Write it beside the report, with the paths of its runs as seen from there."""
        base = directory.resolve()
        runs = {
            name: run.model_copy(update={"path": os.path.relpath(Path(run.path).resolve(), base)})
            for name, run in self.runs.items()
        }
        store.write_json(directory / PLAN, self.model_copy(update={"runs": runs}).model_dump(mode="json"))

    @classmethod
    def load(cls, directory: Path) -> "Plan":
        """Read the plan of a report; paths of runs are then as seen from here."""
        path = directory / PLAN
        values: Any = store.read_json(path)
        found = values.get("format") if isinstance(values, dict) else None
        if found != FORMAT:
            raise GradDivError(f"{path} has format {found!r}, expected {FORMAT}")
        try:
            plan = cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            raise GradDivError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        runs = {name: run.model_copy(update={"path": str(directory / run.path)}) for name, run in plan.runs.items()}
        return plan.model_copy(update={"runs": runs})


class PlanReader:
    """Reads the records of a plan, each file once."""

    def __init__(self, plan: Plan, published: Published = NothingPublished) -> None:
        self.plan, self.published = plan, published
        self._read = cache(Record.load)

    def comparison(self, item: PlannedItem) -> Comparison:
        """The runs and records of one table or figure."""
        return self._compared(item.records)

    def everything(self) -> Comparison:
        """All runs with all records that the plan names."""
        named: dict[str, dict[str, None]] = {name: {} for name in self.plan.runs}
        for item in self.plan.items:
            for run, files in item.records.items():
                named[run].update(dict.fromkeys(files))
        return self._compared({run: tuple(files) for run, files in named.items()})

    def _compared(self, records: dict[str, tuple[str, ...]]) -> Comparison:
        unknown = [run for run in records if run not in self.plan.runs]
        if unknown:
            raise GradDivError(f"the plan names records of the run {unknown[0]!r}, which is none of its runs")
        runs = [
            load_run(Path(self.plan.runs[name].path), self.plan.runs[name].title, files, self._read)
            for name, files in records.items()
        ]
        return Comparison(tuple(runs), self.plan.scale, self.published)
