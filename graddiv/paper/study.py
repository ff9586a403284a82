"""What goes beyond the paper: its MNIST findings over several trainings, and the literature's other defenses."""

from graddiv.paper.entries import PAIR, TABLE1
from graddiv.paper.entry import Entry, Render

TRIO = ("adv-bnn", "adv-bnn+control", "adv-bnn+graddiv")
"""Adv-BNN, the same trained longer, and the same trained longer with GradDiv."""

CURVES = (
    Render("accuracy-epsilon", ("curve", "strong")),
    Render("accuracy-summary", ("curve", "strong", "of-training")),
    Render("accuracy-table", ("curve", "strong", "of-training")),
)
"""EOT-PGD and the strong adversary against epsilon, in the tables with the adversary of training."""

STUDY = (
    Entry(
        "study-seeds",
        "Is the gain beyond the radius of training more than the luck of one training?",
        "mnist",
        TRIO,
        (
            *CURVES,
            Render("gradient-noise", ("gradient-noise",)),
            Render("kappa", ("concentration",)),
            Render("rho-attacked", ("gradient-noise",)),
            Render("rho-nearby", ("nearby",)),
        ),
        seeds=(0, 1, 2, 3, 4),
        scales=("quick",),
    ),
    Entry(
        "study-longer",
        "What a second stage of eight epochs makes of the same networks",
        "mnist",
        TRIO[1:],
        (
            *CURVES,
            Render("training-concentration"),
            Render("rho-nearby", ("nearby",)),
        ),
        seeds=(0, 3),
        settings=("stages.0.epochs=8", "stages.0.decays=[6]"),
        scales=("quick",),
    ),
    Entry(
        "study-draws",
        "What a second stage against an adversary of five sample models at each step makes of the same networks",
        "mnist",
        TRIO[1:],
        CURVES,
        seeds=(0, 1, 2),
        settings=("stages.0.adversary_n=5",),
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
            Render("passes-sensitivity", ("budgets",)),
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
        "study-scratch",
        "GradDiv from the first epoch on: the paper's schedule in a fifth of its epochs",
        "mnist",
        ("adv-bnn+graddiv",),
        (Render("accuracy-epsilon", ("curve",)),),
        settings=(
            "stages=none",
            *("graddiv.regularizer=kappa", "graddiv.lam=1", "graddiv.warmup=0.6", "graddiv.rampup=4"),
        ),
        scales=("quick",),
    ),
    Entry(
        "study-width",
        "An eighth of the paper's width, half that of the study",
        "mnist",
        PAIR,
        (Render("accuracy-epsilon", ("curve",)),),
        settings=("network.width=0.125",),
        scales=("quick",),
    ),
)
"""The paper's MNIST findings re-tested at scale quick; docs/findings.md says what came out."""


STUDY_WHOLE = Entry(
    "study-whole",
    "The paper's whole schedule from scratch at a quarter of its width (a night of training: no part of mnist-study)",
    "mnist",
    PAIR,
    (*CURVES, Render("training-concentration")),
    settings=(
        *("stages=none", "training.epochs=60", "training.batch=128", "training.decays=[30]"),
        *("adversary.m=10", "adversary.alpha=0.25"),
        *("graddiv.regularizer=kappa", "graddiv.lam=1", "graddiv.warmup=3", "graddiv.rampup=20"),
    ),
    scales=("quick",),
)
"""Apart from STUDY, whose trainings of minutes it would make wait for one of many hours."""


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
