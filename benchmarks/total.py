"""The Total alone beside the whole table of the paper's suite, in passes: on a shipped network at several radii.

All rows in three modes, with a tenth of the iterations, so that they cost what they do beside each other.  A pass is a
forward or a backward of one model over an image, of attacks and of the models that choose and judge: counts, which do
not depend on the machine.  Results are records below --out, so the command can be stopped and goes on where it was.

total_only/full: the passes of the Total of all rows by elimination over those of the table.
papers_total_only/full: likewise of the Total of the 16 rows that the paper's has; /its rows: over the table of those.
dearest_three/full: the passes of EOT-FAB, EOT-B&B and EOT-Square.
accuracy: the Totals, those of the table cross-fitted, as those by elimination are.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.harness import parser, report
from graddiv.data import load
from graddiv.evaluation import Target, attack_all, attack_until_fooled, cells, papers_cells, suite
from graddiv.evaluation.run import Session
from graddiv.paper.shipped import shipped
from graddiv.performance import channels_last, keep_memory
from graddiv.records import PAPER_ROWS, AttackRecord, TotalRecord, cross_fitted_total

RADII = (0.36, 0.38, 0.4)
"""Where most images survive, some, and few: the network was trained at 0.3."""
SHORTER = 10
EXAMPLES = 40
N = 5


def compare(epsilon: float, examples: int, directory: Path | None = None) -> dict[str, float]:
    """The share of passes of both Totals at one radius, and what they are beside those of the table."""
    x, y = load("mnist-mini", "test").batch(range(examples))
    target = Target.of(channels_last(shipped("adv-bnn").network()), x, y)
    short = [a if a.iterations == 1 else replace(a, m=a.iterations // SHORTER) for a in suite("paper")]  # type: ignore[call-arg]
    wanted = cells(short, epsilon, n=N)
    rows = attack_all(target, wanted, Session(directory))
    (every,) = attack_until_fooled(target, wanted, directory)
    (papers,) = attack_until_fooled(target, papers_cells(wanted, target), directory)
    attacks = [row for row in rows if not row.is_clean]
    judges = 2 * target.n_ensemble
    spent = {row.label: int((row.cost_forwards + row.cost_backwards + judges).sum()) for row in rows}
    table = sum(spent.values())

    def passes(alone: TotalRecord) -> int:
        return int(alone.passes.sum()) + judges * examples

    def total(of: list[AttackRecord]) -> float:
        return float(np.mean(cross_fitted_total(of)))

    return {
        "total_only/full": passes(every) / table,
        "accuracy, total only": float(np.mean(every.verdicts)),
        "accuracy, total of the table": total(attacks),
        "dearest_three/full": sum(sorted(spent.values())[-3:]) / table,
        "papers_total_only/full": passes(papers) / table,
        "papers_total_only/its rows": passes(papers) / sum(spent[row.label] for row in rows if row.label in PAPER_ROWS),
        "accuracy, paper's total only": float(np.mean(papers.verdicts)),
        "accuracy, paper's total of the table": total([row for row in attacks if row.label in PAPER_ROWS]),
    }


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--out", type=Path, default=Path("runs/total"), help="where the records go")
    chosen = options.parse_args()
    keep_memory()
    ratios: dict[str, float] = {}
    for epsilon in RADII[-1:] if chosen.quick else RADII:
        examples = 5 if chosen.quick else EXAMPLES
        found = compare(epsilon, examples, chosen.out / f"{examples}-{epsilon}")
        ratios |= {f"{key}, epsilon {epsilon}": value for key, value in found.items()}
    report(ratios, chosen.json)


if __name__ == "__main__":
    main()
