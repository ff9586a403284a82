"""What the reader of a page can choose among: the tables of attacks, and which runs stand side by side."""

from pathlib import Path
from typing import NamedTuple

from graddiv.records import AttackRecord
from graddiv.report.comparison import Comparison, ReportRun


class Grid(NamedTuple):
    """What every attack left at one epsilon and, for EOT, one n."""

    epsilon: float
    n: int
    """0 where no EOT was run."""
    comparison: Comparison

    def labels(self, *runs: ReportRun) -> list[str]:
        """Attacks that were run on all these runs: Totals over different attacks do not compare."""
        found = dict.fromkeys(r.label for run in self.comparison.runs for r in run.attacks if not r.is_clean)
        return [label for label in found if all(self.of(run, label) for run in runs)]

    def of(self, run: ReportRun, label: str) -> list[AttackRecord]:
        """The records of one row, a record for each repeat."""
        return [record for record in self.records(run.path) if record.label == label]

    def records(self, path: Path) -> tuple[AttackRecord, ...]:
        """Those of a run, clean images among them."""
        return next((run.attacks for run in self.comparison.runs if run.path == path), ())


def grid_of(comparison: Comparison) -> Grid:
    """The grid that a table of attacks shows."""
    attacked = [r for run in comparison.runs for r in run.attacks if not r.is_clean]
    return Grid(attacked[0].epsilon, max((r.n for r in attacked if r.mode == "eot"), default=0), comparison)


def find_pairs(comparison: Comparison) -> list[tuple[ReportRun, ReportRun]]:
    """Each run with GradDiv beside the run of the same method, data and seed without it."""

    def base(run: ReportRun) -> ReportRun | None:
        wanted = (run.method.partition("+")[0], run.data, run.experiment.seed)
        return next((r for r in comparison.runs if (r.method, r.data, r.experiment.seed) == wanted), None)

    found = [(base(run), run) for run in comparison.runs if "+graddiv" in run.method]
    return [(plain, run) for plain, run in found if plain is not None]
