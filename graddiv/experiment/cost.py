"""How long training takes, about."""

from typing import TYPE_CHECKING

from graddiv.data import SOURCES
from graddiv.registries import ARCHITECTURES

if TYPE_CHECKING:
    from graddiv.experiment.schema import Experiment, NetworkSection

LOOKED_AT = 512
"""Images whose gradients are measured after each epoch and before the first, three each: see training/probe.py."""

BESIDES = 1.2
"""What training takes over the time of its passes: noise, batch norm's statistics, the optimizer.

Measured on one core at widths 1/8 and 1/4: 1.07 to 1.19 on MNIST's digits, 1.15 on CIFAR-10, 1.2 to 1.45 on STL-10.
"""


def forward_work(network: "NetworkSection") -> float:
    """Multiplications of a forward pass of one image."""
    return ARCHITECTURES[network.architecture].multiplications * network.width**2


def work_of_steps(experiment: "Experiment", done: int = 0) -> float:
    """Multiplications of the steps of training, about, once so many epochs are done.

    Per image two passes for each step of the inner PGD, what the defense says for the loss and six for each gradient of
    R, a pass being a forward one of this architecture.
    """
    passes = 0.0
    for stage in experiment.schedule:
        adversary = experiment.adversary_of(stage)
        attack = 2 * adversary.m * adversary.n if adversary is not None else 0
        halves = 2 if adversary is not None and 0 < adversary.clean_weight < 1 else 1
        regularizer = 6 * stage.graddiv.n if stage.graddiv is not None and stage.graddiv.lam > 0 else 0
        left, done = max(stage.epochs - done, 0), max(done - stage.epochs, 0)
        passes += left * (attack + experiment.defense.passes * halves + regularizer)
    return _examples(experiment) * passes * forward_work(experiment.network)


def training_work(experiment: "Experiment", done: int = 0) -> float:
    """Multiplications of the steps and of the gradients measured beside them, and as many as the rest is worth.

    Of those that are left once so many epochs are done.
    """
    looks = experiment.epochs - done + (done == 0)
    measured = 6.0 * min(LOOKED_AT, _examples(experiment)) * looks * forward_work(experiment.network)
    return BESIDES * (work_of_steps(experiment, done) + measured)


def _examples(experiment: "Experiment") -> int:
    return experiment.data.examples or SOURCES[experiment.data.name].training_examples


def duration(seconds: float) -> str:
    """A time, roughly."""
    minutes = seconds / 60
    if minutes < 1:
        return "<1 min"
    for limit, unit, name in ((90, 1, "min"), (48 * 60, 60, "h")):
        if minutes < limit:
            return f"{minutes / unit:.0f} {name}"
    return f"{minutes / (24 * 60):.0f} days"
