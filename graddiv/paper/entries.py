"""Every table and figure that can be reproduced, as declared in entries.toml: its runs, its needs, what draws it.

Data only: planning.py turns it into a plan, tasks.py carries that out.  In the paper: docs/equations.md.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from graddiv import store
from graddiv.data import SOURCES
from graddiv.data.own import is_own
from graddiv.errors import unknown
from graddiv.experiment import Experiment
from graddiv.paper.shipped import shipped
from graddiv.recipes import SCALES, has_section, recipe, title, title_of
from graddiv.report.plan import Part

_recipe = cache(recipe)


class Need(NamedTuple):
    """A measurement that an entry needs: a name in ATTACKED or MEASUREMENTS, or the checklist."""

    name: str
    set: str = ""  #: the directory below the run's records that holds it
    examples: int | None = None  #: how many test examples; those of the scale if not given

    def __str__(self) -> str:
        return self.name + (f" ({self.set})" if self.set else "")


class Render(Part):
    """One table or figure of an entry."""

    draw: str  #: a name that graddiv.report.output.draws registers
    of: tuple[str, ...] = ()  #: names of needs; none where the training log is enough
    name: str | None = None  #: the name of its files; that of `draw` if not given
    about: str | None = None  #: its topic; that of the entry if not given
    set: str = ""  #: a separate set of records that it is drawn from, such as one of fewer examples
    examples: int | None = None  #: how many examples that set has

    @property
    def needs(self) -> tuple[Need, ...]:
        return tuple(Need(name, self.set, self.examples) for name in self.of)


class Entry(Part):
    """One table or figure of the paper, or several that belong together."""

    name: str
    title: str
    data: str = "mnist"
    methods: tuple[str, ...] = ()  #: "METHOD SETTING ...": what it compares, with changes of the recipe
    renders: tuple[Render, ...]
    seeds: tuple[int, ...] = ()  #: each run is trained once for each; the recipe's own if there are none
    settings: tuple[str, ...] = ()  #: changes of all recipes that have such a section, as --set has them
    scales: tuple[str, ...] = SCALES  #: at which it can be reproduced
    judged_on: str | None = None  #: the data set on whose test examples runs are judged, if not that of training
    shipped: bool = False  #: whether its runs come with the package, trained
    starts_from: str | None = None  #: the shipped network that replaces the first stage of training
    prefix: str | None = None  #: the prefix of its file names
    about: str | None = None  #: its topic, in reports of several entries; its title if not given
    apart: bool = False  #: whether targets of several entries leave it out
    networks: tuple[str, ...] = ()  #: titles of the runs whose trained networks its archive keeps

    @property
    def needs(self) -> tuple[Need, ...]:
        """The measurements of every run."""
        return tuple(dict.fromkeys(need for render in self.renders for need in render.needs))

    def experiments(
        self, scale: str, data: str | None = None, overrides: Sequence[str] = (), seeds: Sequence[int] = ()
    ) -> list[tuple[Experiment, str]]:
        """The runs it compares, in its order, with their titles; `seeds` replace its own.

        Its settings and the overrides change the recipes that have such a section: Adv-BNN has none of GradDiv's.
        """
        if self.shipped:
            return [(shipped(method).experiment, title(method)) for method in self.methods]
        start = shipped(self.starts_from).path if self.starts_from is not None else None
        trainings = [[f"seed={seed}"] for seed in seeds or self.seeds] or [[]]
        found = []
        registered = data is None or data in SOURCES or not is_own(data)
        mine = () if registered else (f"data.name={data}",)  # in the recipe of the paper's data
        for method, *own in map(str.split, self.methods):
            name = f"{data if registered and data else self.data}/{method}"
            plain = _recipe(name, scale, (), start)
            usual = _recipe(name, scale, (*mine, *(o for o in overrides if has_section(plain, o))), start)
            common = [*mine, *(change for change in (*self.settings, *overrides) if has_section(plain, change))]
            for training in trainings:
                experiment = _recipe(name, scale, (*own, *common, *training), start)
                found.append((experiment, title_of(experiment, usual)))
        return found


def _declared() -> dict[str, tuple[Entry, ...]]:
    """The entries of each section of entries.toml, with named lists of methods and renders filled in."""
    tables = store.parse_toml((files("graddiv.paper") / "entries.toml").read_text(encoding="utf-8"), "entries.toml")
    lists = {key: tables.pop(key) for key in ("methods", "renders")}

    def entry(values: Mapping[str, Any]) -> Entry:
        named = {key: lists[key][values[key]] for key in lists if isinstance(values.get(key), str)}
        return Entry.model_validate({**values, **named})

    return {section: tuple(map(entry, listed)) for section, listed in tables.items()}


_SECTIONS = _declared()
ENTRIES = {entry.name: entry for entry in _SECTIONS["paper"]}
DEMO, QUICK_DEMO = _SECTIONS["demo"], _SECTIONS["quick-demo"]
STUDY, (ZOO,) = _SECTIONS["study"], _SECTIONS["zoo"]


def targets() -> dict[str, tuple[Entry, ...]]:
    """The targets of `reproduce`: the demo, every table and figure alone, the study, and all of a data set."""
    alone = (*STUDY, ZOO)
    return {
        "demo": DEMO,
        "mnist-study": tuple(entry for entry in alone if not entry.apart and entry is not ZOO),
        **{entry.name: (entry,) for entry in alone},
        **{data: tuple(e for e in ENTRIES.values() if e.data == data) for data in ("mnist", "cifar10", "stl10")},
        **{name: (entry,) for name, entry in ENTRIES.items()},
    }


def entries_of(target: str) -> tuple[Entry, ...]:
    """The entries of a target."""
    known = targets()
    if target not in known:
        raise unknown("target", target, known)
    return known[target]
