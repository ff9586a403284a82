"""The cost of the paper's tables at its own scale: `python -m benchmarks.gpu_plan` writes it to docs/reproduction.md.

`python -m benchmarks.gpu_plan RATE` prints it for another rate: what a GPU sustains on these networks, in
multiplications per second; measure yours with `graddiv train` on the first epoch and scale the hours.
"""

import re
import sys
from pathlib import Path

from graddiv.data import SOURCES
from graddiv.experiment import forward_work
from graddiv.experiment.cost import training_work
from graddiv.paper.entries import Need, targets
from graddiv.paper.planning import ATTACKED, ComparedRun, Request

PAGE = Path(__file__).parent.parent / "docs" / "reproduction.md"
RATE = 3e12
JUDGED = 40
"""Forward passes that judge an image: two ensembles of twenty models."""
TABLES = ("table1", "table-mnist", "table-cifar10", "table-stl10", "table-rse", "lambda-sensitivity", "m-sensitivity",
          "n-sensitivity", "mnist", "cifar10", "stl10")  # fmt: skip


def attack_work(run: ComparedRun, needs: list[Need]) -> float:
    """Multiplications of all attacks that these needs are made of, on the whole test set."""
    cells = {cell.file_name: cell for need in needs if need.name in ATTACKED for cell in run.cells(need.name)}
    passes = 0.0
    for cell in cells.values():
        n = cell.n if cell.mode == "eot" and run.experiment.random else 1
        steps = cell.attack.passes_per_iteration * cell.attack.iterations * cell.attack.restarts if cell.attack else 0
        passes += steps * n + JUDGED
    return passes * SOURCES[run.experiment.data.name].sizes["test"] * forward_work(run.experiment)


def table(rate: float) -> str:
    lines = ["| target | runs | training, GPU hours | attacks, GPU hours |", "|---|---|---|---|"]
    for name in TABLES:
        runs = Request(targets()[name], "paper").needs()
        training = sum(training_work(run.experiment) for run, _ in runs.values())
        attacks = sum(attack_work(run, needs) for run, needs in runs.values())
        hours = [f"{work / rate / 3600:.1f}" for work in (training, attacks)]
        lines.append(f"| `{name}` | {len(runs)} | {' | '.join(hours)} |")
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with its table made anew."""
    made = f"<!-- gpu-plan -->\n\n{table(RATE)}\n\n<!-- end -->"
    return re.sub(r"<!-- gpu-plan -->\n.*?<!-- end -->", made, page, flags=re.DOTALL)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(table(float(sys.argv[1])))
    else:
        PAGE.write_text(written(PAGE.read_text()))
