"""Tables of the study: the filter that meets R, and whatever might show that an adversary is starved or misled."""

import numpy as np

from graddiv import records
from graddiv.records.mechanism import SPARE
from graddiv.report.comparison import Comparison, titles
from graddiv.report.output import NOT_APPLICABLE, Found, Table, caption, draws, percent

FILTERS = "method, ρ, accuracy, without filter, ρ without it, accuracy without it"


@draws("filters", "The filter that meets R, {data}", FILTERS, records.FiltersRecord)
def filters(comparison: Comparison, found: Found[records.FiltersRecord]) -> Table:
    """What is left of concentration and accuracy without the one spare filter that disperses gradients most."""
    rows = []
    names = titles([run for run, _ in found])
    for run, record in found:
        k, rho, accuracy = record.spare, record.rho, record.right.mean(0)
        shown = (f"{rho[0]:.2f}", percent(accuracy[0]), str(k), f"{rho[k + 1]:.2f}", percent(accuracy[k + 1]))
        rows.append((names[run], *shown))
    return Table(rows=tuple(rows), caption=caption("filters", comparison, found[0][1], 100 * SPARE))


PRESSED = "attack RUN --suite strong --epsilon 0.36"


@draws("pressed", "Whatever might show that an adversary is starved or misled, {data}", "attack", by=PRESSED)
def pressed(comparison: Comparison) -> Table | None:
    """Accuracy at one radius under each attack, also those made on other networks, and under the worst of all."""
    runs = [run for run in comparison.runs if any(not r.is_clean for r in run.attacks)]
    if not runs:
        return None
    labels = {run: {_described(r): r for r in run.attacks if not r.is_clean} for run in runs}
    every = list(dict.fromkeys(label for of_run in labels.values() for label in of_run))
    cells = {label: [of_run.get(label) for of_run in labels.values()] for label in every}
    rows = [(label, *(percent(r.accuracy) if r else NOT_APPLICABLE for r in of)) for label, of in cells.items()]
    totals = [np.mean(records.cross_fitted_total(of_run.values())) for of_run in labels.values()]
    rows.append(("worst of all", *(percent(float(share)) for share in totals)))
    examples, epsilons = ({getattr(r, name) for r in comparison.attacks} for name in ("examples", "epsilon"))
    words = caption("pressed", comparison, sorted(epsilons), sorted(examples))
    return Table(columns=("attack", *titles(runs).values()), rows=tuple(rows), caption=words)


def _described(record: records.AttackRecord) -> str:
    """The attack with what it spends."""
    spent = f"n {record.n}, m {record.m}" + (f", {record.restarts} starts" if record.restarts > 1 else "")
    return f"{record.label}, {spent}"
