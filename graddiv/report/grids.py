"""What a page can choose from: the records at each epsilon and n, and which runs stand side by side."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from graddiv.records import Record
from graddiv.report.study import RunFiles, Study, at_epsilon


class Grid(NamedTuple):
    """What every attack left at one epsilon and, for EOT, one n."""

    epsilon: float
    n: int
    """0 where no EOT was run."""
    records: dict[Path, list[Record]]
    """Of each run, clean images among them."""

    def labels(self, *runs: RunFiles) -> list[str]:
        """Attacks that were run on all these runs: Totals over different attacks do not compare."""
        found = dict.fromkeys(r.label for of_run in self.records.values() for r in of_run if r.label != "clean")
        return [label for label in found if all(self.of(run, label) for run in runs)]

    def of(self, run: RunFiles, label: str) -> list[Record]:
        """The records of one row, a record for each repeat."""
        return [record for record in self.records[run.path] if record.label == label]


def all_grids(study: Study) -> list[Grid]:
    """One for each epsilon and n of which there are records on the examples of most."""
    found = []
    for epsilon in study.epsilons:
        ns = sorted({r.n for run in study.runs for r in run.attacks(epsilon=epsilon, mode="eot")})
        for n in ns or [None]:
            of_runs = at_epsilon(study, epsilon, n)
            attacked = [r for records in of_runs for r in records if r.label != "clean"]
            if any(r.mode == "eot" or n is None for r in attacked):
                paths = (run.path for run in study.runs)
                found.append(Grid(epsilon, n or 0, dict(zip(paths, of_runs, strict=True))))
    return found


def default_grid(study: Study, grids: Sequence[Grid]) -> Grid | None:
    """At the epsilon of training if it was attacked there, with the most attacks: settled before results are seen."""

    def rank(grid: Grid) -> tuple[bool, int, int, float]:
        return math.isclose(grid.epsilon, study.epsilon), sum(map(len, grid.records.values())), grid.n, -grid.epsilon

    return max(grids, key=rank, default=None)


def find_pairs(study: Study) -> list[tuple[RunFiles, RunFiles]]:
    """Each run with GradDiv beside the run of the same method without it."""
    bases = [(study.run(run.method.partition("+")[0]), run) for run in study.runs if "+graddiv" in run.method]
    return [(base, run) for base, run in bases if base is not None and base.data == run.data]
