"""What an entry is, a table or figure with the runs behind it, and how much is measured at each scale."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from graddiv.experiment import Experiment
from graddiv.paper.shipped import shipped
from graddiv.recipes import SCALES, has_section, recipe


@dataclass(frozen=True)
class Effort:
    """How much is measured at a scale."""

    examples: int | None
    """Of the test set; None: all of them."""
    repeats: int
    """With independent draws, of what tables of attacks and of the supplement are made of; figures have one."""
    suite: str
    n: int
    """Sample models of EOT in the table of attacks."""
    curve_n: tuple[int, ...]
    """Sample models of EOT in the curves over epsilon."""
    m: int
    """Iterations of PGD in the curves."""
    gradients: int
    models: int
    """Of the transfer matrix."""
    radii: int
    """How many of the radii of the supplementary tables."""
    sweep_n: tuple[int, ...] = (1, 5, 10, 20, 50, 100)
    sweep_m: tuple[int, ...] = (1, 5, 10, 20, 50, 100, 200)
    grid: int = 41
    """Points along a side of the decision regions."""
    suite_m: int | None = None
    """Iterations of the suite's attacks; the suite's own if not given."""
    batch: int = 100
    published_rules: bool = False
    """Whether the suite's attacks return what the libraries of the paper's time did."""
    draws: int = 1000
    """Sample models whose votes make a certificate."""


EFFORTS = {
    "paper": Effort(None, 3, "paper", 10, (5, 10, 20), 20, 100, 50, 8),
    "quick": Effort(1000, 3, "quick", 10, (5, 10, 20), 20, 50, 20, 8, (1, 5, 10, 20, 50, 100), (1, 5, 10, 20, 50, 100)),
    "demo": Effort(200, 1, "demo", 10, (10,), 20, 50, 8, 8, (1, 5, 10, 20), (1, 5, 10, 20, 50), draws=200),
}


QUICK_EFFORT = replace(EFFORTS["demo"], examples=50, curve_n=(5,), m=10, gradients=20, radii=4)
"""Of the demo's minute."""


@dataclass(frozen=True)
class Render:
    """One table or figure of an entry: what draws it, and what it is made of."""

    renderer: str
    """A name in graddiv.report.renderers."""
    needs: tuple[str, ...] = ()
    """What is measured of every run, by name: see planning.py; nothing where the training log is enough."""


@dataclass(frozen=True)
class Entry:
    """One table or figure of the paper, or several that belong together."""

    name: str
    title: str
    data: str
    methods: tuple[str, ...]
    renders: tuple[Render, ...]
    lambdas: tuple[float, ...] = ()
    """Values of graddiv.lam for which each run is trained apart."""
    seeds: tuple[int, ...] = ()
    """Seeds for which each run is trained apart; that of the recipe if there are none."""
    settings: tuple[str, ...] = ()
    """Changes of the recipes that have such a section, as --set has them."""
    scales: tuple[str, ...] = SCALES
    """At which it can be reproduced."""
    judged_on: str | None = None
    """Another data set than that of training, on whose test examples the runs are judged."""
    shipped: bool = False
    """Whether its runs come with the package, trained."""
    starts_from: str | None = None
    """The shipped network that takes the place of the first stage of training."""

    @property
    def needs(self) -> tuple[str, ...]:
        """What is measured of every run."""
        return tuple(dict.fromkeys(need for render in self.renders for need in render.needs))

    def experiments(
        self, scale: str, data: str | None, overrides: Sequence[str], seeds: Sequence[int] = ()
    ) -> list[Experiment]:
        """The runs it compares, in its order; `seeds` take the place of its own.

        Its settings and the overrides change the recipes that have such a section: Adv-BNN has none of GradDiv's.
        """
        if self.shipped:
            return [shipped(method).experiment for method in self.methods]
        lambdas = [[f"graddiv.lam={value}"] for value in self.lambdas] or [[]]
        trainings = [[f"seed={seed}"] for seed in seeds or self.seeds] or [[]]
        start = shipped(self.starts_from).path if self.starts_from is not None else None
        found = []
        for method in self.methods:
            name = f"{data or self.data}/{method}"
            plain = recipe(name, scale, start=start)
            changes = [change for change in (*self.settings, *overrides) if has_section(plain, change)]
            found += [
                recipe(name, scale, [*changes, *lam, *training], start) for lam in lambdas for training in trainings
            ]
        return found
