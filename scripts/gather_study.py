"""Draw the report of the study from its runs, and keep it with all that it is drawn from.

python scripts/gather_study.py RUNS results/mnist-study docs/findings.md docs/study.md

Runs that differ in nothing but the seed share a title, and so a line of a figure and a column of a table; records that
were not made are left out.  In the pages, tables are written anew between `<!-- NAME -->` and `<!-- end -->`.
"""

import re
import sys
from dataclasses import dataclass
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
STEPS = (f"{CONTROL}, trained against 10 steps", f"{GRADDIV}, trained against 10 steps")
VARIANTS = (f"{GRADDIV}-mean", f"{GRADDIV}-dpp", f"{GRADDIV}, R at the adversarial x", f"{GRADDIV} from scratch")
LAMBDAS = (CONTROL, f"{GRADDIV}, λ = 0.1", f"{GRADDIV}, λ = 0.3", GRADDIV, f"{GRADDIV}, λ = 3")
NARROW = tuple(f"{title}, width 1/8" for title in TRIO)
STEEPER = tuple(f"{title}, one filter made steeper" for title in (CONTROL, GRADDIV))
WHOLE_SCHEDULE = (
    f"{BASE}, 60 epochs, trained against 10 steps",
    f"{GRADDIV} from scratch, 60 epochs, trained against 10 steps",
)
OTHERS = ("No defense", "Adv. train", "RSE", "RSE + GradDiv", "PNI", "MI")


@dataclass(frozen=True)
class Item:
    """A table or figure of the study."""

    name: str
    """Of its files."""
    renderer: str
    titles: tuple[str, ...]
    """Of the runs it compares, in this order."""
    needs: tuple[str, ...]
    """What is measured of them: names of paper/planning.py."""
    seeds: tuple[int, ...] | None = None
    """Of the trainings it compares; all if not given."""
    about: str = ""
    """What it looks into."""
    copy: str = ""
    """Of which copies of runs, RUN-COPY, it is made: those that were judged on fewer digits."""


TABLES = ("accuracy-summary", "accuracy-table")
"""One number in a cell for people, and all there is to know of it."""


def curves_of(
    name: str, about: str, titles: tuple[str, ...], *, strong: bool = True, seeds: tuple[int, ...] | None = None
) -> tuple[Item, ...]:
    """Accuracy against epsilon, drawn and as tables; with the strong adversary, and that of training in the tables."""
    needs, also = (("curve", "strong"), ("of-training",)) if strong else (("curve",), ())
    return (
        Item(f"{name}accuracy-epsilon", "accuracy-epsilon", titles, needs, seeds, about),
        *(Item(f"{name}{table}", table, titles, (*needs, *also), seeds, about) for table in TABLES),
    )


ITEMS = (
    *curves_of("", "", TRIO),
    Item("gradient-noise", "gradient-noise", TRIO, ("gradient-noise",)),
    Item("kappa", "kappa", TRIO, ("concentration",)),
    Item("rho-attacked", "rho-attacked", TRIO, ("gradient-noise",)),
    Item("rho-nearby", "rho-nearby", TRIO, ("nearby",)),
    Item("scatter", "scatter", PAIR, ("gradients",)),
    Item("cosines", "cosines", PAIR, ("gradients",)),
    Item("loss-increase", "loss-increase", PAIR, ("increase",)),
    Item("transfer", "transfer", PAIR, ("transfer",)),
    Item("n-sensitivity", "n-sensitivity", PAIR, ("sweep-n",)),
    Item("m-sensitivity", "m-sensitivity", PAIR, ("sweep-m",), copy="close"),
    Item("passes-sensitivity", "passes-sensitivity", PAIR, ("budgets",), copy="passes"),
    Item("by-n-table", "accuracy-table", PAIR, ("curves",), about="Each n", copy="each-n"),
    Item("rotation", "rotation", PAIR, ("rotation",), copy="close"),
    Item("attack-table", ATTACK_TABLE, PAIR, ("suite",), copy="close"),
    Item("attack-table-beyond", ATTACK_TABLE, PAIR, ("suite-beyond",), copy="close"),
    Item("checklist", "checklist", PAIR, ("checklist",), copy="close"),
    *curves_of("draws-", "Second stages against five draws", (BASE, *DRAWS), seeds=(0, 1, 2)),
    *curves_of("steps-", "Second stages against ten steps", STEPS),
    *curves_of("longer-", "Longer second stages", LONGER),
    Item("longer-rho-nearby", "rho-nearby", (*LONGER, *DRAWS), ("nearby",)),
    *curves_of("methods-", "Other defenses", (*OTHERS, *PAIR), strong=False),
    *curves_of("variants-", "Other regularizers and places", (GRADDIV, *VARIANTS), strong=False),
    *curves_of("filter-", "One filter made steeper, seed 0", (BASE, GRADDIV, *STEEPER), seeds=(0,)),
    *curves_of("filter-again-", "One filter made steeper, seed 1", (BASE, GRADDIV, *STEEPER), seeds=(1,)),
    Item(
        "filter-rho-nearby", "rho-nearby", (BASE, GRADDIV, STEEPER[1]), ("nearby",), (0, 1), "One filter made steeper"
    ),
    *curves_of("width-", "An eighth of the paper's width", NARROW, strong=False),
    *curves_of("whole-", "The paper's whole schedule", WHOLE_SCHEDULE),
    Item("lambda-sensitivity", "lambda-sensitivity", LAMBDAS, ("curve",), seeds=(0,)),
)


