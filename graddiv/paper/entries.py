"""Every table and figure of the paper: the runs it compares, what is measured of them, and what draws it.

Data only: planning.py turns it into a plan, stages.py carries that out.  The paper's own values are in published/.

In the paper: docs/equations.md.
"""

from collections.abc import Iterator
from dataclasses import replace

from graddiv.paper.entry import Entry, Render
from graddiv.recipes import LAMBDAS

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
                  "curves-repeated")  # fmt: skip
    yield one("table-rse", "Supplement: GradDiv on RSE, CIFAR-10", "cifar10", ("rse", "rse+graddiv"), "accuracy-table",
              "curves-repeated", "curve-n1-repeated")  # fmt: skip
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
QUICK_DEMO = (
    replace(DEMO[0], name="demo-quick", renders=tuple(r for r in DEMO[0].renders if QUICK_NEEDS.issuperset(r.needs))),
)
"""The demo in a minute: the curves and the gradients, without the table of attacks and without training."""
