"""From entries to a plan: which runs are needed, what is measured of each, and which records each item is made of."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from graddiv.errors import GradDivError, unknown
from graddiv.evaluation.budget import BUDGETS, Budget
from graddiv.experiment import Experiment
from graddiv.experiment.cost import training_work
from graddiv.paper.entries import STUDY, Entry, Need, Render, entries_of
from graddiv.paper.needs import ComparedRun, check_norm
from graddiv.recipes import SCALES, has_section, title_of
from graddiv.report.plan import ATTACK_TABLE, Plan, PlannedItem, PlannedRun
from graddiv.runs import Run

Compared = Mapping[str, ComparedRun]  #: the runs that an entry compares, by the names of their directories


@dataclass(frozen=True)
class Request:
    """What a user asks to be reproduced."""

    entries: Sequence[Entry]
    scale: str  #: one of the scales of the recipes
    data: str | None = None  #: another data set than the paper's
    overrides: Sequence[str] = ()  #: changes of the recipes, as --set has them
    seeds: Sequence[int] = ()  #: trainings of every run; those of the entries if not given
    published_rules: bool = False  #: whether the suite's attacks return what the libraries of the paper's time did
    quick: bool = False  #: whether as little as possible is measured: a minute of the demo
    norm: str = "linf"  #: of attacks; a radius in l_2 is that of a ball about as easy

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise unknown("scale", self.scale, SCALES)
        for entry in self.entries:
            for need in entry.needs:
                check_norm(need, self.norm)
            if self.scale not in entry.scales:
                scales = " or ".join(entry.scales)
                raise GradDivError(f"{entry.name} is reproduced at scale {scales}, but --scale is {self.scale}")
        trained = [entry for entry in self.entries if not entry.shipped]
        for override in self.overrides:
            recipes = [e for entry in trained for e, _ in entry.experiments(self.scale, self.data)]
            if not trained:
                raise GradDivError(f"--set {override!r}: the networks come trained, so there is no recipe to change")
            if not any(has_section(experiment, override) for experiment in recipes):
                section = override.partition("=")[0].strip().rpartition(".")[0]
                settings = [setting for e in recipes for setting in e.dump().items()]
                known = {name for name, value in settings if isinstance(value, dict | list) and value}
                known |= {"graddiv" for e in recipes if e.regularization is not None}  # that of a later stage
                raise GradDivError(
                    f"--set {override!r}: the recipes of what is trained have no section {section}, "
                    f"expected one of {', '.join(sorted(known))}"
                )

    @property
    def budget(self) -> Budget:
        """How much is measured."""
        preset = BUDGETS["scale"]["minute" if self.quick else self.scale]
        return replace(preset, published_rules=self.published_rules, norm=self.norm)

    @cached_property
    def compared(self) -> list[tuple[Entry, Compared]]:
        """Each entry with the runs that it compares.

        A network that comes with the package has a directory for each entry that copies it: every demo judges it on
        other examples, and a copy in half precision must not stand in for a training.
        """
        found, budget = dict[str, ComparedRun](), self.budget
        of_entries = list[tuple[Entry, Compared]]()
        for entry in self.entries:
            runs = {}
            for experiment, title in entry.experiments(self.scale, self.data, self.overrides, self.seeds):
                name = f"{entry.name}-{experiment.run_name}" if entry.shipped else experiment.run_name
                run = ComparedRun(experiment, title, budget, entry.judged_on, entry.shipped)
                runs[name] = found.setdefault(name, run)
            of_entries.append((entry, runs))
        return of_entries

    def needs(self) -> dict[str, tuple[ComparedRun, list[Need]]]:
        """Every run that the entries need, by name, with what is measured of it."""
        found: dict[str, tuple[ComparedRun, list[Need]]] = {}
        for entry, compared in self.compared:
            for name, run in compared.items():
                _, needs = found.setdefault(name, (run, []))
                needs += [need for need in entry.needs if need not in needs and run.has(need)]
        return found

    def report(self, runs: Path) -> Plan:
        """The plan of the report: the records of every table and figure, by file name, of runs below a directory."""
        return _plan(self.compared, runs, self.scale)


def gathered(target: str, runs: Path) -> tuple[Plan, set[str]]:
    """The plan of what can be drawn of the runs below a directory, and the runs whose networks are worth keeping.

    It names the records that were made so far.  Runs are recognized by title: whether a second stage was trained in
    one go or from a stored network is no matter.
    """
    entries = STUDY if target == "mnist-study" else entries_of(target)
    found = [Run(path) for path in sorted(runs.glob("*")) if Run(path).experiment_file.exists()]
    scales = sorted({run.experiment.scale for run in found} & set(entries[0].scales))
    if len(scales) != 1:
        here = ", ".join(scales) or "none"
        raise GradDivError(f"{runs} has runs of the scales {here} for {target}, expected those of one scale")
    (scale,), by_title = scales, dict[str, dict[str, ComparedRun]]()
    named = [run for run in found if run.path.name == run.experiment.run_name and run.experiment.scale == scale]
    for run in sorted(named, key=lambda run: run.experiment.seed):
        title = title_of(run.experiment)
        by_title.setdefault(title, {})[run.path.name] = ComparedRun(run.experiment, title, BUDGETS["scale"][scale])
    compared = []
    for entry in entries:
        titles = dict.fromkeys([*(title for _, title in entry.experiments(scale, seeds=[0])), *entry.found])
        wanted = {name: run for title in titles for name, run in by_title.get(title, {}).items()}
        seeds = entry.seeds
        compared.append((entry, {n: r for n, r in wanted.items() if not seeds or r.experiment.seed in seeds}))
    plan = _plan(compared, runs, scale, made=lambda name, run, needs: _made(Run(runs / name), run, needs))
    plan = plan.model_copy(update={"title": STUDY_TITLE}) if entries == STUDY else plan
    kept = {title for entry in entries for title in entry.networks}
    return plan, {name for name, run in plan.runs.items() if run.title in kept}


STUDY_TITLE = "The paper's MNIST findings, re-tested"
WHOLE = ("sweep-n", "sweep-m", "budgets", "curves")
"""Needs of which single records say nothing, as other curves share them: all of a radius count, or none."""


def _made(run: Run, compared: ComparedRun, needs: Sequence[Need]) -> tuple[str, ...] | None:
    """The records of these needs that the run has; None if it has but those of clean images."""
    found: list[str] = []
    for need in needs:
        names = compared.files(need)
        there = [name for name in names if (run.records / name).exists()]
        if need.name in WHOLE:
            radii = dict(zip(names, [cell.epsilon for cell in compared.cells(need.name)], strict=True))
            unfinished = {radii[name] for name in names if name not in there}
            there = [name for name in there if radii[name] not in unfinished]
        found += there
    attacked = any(not Path(name).name.startswith("clean-") for name in found)
    return tuple(dict.fromkeys(found)) if attacked or not needs else None


Made = Callable[[str, ComparedRun, Sequence[Need]], tuple[str, ...] | None]


def _plan(
    entries: Sequence[tuple[Entry, Compared]],
    runs: Path,
    scale: str,
    made: Made = lambda name, run, needs: run.files(*needs),
) -> Plan:
    """The plan of these entries; `made` says which records of a run there are, None if it has nothing to show."""
    planned: dict[str, PlannedRun] = {}
    items: list[PlannedItem] = []
    for entry, compared in entries:
        for render in entry.renders:
            files = {name: made(name, run, render.needs) for name, run in compared.items()}
            records = {name: names for name, names in files.items() if names is not None}
            planned |= {name: PlannedRun(path=str(runs / name), title=compared[name].title) for name in records}
            if records:
                name, about = _labels(entry, render, len(entries) > 1)
                items.append(PlannedItem(name=name, renderer=render.draw, records=records, about=about))
    return Plan(
        title=entries[0][0].title if len(entries) == 1 else f"{len(entries)} tables and figures",
        scale=scale,
        runs=planned,
        items=tuple(items),
        headline=next((item.name for item in items if item.renderer == ATTACK_TABLE), None),
    )


def _labels(entry: Entry, render: Render, several: bool) -> tuple[str, str]:
    """The name of the files of an item, and what it looks into, where there are several entries."""
    about = next(text for text in (render.about, entry.about, entry.title) if text is not None)
    name = render.name or render.draw
    if entry.prefix is not None:
        name = f"{entry.prefix}{name}"
    elif len(entry.renders) == 1:
        name = entry.name
    elif several:  # others may have a figure of this kind, too
        name = f"{entry.name}-{name}"
    return name, about if several and render.draw != ATTACK_TABLE else ""


def seconds_to_train(entries: Sequence[Entry], scale: str, speed: Callable[[Experiment], float]) -> float | None:
    """Seconds to train each run once, at a speed in work per second; None if an entry has no such scale.

    Runs that come with the package take none.
    """
    if not all(scale in entry.scales for entry in entries):
        return None
    trained = [entry for entry in entries if not entry.shipped]
    runs = {e.run_name: e for entry in trained for e, _ in entry.experiments(scale)}
    seconds, before = 0.0, set[str]()
    for experiment in runs.values():
        seconds += training_work(experiment, epochs_taken_over(experiment, before)) / speed(experiment)
        before.add(experiment.digest)
    return seconds


def epochs_taken_over(experiment: Experiment, before: Collection[str]) -> int:
    """How many epochs a training copies from one of just its first stages, if the digest of that is among these."""
    return next((first.epochs for first in experiment.first_stages if first.digest in before), 0)
