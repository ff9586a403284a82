"""Networks in which one kind of adversary alone finds the flaw, at equal passes: each shows what that kind is for.

All members are linear: z_0 - z_1 = h - <w, x - x0> for the true class 0, so who can be fooled is known.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from graddiv import bayesian
from graddiv.attacks import ARC, EOT, PGD, Attack, Given, StochasticPGD, View
from graddiv.networks import GaussianNetwork, RandomizedNetwork, SampleModel
from graddiv.seeding import generator

D, EPSILON, PASSES = 20, 0.1, 48
X0, Y = torch.full((2, D), 0.5, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
HALF = torch.arange(D) < D // 2


def linear(w: Tensor, h: float) -> SampleModel:
    return lambda x: torch.stack([h - (x - X0[: len(x)]) @ w, torch.zeros(len(x), dtype=x.dtype)], 1)


def vector(first: float, second: float) -> Tensor:
    """The slopes on the first and on the second half of the pixels."""
    return torch.where(HALF, first, second).double()


def adversaries(n: int) -> dict[str, Attack]:
    """At PASSES passes of n members, or fewer."""
    m = PASSES // n
    return {
        "EOT-PGD": PGD(m=m),
        "EOT-PGD-margin": PGD(m=m, objective="margin"),
        "SPGD": StochasticPGD(m=m),
        **{f"SPGD-{name}": StochasticPGD(m=m, objective=name) for name in ("ce", "ensemble")},
        "SPGD-aggmo": StochasticPGD(m=m, memory="aggmo"),
        "ARC": ARC(m=2 * PASSES // (n**2 + 3 * n), rule="draw" if n == 2 else "softmax"),
    }


def share_correct(models: Sequence[SampleModel], x: Tensor) -> float:
    return torch.stack([(f(x).argmax(1) == 0).double() for f in models]).mean().item()


def ensemble_correct(models: Sequence[SampleModel], x: Tensor) -> float:
    return (torch.stack([f(x).softmax(1) for f in models]).mean(0).argmax(1) == 0).double().mean().item()


OPPOSED = [linear(vector(1, 0.1), 0.9), linear(vector(-1, 0.1), 0.9)]
FOOLED_EARLY = [linear(vector(100, -10), 1), linear(vector(0, 1), 0.5), linear(vector(0, 1), 0.5)]
SHARED_FLAW = [linear(vector(-3.5, 0), 0.8), *(linear(vector(1, 1), 0.8) for _ in range(3))]
SATURATED = [linear(100 * vector(1, -1), 50), *(linear(100 * vector(0, 1), 80) for _ in range(2))]
ROBUST = [linear(vector(1, 0.5), 3), linear(vector(-1, 0.5), 3), linear(vector(1, -1), 3)]

CASES: dict[str, tuple[list[SampleModel], Callable[[Sequence[SampleModel], Tensor], float], float, set[str]]] = {
    # the mean gradient of opposed members vanishes where they differ; whoever takes a side fools one of the two
    "opposed": (OPPOSED, share_correct, 0.5, {"ARC"}),
    # a member that is fooled with a huge loss goes on pulling; these let go of it
    "fooled early": (FOOLED_EARLY, ensemble_correct, 0.0, {"SPGD-ensemble", "ARC"}),
    # three members share a flaw and a fourth hides it from the mean
    "shared flaw": (SHARED_FLAW, ensemble_correct, 0.0, {"ARC"}),
    # logits a hundred times too large: losses that saturate look at the least sure member alone
    "saturated": (SATURATED, ensemble_correct, 0.0, {"EOT-PGD-margin", "SPGD", "SPGD-aggmo", "ARC"}),
    # every member is out of reach
    "robust": (ROBUST, ensemble_correct, 0.0, set()),
}


@pytest.mark.parametrize("case", CASES)
def test_exactly_the_adversaries_named_find_the_flaw(case: str) -> None:
    members, judge, fooled, winners = CASES[case]
    assert judge(members, X0) == 1
    left = {}
    for name, attack in adversaries(len(members)).items():
        view = Given(members)
        left[name] = judge(members, attack(view, X0, Y, EPSILON))
        assert view.cost.forwards + view.cost.backwards <= 2 * PASSES + len(members)
    assert {name for name, value in left.items() if value <= fooled} == winners, left


def gain(F: RandomizedNetwork, view: View, attack: Attack, x0: Tensor) -> float:
    """How much the attack raises the mean network's margin, as a share of what is possible."""
    mean = F.mean()
    assert mean is not None
    f = F.bind(mean)
    y = torch.zeros(len(x0), dtype=torch.int64)
    x = attack(view, x0, y, EPSILON)
    rise = (f(x) - f(x0)) @ torch.tensor([-1.0, 1.0], dtype=torch.float64)
    mu = F.module.get_parameter("0.weight").detach()
    return (rise / (EPSILON * (mu[1] - mu[0]).abs().sum())).mean().item()


def noisy_head(sigma: float) -> GaussianNetwork:
    head = torch.nn.Sequential(torch.nn.Linear(200, 2, bias=False)).double()
    with torch.no_grad():
        head[0].weight.copy_(0.1 * torch.randn(2, 200, generator=generator(0), dtype=torch.float64).sign())
    return bayesian(head, sigma)


@pytest.mark.slow
def test_under_strong_noise_momentum_and_small_steps_win_over_many_draws() -> None:
    F = noisy_head(2.0)
    x0 = torch.full((4, 200), 0.5, dtype=torch.float64)
    many_draws = gain(F, EOT(F, 20), PGD(m=20, objective="margin"), x0)
    momenta = gain(F, EOT(F, 1), StochasticPGD(m=400, alpha=0.1, memory="aggmo"), x0)
    neither = gain(F, EOT(F, 1), PGD(m=400, objective="margin"), x0)
    assert momenta > 1.3 * many_draws
    assert neither < many_draws
