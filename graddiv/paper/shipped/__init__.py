"""Two networks of the study, trained on all of MNIST: what the demo attacks, and can be trained on from.

A minute's run with known outcomes tells whether this machine, and this device, compute what they should.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from graddiv.attacks.pgd import eot_pgd_accuracy
from graddiv.data import load
from graddiv.diversity import GradDiv
from graddiv.diversity.concentration import moments
from graddiv.errors import unknown
from graddiv.networks import RandomizedNetwork, running_statistics
from graddiv.networks.prediction import models_of
from graddiv.performance import channels_last
from graddiv.runs import Run

SHIPPED = Path(__file__).parent
DIGITS = 100
EPSILON = 0.3  #: the radius at which the shipped networks were trained
SEED = 0


def shipped(method: str) -> Run:
    """The shipped run of a method."""
    known = sorted(path.parent.name for path in SHIPPED.glob("*/experiment.json"))
    if method not in known:
        raise unknown("shipped network", method, known)
    return Run(SHIPPED / method)


class RangeCheck(NamedTuple):
    """One number with the range it must lie in."""

    name: str
    value: float
    low: float
    high: float


def selfcheck(device: torch.device) -> Iterator[RangeCheck]:
    """Known outcomes of the shipped networks on the embedded digits, one after the other.

    The ranges are around what two cores of a server found; they leave room for other processors, for which the last
    bits of a sum differ, and none for a wrong one.
    """
    data = load("mnist-mini", "test").take(slice(0, DIGITS))
    batches = list(data.batches(DIGITS, device))
    x, y, _ = batches[0]
    plain, diverse = (shipped(method).network() for method in ("adv-bnn", "adv-bnn+graddiv"))
    for F in (plain, diverse):
        channels_last(F.to(device))
    clean, robust = eot_pgd_accuracy(plain, batches, EPSILON, n=5, m=10, seed=SEED, judged_by=SEED)
    yield RangeCheck("clean accuracy of Adv-BNN (%)", 100 * clean, 96, 100)
    yield RangeCheck(f"its accuracy under EOT-PGD at {EPSILON} (%)", 100 * robust, 86, 98)
    yield RangeCheck("concentration of its gradients, rho", _rho(plain, x, y), 0.65, 0.76)
    yield RangeCheck("the same with GradDiv", _rho(diverse, x, y), 0.06, 0.17)
    GradDiv("kappa", lam=1.0)(plain, x[:32], y[:32], step=0).backward()  # a double backward through the whole network
    gradients = [p.grad for p in plain.parameters() if p.grad is not None]
    yield RangeCheck("gradient of GradDiv, its norm", float(torch.nn.utils.get_total_norm(gradients)), 3, 6)


def _rho(F: RandomizedNetwork, x: torch.Tensor, y: torch.Tensor) -> float:
    """sqrt(max(0, mean cosine)) over ten gradients of each digit."""
    with running_statistics(F):
        found = moments(models_of(F, 10, SEED), x, y)
    return float(found.mean_cosine()[found.usable].mean().clamp_min(0).sqrt())
