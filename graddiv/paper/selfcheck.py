"""A minute's run with known outcomes: whether this machine, and this device, compute what they should."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from graddiv.attacks import EOT, PGD
from graddiv.data import load
from graddiv.directions import GradDiv
from graddiv.directions.moments import moments
from graddiv.evaluation.prediction import models_of, predict
from graddiv.networks import RandomizedNetwork, running_statistics
from graddiv.paper.shipped import shipped
from graddiv.performance import channels_last

DIGITS = 100
EPSILON = 0.3
"""The radius at which the shipped networks were trained."""
SEED = 0


class Check(NamedTuple):
    """One number with the range it must lie in."""

    name: str
    value: float
    low: float
    high: float

    @property
    def passed(self) -> bool:
        """Whether the number is where it should be."""
        return self.low <= self.value <= self.high


def selfcheck(device: torch.device) -> Iterator[Check]:
    """Known outcomes of the shipped networks on the embedded digits, one after the other.

    The ranges are around what two cores of a server found; they leave room for other processors, for which the last
    bits of a sum differ, and none for a wrong one.
    """
    data = load("mnist-mini", "test").take(slice(0, DIGITS))
    x, y = (t.to(device) for t in data.batch(slice(0, DIGITS)))
    x = channels_last(x)
    plain, diverse = (shipped(method).network() for method in ("adv-bnn", "adv-bnn+graddiv"))
    for F in (plain, diverse):
        channels_last(F.to(device))
    yield Check("clean accuracy of Adv-BNN (%)", _accuracy(plain, x, y), 96, 100)
    x_adv = PGD(m=10)(EOT(plain, 5, SEED), x, y, EPSILON)
    yield Check(f"its accuracy under EOT-PGD at {EPSILON} (%)", _accuracy(plain, x_adv, y), 86, 98)
    yield Check("concentration of its gradients, rho", _rho(plain, x, y), 0.62, 0.72)
    yield Check("the same with GradDiv", _rho(diverse, x, y), 0.28, 0.39)
    yield Check("gradient of GradDiv, its norm", _gradient_norm(plain, x[:32], y[:32]), 2, 4.5)


def _accuracy(F: RandomizedNetwork, x: torch.Tensor, y: torch.Tensor) -> float:
    return 100 * float((predict(F, x, seed=SEED).label == y).double().mean())


def _rho(F: RandomizedNetwork, x: torch.Tensor, y: torch.Tensor) -> float:
    """sqrt(max(0, mean cosine)) over ten gradients of each digit."""
    with running_statistics(F):
        found = moments(models_of(F, 10, SEED), x, y)
    return float(found.mean_cosine()[found.usable].mean().clamp_min(0).sqrt())


def _gradient_norm(F: RandomizedNetwork, x: torch.Tensor, y: torch.Tensor) -> float:
    """|d R_kappa / d theta|: a double backward through the whole network."""
    GradDiv("kappa", lam=1.0)(F, x, y, step=0).backward()
    gradients = [p.grad for p in F.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))
