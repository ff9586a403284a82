"""On a noisy trained network, judged by 20 models nobody has seen: no weaker than peers at the same number of passes.

Each bound lies where a weaker attack, which is run too, does not pass it.
"""

import pytest
import torch
from torch import Tensor, nn

from graddiv.attacks import APGD, EOT, PGD, Attack
from graddiv.networks import RandomizedNetwork
from graddiv.seeding import isolated
from tests.parity.digits import digits, noisy

pytestmark = pytest.mark.slow

SIGMA, N = 0.12, 5
"""A single model gets 62 % of the digits right, the ensemble 96 %."""


class Sampled(nn.Module):
    """A fresh sample model at each call, counted: what peers take for a random network."""

    def __init__(self, F: RandomizedNetwork, seed: int) -> None:
        super().__init__()
        self.F, self.view, self.calls = F, EOT(F, 1, seed=seed), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        logits: Tensor = next(self.view(self.calls))(x)
        return logits


def accuracy(F: RandomizedNetwork, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        p = torch.stack([f(x).softmax(1) for f in F.sample(20, seed=99)]).mean(0)
    return (p.argmax(1) == y).double().mean().item()


def ours(attack: Attack, F: RandomizedNetwork, epsilon: float, seeds: range, n: int = N) -> tuple[float, int]:
    """The mean robust accuracy over the seeds, and the passes of one run."""
    x, y = digits(200)
    views = [EOT(F, n, seed=seed) for seed in seeds]
    found = [accuracy(F, attack(view, x, y, epsilon), y) for view in views]
    return sum(found) / len(found), views[0].cost.forwards + views[0].cost.backwards


def test_eot_pgd_is_as_strong_as_torchattacks() -> None:
    torchattacks = pytest.importorskip("torchattacks")
    F, epsilon, seeds, (x, y) = noisy(SIGMA), 0.1, range(3), digits(200)
    theirs = 0.0
    for seed in seeds:
        peer = torchattacks.EOTPGD(
            Sampled(F, 100 + seed).eval(), epsilon, epsilon / 4, steps=10, eot_iter=N, random_start=False
        )
        theirs += accuracy(F, peer(x, y), y) / len(seeds)
    assert ours(PGD(m=10), F, epsilon, seeds)[0] <= theirs + 0.04
    assert ours(PGD(m=5), F, epsilon, range(1))[0] > theirs + 0.04
    assert ours(PGD(m=10), F, epsilon, range(1), n=1)[0] > theirs + 0.04


@pytest.mark.parametrize(("objective", "ahead"), [("ce", 0.06), ("dlr", 0.02)])
def test_eot_apgd_is_stronger_than_autoattacks(objective: str, ahead: float) -> None:
    autopgd = pytest.importorskip("pyautoattack.autopgd_base")
    F, epsilon, seeds, (x, y) = noisy(SIGMA), 0.06, range(2), digits(200)
    theirs = 0.0
    for seed in seeds:
        model = Sampled(F, 100 + seed)
        with isolated(0):
            x_adv = autopgd.APGDAttack(model, 12, "Linf", eps=epsilon, loss=objective, eot_iter=N).perturb(x, y)
        theirs += accuracy(F, x_adv, y) / len(seeds)
    strong, passes = ours(APGD(m=10, objective=objective), F, epsilon, seeds)
    assert passes <= 2 * model.calls - 1  # all but the first of their calls are differentiated
    assert strong <= theirs - ahead
    published = APGD(m=10, objective=objective, return_rule="reference")
    assert ours(published, F, epsilon, seeds)[0] > theirs - ahead
