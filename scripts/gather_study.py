"""Draw the report of the study from its runs, and keep it with all that it is drawn from.

python scripts/gather_study.py RUNS DIRECTORY

Runs that differ in nothing but the seed share a title, and so a line of a figure and a column of a table; records that
were not made are left out.
"""

import sys
from pathlib import Path

from graddiv.experiment import Experiment
from graddiv.paper.entry import EFFORTS
from graddiv.paper.planning import RunPlan
from graddiv.paper.published import PaperValues
from graddiv.recipes import title
from graddiv.report.archive import archive
from graddiv.report.plan import Plan, PlannedItem, PlannedRun
from graddiv.report.renderers import ATTACK_TABLE, render
from graddiv.runs import Run

BASE, CONTROL, GRADDIV = "Adv-BNN", "Adv-BNN, second stage without GradDiv", "Adv-BNN + GradDiv"
TRIO, PAIR = (BASE, CONTROL, GRADDIV), (BASE, GRADDIV)
LONGER = (f"{CONTROL}, 8 epochs", f"{GRADDIV}, 8 epochs")
DRAWS = (f"{CONTROL}, trained against 5 draws", f"{GRADDIV}, trained against 5 draws")
VARIANTS = (f"{GRADDIV}-mean", f"{GRADDIV}-dpp", f"{GRADDIV}, R at the adversarial x")
OTHERS = ("No defense", "RSE", "RSE + GradDiv")

CURVES = (("accuracy-epsilon", ("curve", "strong")), ("accuracy-table", ("curve", "strong", "of-training")))

ITEMS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    *((drawn, drawn, TRIO, needs) for drawn, needs in CURVES),
    ("gradient-noise", "gradient-noise", TRIO, ("gradient-noise",)),
    ("kappa", "kappa", TRIO, ("concentration",)),
    ("rho-attacked", "rho-attacked", TRIO, ("gradient-noise",)),
    ("rho-nearby", "rho-nearby", TRIO, ("nearby",)),
    ("scatter", "scatter", PAIR, ("gradients",)),
    ("cosines", "cosines", PAIR, ("gradients",)),
    ("loss-increase", "loss-increase", PAIR, ("increase",)),
    ("transfer", "transfer", PAIR, ("transfer",)),
    ("n-sensitivity", "n-sensitivity", PAIR, ("sweep-n",)),
    ("m-sensitivity", "m-sensitivity", PAIR, ("sweep-m",)),
    ("rotation", "rotation", PAIR, ("rotation",)),
    ("attack-table", ATTACK_TABLE, PAIR, ("suite",)),
    ("attack-table-beyond", ATTACK_TABLE, PAIR, ("suite-beyond",)),
    ("checklist", "checklist", PAIR, ("checklist",)),
    *((f"draws-{drawn}", drawn, (BASE, *DRAWS), needs) for drawn, needs in CURVES),
    *((f"longer-{drawn}", drawn, LONGER, needs) for drawn, needs in CURVES),
    ("longer-rho-nearby", "rho-nearby", (*LONGER, *DRAWS), ("nearby",)),
    *((f"methods-{drawn}", drawn, (*OTHERS, *PAIR), ("curve",)) for drawn, _ in CURVES),
    *((f"variants-{drawn}", drawn, (GRADDIV, *VARIANTS), ("curve",)) for drawn, _ in CURVES),
)
"""(name of the files, what draws it, titles of the runs, what is measured of them: names of paper/planning.py)."""


def title_of(experiment: Experiment) -> str:
    """The method, and in what the training departs from the study's own."""
    last, R = experiment.schedule[-1], experiment.regularization
    adversary = experiment.adversary_of(last)
    second_stage = bool(experiment.stages) or experiment.network.start is not None
    parts = [
        title(experiment.method),
        f"{last.epochs} epochs" if second_stage and last.epochs != 3 else "",
        f"trained against {adversary.n} draws" if adversary is not None and adversary.n > 1 else "",
        "R at the adversarial x" if R is not None and R.at == "adversarial" else "",
    ]
    return ", ".join(part for part in parts if part)


WHOLE = ("sweep-n", "sweep-m")
"""Needs of which single records say nothing; other curves share them."""


def made(run: Run, needs: tuple[str, ...]) -> tuple[str, ...]:
    """The records of these needs that the run has; none if it has but those of clean images."""
    plan, found = RunPlan(run.experiment, EFFORTS["quick"]), []
    for need in (need for need in needs if plan.has(need)):
        names = plan.files(need)
        there = [name for name in names if (run.records / name).exists()]
        found += there if need not in WHOLE or there == names else []
    return tuple(dict.fromkeys(found)) if any(not name.startswith("clean-") for name in found) else ()


def gathered(runs: Path) -> Plan:
    """What can be drawn of the runs below a directory."""
    found = sorted((Run(path) for path in runs.iterdir()), key=lambda run: run.experiment.seed)
    titles = {run.path.name: title_of(run.experiment) for run in found}
    items = []
    for name, renderer, wanted, needs in ITEMS:
        records = {
            run.path.name: names
            for shown in wanted
            for run in found
            if titles[run.path.name] == shown and (names := made(run, needs))
        }
        if records:
            items.append(PlannedItem(name=name, renderer=renderer, records=records))
    used = {name for item in items for name in item.records}
    return Plan(
        title="The paper's MNIST findings, re-tested",
        scale="quick",
        runs={name: PlannedRun(path=str(runs / name), title=titles[name]) for name in titles if name in used},
        items=tuple(items),
        headline=next((item.name for item in items if item.renderer == ATTACK_TABLE), None),
    )


if __name__ == "__main__":
    source, directory = map(Path, sys.argv[1:])
    plan = gathered(source)
    networks = {name for name, run in plan.runs.items() if run.title in (*PAIR, DRAWS[1])}
    kept = archive(plan, directory, networks=networks)
    page, tables = render(kept, directory, PaperValues)
    print(f"{len(kept.runs)} runs, {len(kept.items)} tables and figures: {page}")