STEEPENED = "steep-filter"
"""In the names of what scripts/steepen_filter.py wrote for the study."""


def title_of(experiment: Experiment) -> str:
    """The method, and in what the training departs from the study's own."""
    last, R = experiment.schedule[-1], experiment.regularization
    adversary = experiment.adversary_of(last)
    start = experiment.network.start
    second_stage = bool(experiment.stages) or start is not None
    from_scratch = R is not None and adversary is not None and not second_stage
    parts = [
        title(experiment.method) + (" from scratch" if from_scratch else ""),
        f"width 1/{1 / experiment.network.width:g}" if experiment.network.width != 0.25 else "",
        f"{last.epochs} epochs" if last.epochs != (3 if second_stage else 12) else "",
        f"trained against {adversary.n} draws" if adversary is not None and adversary.n > 1 else "",
        f"trained against {adversary.m} steps" if adversary is not None and adversary.m != 5 else "",
        f"λ = {R.lam:g}" if R is not None and R.lam != 1 else "",
        "R at the adversarial x" if R is not None and R.at == "adversarial" else "",
        "one filter made steeper" if start is not None and STEEPENED in start.path else "",
    ]
    return ", ".join(part for part in parts if part)


WHOLE = ("sweep-n", "sweep-m", "budgets", "curves")
"""Needs of which single records say nothing, as other curves share them: all of a radius count, or none."""


def made(run: Run, needs: tuple[str, ...]) -> tuple[str, ...]:
    """The records of these needs that the run has; none if it has but those of clean images."""
    plan, found = RunPlan(run.experiment, EFFORTS["quick"]), []
    for need in (need for need in needs if plan.has(need)):
        names = plan.files(need)
        there = [name for name in names if (run.records / name).exists()]
        if need in WHOLE:
            radius = {cell.file_name: cell.epsilon for cell in plan.cells(need)}
            unfinished = {radius[name] for name in names if name not in there}
            there = [name for name in there if radius[name] not in unfinished]
        found += there
    return tuple(dict.fromkeys(found)) if any(not name.startswith("clean-") for name in found) else ()


def gathered(runs: Path) -> Plan:
    """What can be drawn of the runs below a directory."""
    found = sorted((Run(path) for path in runs.iterdir()), key=lambda run: run.experiment.seed)
    titles = {run.path.name: title_of(run.experiment) for run in found}
    items = []
    for item in ITEMS:
        records = {
            run.path.name: names
            for shown in item.titles
            for run in found
            if titles[run.path.name] == shown and (item.seeds is None or run.experiment.seed in item.seeds)
            if run.path.name == "-".join(filter(None, (run.experiment.run_name, item.copy)))
            if (names := made(run, item.needs))
        }
        if records:
            items.append(PlannedItem(name=item.name, renderer=item.renderer, records=records, about=item.about))
    used = {name for item in items for name in item.records}
    return Plan(
        title="The paper's MNIST findings, re-tested",
        scale="quick",
        runs={name: PlannedRun(path=str(runs / name), title=titles[name]) for name in titles if name in used},
        items=tuple(items),
        headline=next((item.name for item in items if item.renderer == ATTACK_TABLE), None),
    )


def fill(page: Path, directory: Path) -> None:
    """Write the tables of the report into a page."""

    def table(found: re.Match[str]) -> str:
        lines = (directory / f"{found[1]}.md").read_text().splitlines()
        rows = [line for line in lines if line.startswith("|")]
        return "\n".join([f"<!-- {found[1]} -->", "", *rows, "", "<!-- end -->"])

    page.write_text(re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", table, page.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    source, directory, *pages = map(Path, sys.argv[1:])
    plan = gathered(source)
    of_titles = {name: run for name, run in plan.runs.items() if run.title in (*PAIR, DRAWS[1], STEEPER[1])}
    networks = {name for name, run in of_titles.items() if name == Run(Path(run.path)).experiment.run_name}  # no copies
    kept = archive(plan, directory, networks=networks)
    page, tables = render(kept, directory, PaperValues)
    for shown in pages:
        fill(shown, directory)
    print(f"{len(kept.runs)} runs, {len(kept.items)} tables and figures: {page}")
