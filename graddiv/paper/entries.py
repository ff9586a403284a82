"""Every table and figure of the paper: the runs it compares, what is measured of them, and what draws it.

Data only: planning.py turns it into a plan, stages.py carries that out.  The paper's own values are in published/.

In the paper: docs/equations.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from graddiv.errors import unknown
from graddiv.experiment import Experiment
from graddiv.paper.shipped import shipped
from graddiv.recipes import LAMBDAS, SCALES, recipe

PAIR = ("adv-bnn", "adv-bnn+graddiv")
VARIANTS = ("adv-bnn", "adv-bnn+graddiv-kappa", "adv-bnn+graddiv-mean", "adv-bnn+graddiv-dpp")
ALL_VARIANTS = (*VARIANTS, "adv-bnn+graddiv-max", "adv-bnn+graddiv-smoothmax")
CURVES = ("no-defense", "adv-train", "rse", *PAIR)
TABLE1 = ("no-defense", "adv-train", "rse", "pni", "mi", *PAIR)

RATIOS = {
    "mnist": (1.0, 0.36 / 0.3, 2 / 3, 0.38 / 0.3, 0.34 / 0.3, 1 / 3, 0.32 / 0.3, 0.4 / 0.3),
    "cifar10": tuple(epsilon / (8 / 255) for epsilon in (0.03, 0.01, 0.02, 0.04, 0.05, 0.06, 0.07)),
    "stl10": tuple(epsilon / 0.03 for epsilon in (0.03, 0.01, 0.02, 0.04, 0.05, 0.06, 0.07)),
}
"""The radii of the supplementary tables as multiples of the radius of training; smaller scales take the first ones."""

FAR = {"mnist": 0.4 / 0.3}
"""Loss increase and transfer are measured at this multiple of the radius of training; elsewhere at the radius."""

SENSITIVITY = {"mnist": 0.38 / 0.3}
"""The same of the sensitivity to n."""


@dataclass(frozen=True)
class Effort:
    """How much is measured at a scale."""

    examples: int | None
    """Of the test set; None: all of them."""
    repeats: int
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
    curve_repeats: int = 1
    """Repeats, with independent draws, of the points of curves."""
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
    """Changes of the recipes, as --set has them."""
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
        """The runs it compares, in its order; `seeds` take the place of its own."""
        if self.shipped:
            return [shipped(method).experiment for method in self.methods]
        lambdas = [[f"graddiv.lam={value}"] for value in self.lambdas] or [[]]
        trainings = [[f"seed={seed}"] for seed in seeds or self.seeds] or [[]]
        start = shipped(self.starts_from).path if self.starts_from is not None else None
        return [
            recipe(f"{data or self.data}/{method}", scale, [*self.settings, *overrides, *lam, *training], start)
            for method in self.methods
            for lam in lambdas
            for training in trainings
        ]


DATA = {"mnist": "MNIST", "stl10": "STL-10", "cifar10": "CIFAR-10"}


def _entries() -> Iterator[Entry]:
    """The paper from its first figure to its last, the supplement included."""

    def one(name: str, title: str, data: str, methods: tuple[str, ...], renderer: str, *needs: str) -> Entry:
        return Entry(name, title, data, methods, (Render(renderer, needs),))

    yield one("sphere", "Gradients on the sphere (the first figure's idea, with real ones)", "mnist", PAIR, "sphere",
              "gradients")  # fmt: skip
    yield one("rotation", "PGD along rotated gradients", "mnist", ("adv-train",), "rotation", "rotation")
    for data, name in DATA.items():
        yield one(
            f"training-{data}", f"Concentration during training, {name}", data, VARIANTS, "training-concentration"
        )
    yield one("training-more", "Concentration during training: max and smoothmax, MNIST", "mnist", ALL_VARIANTS,
              "training-concentration-more")  # fmt: skip
    yield one("scatter", "Gradient samples on the plane of two means, MNIST", "mnist", PAIR, "scatter", "gradients")
    yield one("loss-increase", "Density of the loss increase under EOT-PGD, MNIST", "mnist", PAIR, "loss-increase",
              "increase")  # fmt: skip
    yield one("table1", "Table 1: sixteen attacks on seven defenses, CIFAR-10, epsilon 8/255", "cifar10", TABLE1,
              "attack-table", "suite")  # fmt: skip
    for data, name in DATA.items():
        yield one(f"kappa-{data}", f"Density of the concentration parameter, {name}", data, PAIR, "kappa",
                  "concentration")  # fmt: skip
    for data in ("mnist", "stl10"):
        yield one(f"accuracy-{data}", f"Accuracy against epsilon under EOT-PGD, {DATA[data]}", data, CURVES,
                  "accuracy-epsilon", "curve")  # fmt: skip
    yield one("transfer", "Transferability among sample models, MNIST", "mnist", ("adv-bnn", "adv-bnn+graddiv-dpp"),
              "transfer", "transfer")  # fmt: skip
    yield one("checklist", "The five behaviours of obfuscated gradients, CIFAR-10", "cifar10", PAIR, "checklist",
              "checklist")  # fmt: skip
    yield one("cosines", "Cosines among 100 gradients, MNIST", "mnist", PAIR, "cosines", "gradients")
    yield one("regularizers", "The regularizers compared, MNIST", "mnist", ALL_VARIANTS, "regularizers", "curve")
    for data, name in DATA.items():
        yield one(f"table-{data}", f"Supplement: accuracy against epsilon, {name}", data, CURVES, "accuracy-table",
                  "curves")  # fmt: skip
    yield one("table-rse", "Supplement: GradDiv on RSE, CIFAR-10", "cifar10", ("rse", "rse+graddiv"), "accuracy-table",
              "curves", "curve-n1")  # fmt: skip
    yield one("n-sensitivity", "Accuracy against the number of gradients n, MNIST", "mnist", PAIR, "n-sensitivity",
              "sweep-n")  # fmt: skip
    yield one("m-sensitivity", "Accuracy against the iterations m, CIFAR-10", "cifar10", ("adv-bnn+graddiv",),
              "m-sensitivity", "sweep-m")  # fmt: skip
    yield replace(
        one("lambda-sensitivity", "Accuracy against lambda, CIFAR-10", "cifar10", ("adv-bnn+graddiv",),
            "lambda-sensitivity", "pgd"),
        lambdas=LAMBDAS,
    )  # fmt: skip
    yield one("boundary", "Decision regions of sample models, CIFAR-10", "cifar10", PAIR, "boundary", "boundary")


ENTRIES = {entry.name: entry for entry in _entries()}

DEMO = (
    Entry(
        "demo",
        "Adv-BNN without and with GradDiv, two networks of the study, attacked beyond the radius of their training",
        "mnist",
        PAIR,
        (
            Render("accuracy-epsilon", ("curve",)),
            Render("attack-table", ("suite",)),
            Render("training-concentration"),
            Render("scatter", ("gradients",)),
            Render("kappa", ("concentration",)),
            Render("loss-increase", ("increase",)),
            Render("transfer", ("transfer",)),
        ),
        scales=("demo",),
        judged_on="mnist-mini",
        shipped=True,
    ),
    Entry(
        "demo-training",
        "GradDiv added to the trained Adv-BNN, live, for a minute",
        "mnist-mini",
        ("adv-bnn+graddiv",),
        (Render("training-concentration"),),
        scales=("demo",),
        settings=("adversary.epsilon=0.3",),
        starts_from="adv-bnn",
    ),
)

QUICK_NEEDS = {"curve", "gradients", "concentration"}
QUICK_DEMO = (replace(DEMO[0], renders=tuple(r for r in DEMO[0].renders if QUICK_NEEDS.issuperset(r.needs))),)
"""The demo in a minute: the curves and the gradients, without the table of attacks and without training."""


TRIO = ("adv-bnn", "adv-bnn+control", "adv-bnn+graddiv")
"""Adv-BNN, the same trained longer, and the same trained longer with GradDiv."""

STUDY = (
    Entry(
        "study-seeds",
        "Is the gain beyond the radius of training more than the luck of one training?",
        "mnist",
        TRIO,
        (
            Render("accuracy-epsilon", ("curve", "strong")),
            Render("accuracy-table", ("curve", "strong")),
            Render("gradient-noise", ("gradient-noise",)),
            Render("kappa", ("concentration",)),
            Render("rho-attacked", ("gradient-noise",)),
            Render("rho-nearby", ("nearby",)),
        ),
        seeds=(0, 1, 2, 3, 4),
        scales=("quick",),
    ),
    Entry(
        "study-claims",
        "What the paper says of transfer, loss increase and the number of gradients, looked at on one training of each",
        "mnist",
        PAIR,
        (
            Render("scatter", ("gradients",)),
            Render("cosines", ("gradients",)),
            Render("loss-increase", ("increase",)),
            Render("transfer", ("transfer",)),
            Render("n-sensitivity", ("sweep-n",)),
        ),
        scales=("quick",),
    ),
    Entry(
        "study-close",
        "One training of each, looked at from all sides",
        "mnist",
        TRIO,
        (
            Render("attack-table", ("suite", "suite-beyond")),
            Render("accuracy-table", ("curves",)),
            Render("training-concentration"),
            Render("m-sensitivity", ("sweep-m",)),
            Render("rotation", ("rotation",)),
            Render("checklist", ("checklist",)),
        ),
        scales=("quick",),
    ),
    Entry(
        "study-methods",
        "The other defenses and regularizers",
        "mnist",
        (
            *("no-defense", "adv-train", "rse", "rse+graddiv", "pni", "mi"),
            *("adv-bnn", "adv-bnn+graddiv", "adv-bnn+graddiv-mean", "adv-bnn+graddiv-dpp"),
        ),
        (Render("accuracy-epsilon", ("curve",)),),
        scales=("quick",),
    ),
    Entry(
        "study-adversarial",
        "R at the adversarial x",
        "mnist",
        ("adv-bnn+graddiv",),
        (Render("accuracy-epsilon", ("curve",)),),
        settings=("graddiv.at=adversarial",),
        scales=("quick",),
    ),
    Entry(
        "study-lambda",
        "The weight of GradDiv",
        "mnist",
        ("adv-bnn+graddiv",),
        (Render("lambda-sensitivity", ("curve",)),),
        lambdas=(0.1, 0.3, 1.0, 3.0),
        scales=("quick",),
    ),
    Entry(
        "study-width",
        "Half the width",
        "mnist",
        PAIR,
        (Render("accuracy-epsilon", ("curve",)),),
        settings=("network.width=0.125",),
        scales=("quick",),
    ),
)
"""The paper's MNIST findings re-tested at scale quick; docs/findings.md says what came out."""


