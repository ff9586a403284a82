"""Every table and figure of the paper: the runs it compares, what is measured of them, and what draws it.

Data only: reproduce.py carries it out.  The paper's own values are in published/.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graddiv.errors import unknown
from graddiv.experiment import Experiment
from graddiv.recipes import LAMBDAS, recipe

PAIR = ("adv-bnn", "adv-bnn+graddiv")
VARIANTS = ("adv-bnn", "adv-bnn+graddiv-kappa", "adv-bnn+graddiv-mean", "adv-bnn+graddiv-dpp")
ALL_VARIANTS = (*VARIANTS, "adv-bnn+graddiv-max", "adv-bnn+graddiv-smoothmax")
CURVES = ("no-defense", "adv-train", "rse", *PAIR)
TABLE1 = ("no-defense", "adv-train", "rse", "pni", "mi", *PAIR)

MNIST = (0.3, 0.1, 0.2, 0.32, 0.34, 0.36, 0.38, 0.4)
SMALL = (0.03, 0.01, 0.02, 0.04, 0.05, 0.06, 0.07)
EPSILONS = {"mnist": MNIST, "mnist-mini": MNIST, "cifar10": SMALL, "stl10": SMALL}
"""The radii of the supplementary tables; smaller scales take the first of them."""


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
    suite_m: int | None = None
    """Iterations of the suite's attacks; the suite's own if not given."""
    batch: int = 100


EFFORTS = {
    "paper": Effort(None, 3, "paper", 10, (5, 10, 20), 20, 100, 50, 8),
    "quick": Effort(500, 2, "quick", 10, (5, 10), 20, 100, 20, 5, (1, 5, 10, 20, 50), (1, 5, 10, 20, 50, 100)),
    "demo": Effort(200, 1, "demo", 10, (10,), 20, 50, 8, 3, (1, 5, 10, 20), (1, 5, 10, 20, 50)),
}


@dataclass(frozen=True)
class Entry:
    """One table or figure."""

    name: str
    title: str
    data: str
    methods: tuple[str, ...]
    needs: tuple[str, ...]
    """Measurements of every run, by name: see reproduce.py."""
    renders: tuple[str, ...]
    """Tables and figures that report/ draws of them, by name."""
    lambdas: tuple[float, ...] = ()
    """Values of graddiv.lam for which each run is trained apart."""

    def experiments(self, scale: str, data: str | None, overrides: Sequence[str]) -> list[Experiment]:
        """The runs it compares, in its order."""
        lambdas = [[f"graddiv.lam={value}"] for value in self.lambdas] or [[]]
        return [
            recipe(f"{data or self.data}/{method}", scale, [*overrides, *lam])
            for method in self.methods
            for lam in lambdas
        ]


def _entries() -> Iterator[Entry]:
    """The paper from its first figure to its last, the supplement included."""
    yield Entry("sphere", "Gradients on the sphere (the first figure's idea, with real ones)", "mnist", PAIR,
                ("gradients",), ("sphere",))  # fmt: skip
    yield Entry("rotation", "PGD along rotated gradients", "mnist", ("adv-train",), ("rotation",), ("rotation",))
    for data, name in (("mnist", "MNIST"), ("stl10", "STL-10"), ("cifar10", "CIFAR-10")):
        yield Entry(f"training-{data}", f"Concentration during training, {name}", data, VARIANTS, (),
                    ("training-concentration",))  # fmt: skip
    yield Entry("training-more", "Concentration during training: max and smoothmax, MNIST", "mnist", ALL_VARIANTS, (),
                ("training-concentration-more",))  # fmt: skip
    yield Entry("scatter", "Gradient samples on the plane of two means, MNIST", "mnist", PAIR, ("gradients",),
                ("scatter",))  # fmt: skip
    yield Entry("loss-increase", "Density of the loss increase under EOT-PGD, MNIST", "mnist", PAIR, ("increase",),
                ("loss-increase",))  # fmt: skip
    yield Entry("table1", "Table 1: sixteen attacks on seven defenses, CIFAR-10, epsilon 8/255", "cifar10", TABLE1,
                ("suite",), ("attack-table",))  # fmt: skip
    for data, name in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"), ("stl10", "STL-10")):
        yield Entry(f"kappa-{data}", f"Density of the concentration parameter, {name}", data, PAIR,
                    ("concentration",), ("kappa",))  # fmt: skip
    for data, name in (("mnist", "MNIST"), ("stl10", "STL-10")):
        yield Entry(f"accuracy-{data}", f"Accuracy against epsilon under EOT-PGD, {name}", data, CURVES, ("curve",),
                    ("accuracy-epsilon",))  # fmt: skip
    yield Entry("transfer", "Transferability among sample models, MNIST", "mnist", PAIR, ("transfer",), ("transfer",))
    yield Entry("checklist", "The five behaviours of obfuscated gradients, CIFAR-10", "cifar10", PAIR, ("checklist",),
                ("checklist",))  # fmt: skip
    yield Entry("cosines", "Cosines among 100 gradients, MNIST", "mnist", PAIR, ("gradients",), ("cosines",))
    yield Entry(
        "regularizers", "The regularizers compared, MNIST", "mnist", ALL_VARIANTS, ("curve",), ("regularizers",)
    )
    for data, name in (("mnist", "MNIST"), ("stl10", "STL-10"), ("cifar10", "CIFAR-10")):
        yield Entry(f"table-{data}", f"Supplement: accuracy against epsilon, {name}", data, CURVES, ("curve",),
                    ("accuracy-table",))  # fmt: skip
    yield Entry("table-rse", "Supplement: GradDiv on RSE, CIFAR-10", "cifar10", ("rse", "rse+graddiv"), ("curve",),
                ("accuracy-table",))  # fmt: skip
    yield Entry("n-sensitivity", "Accuracy against the number of gradients n, MNIST", "mnist", PAIR, ("sweep-n",),
                ("n-sensitivity",))  # fmt: skip
    yield Entry("m-sensitivity", "Accuracy against the iterations m, CIFAR-10", "cifar10", ("adv-bnn+graddiv",),
                ("sweep-m",), ("m-sensitivity",))  # fmt: skip
    yield Entry("lambda-sensitivity", "Accuracy against lambda, CIFAR-10", "cifar10", ("adv-bnn+graddiv",), ("pgd",),
                ("lambda-sensitivity",), LAMBDAS)  # fmt: skip
    yield Entry(
        "boundary", "Decision regions of sample models, CIFAR-10", "cifar10", PAIR, ("boundary",), ("boundary",)
    )


ENTRIES = {entry.name: entry for entry in _entries()}

DEMO = Entry(
    "demo",
    "Adv-BNN without and with GradDiv on real digits, from end to end",
    "mnist-mini",
    PAIR,
    ("suite", "curve", "concentration", "gradients", "increase", "transfer", "checklist"),
    ("attack-table", "accuracy-table", "accuracy-epsilon", "training-concentration", "scatter", "kappa",
     "loss-increase",
     "cosines", "transfer", "sphere"),
)  # fmt: skip


def targets() -> dict[str, tuple[Entry, ...]]:
    """What can be reproduced: the demo, every table and figure alone, and all of a data set."""
    of_data = {data: tuple(e for e in ENTRIES.values() if e.data == data) for data in ("mnist", "cifar10", "stl10")}
    return {"demo": (DEMO,), **of_data, **{name: (entry,) for name, entry in ENTRIES.items()}}


def entries_of(target: str) -> tuple[Entry, ...]:
    """The entries of a target."""
    known = targets()
    if target not in known:
        raise unknown("target", target, known)
    return known[target]