ZOO = Entry(
    "zoo",
    "The defenses of the literature, under adversaries that know more and more of their randomness",
    "mnist",
    (
        *TABLE1,
        *("ensemble", "ensemble+graddiv", "gal", "adp", "dverge", "mc-dropout", "sap", "xie", "crops"),
        *("smoothing", "pixeldp", "wca", "pni-image", "pni-activations", "bit-depth", "jpeg", "tv-min"),
    ),
    (Render("zoo-table", ("suite", "knowing", "concentration", "transfer", "certificate")),),
    scales=("quick", "demo"),
)
"""docs/zoo.md describes them; the table is this entry's."""


def targets() -> dict[str, tuple[Entry, ...]]:
    """What can be reproduced: the demo, every table and figure alone, and all of a data set."""
    of_data = {data: tuple(e for e in ENTRIES.values() if e.data == data) for data in ("mnist", "cifar10", "stl10")}
    return {
        "demo": DEMO,
        "mnist-study": STUDY,
        **{e.name: (e,) for e in STUDY},
        ZOO.name: (ZOO,),
        **of_data,
        **{name: (entry,) for name, entry in ENTRIES.items()},
    }


def entries_of(target: str) -> tuple[Entry, ...]:
    """The entries of a target."""
    known = targets()
    if target not in known:
        raise unknown("target", target, known)
    return known[target]
