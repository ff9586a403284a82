"""Stochastic PGD: how its steps shrink, and what it remembers."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from graddiv import GradDivError, bayesian
from graddiv.attacks import EOT, PGD, StochasticPGD, View
from graddiv.attacks.spgd import Spending, choose, gradient_noise, measured_cosine
from graddiv.evaluation.robustness import strong_attacks
from graddiv.geometry import L2
from graddiv.networks import GaussianNetwork, SampleModel
from graddiv.seeding import generator
from tests.helpers import images, labels, network, no_type_checks


def test_its_first_step_is_pgds_and_the_steps_shrink() -> None:
    F, x, y = network("bayesian"), 0.3 + 0.4 * images(3), labels(3)
    plain = PGD(m=1, alpha=0.5, objective="margin")(EOT(F, 2), x, y, 0.1)
    assert torch.equal(StochasticPGD(m=1)(EOT(F, 2), x, y, 0.1), plain)
    steps = [L2().norm(StochasticPGD(L2(), m=m)(EOT(F, 2), x, y, 0.1) - x) for m in (1, 2)]
    assert (steps[0] / 0.1 - 0.5).abs().max() < 1e-6
    assert (steps[1] / 0.1 <= 0.75 + 1e-6).all(), "the second step is half as long"


def test_a_memory_goes_on_where_the_gradient_turns_back() -> None:
    """At the third step two of the three momenta, 0.9 and 0.99, still lead away."""
    x, y = torch.full((1, 4), 0.5, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)

    class Turning(View):
        def __call__(self, k: int) -> Iterator[SampleModel]:
            sign = -1.0 if k == 2 else 1.0
            yield lambda x: torch.stack([0 * x.sum(1), sign * x.sum(1)], 1)

    forgetful, aggmo = (StochasticPGD(m=3), StochasticPGD(m=3, memory="aggmo"))
    before = 0.05 + 0.0375
    assert torch.allclose(forgetful(Turning(), x, y, 0.1) - x, torch.tensor(before - 0.0125).double())
    assert torch.allclose(aggmo(Turning(), x, y, 0.1) - x, torch.tensor(before + 0.0125 / 3).double())


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(GradDivError, match="m is 0"):
        StochasticPGD(m=0)
    with pytest.raises(GradDivError, match=r"alpha is 0\.0"):
        StochasticPGD(alpha=0.0)
    with pytest.raises(GradDivError, match="unknown objective 'margn', did you mean 'margin'"):
        StochasticPGD(objective="margn")
    with no_type_checks(), pytest.raises(GradDivError, match="unknown memory 'agmo', did you mean 'aggmo'"):
        StochasticPGD(memory="agmo")  # type: ignore[arg-type]


SIGMA = 0.4


def linear_network() -> GaussianNetwork:
    """Logits linear in the weights."""
    head = nn.Linear(30, 2, bias=False).double()
    with torch.no_grad():
        head.weight.copy_(torch.randn(2, 30, generator=generator(0), dtype=torch.float64) * 0.3)
    return bayesian(nn.Sequential(head), SIGMA)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(4, 30, generator=generator(1), dtype=torch.float64), torch.zeros(4, dtype=torch.int64)


def test_mean_and_covariance_of_a_linear_network_are_known() -> None:
    F, (x, y) = linear_network(), inputs()
    found = gradient_noise(EOT(F, 200), 0, x, y)
    mu = F.module.get_parameter("0.weight").detach()
    assert torch.allclose(found.trace, torch.full((4,), 2 * 30 * SIGMA**2).double(), rtol=0.1)
    assert torch.allclose(found.mean_length, (mu[1] - mu[0]).norm().expand(4), rtol=0.1)


@pytest.mark.parametrize("n", [2, 8])
def test_the_predicted_cosine_is_the_measured_one(n: int) -> None:
    F, (x, y) = linear_network(), inputs()
    predicted = gradient_noise(EOT(F, 200), 0, x, y).cosine_of_two(n)
    view = EOT(F, n, seed=3)
    measured = torch.stack([measured_cosine(view, 2 * k, x, y) for k in range(30)]).mean()
    assert predicted.mean().item() == pytest.approx(measured.item(), abs=0.06)


def test_plans_buy_draws_where_gradients_are_noisy_and_never_all_the_steps() -> None:
    assert choose(q=10.0, passes=400) == Spending(1, 400)
    assert choose(q=1.0, passes=400) == Spending(3, 133)
    assert choose(q=0.05, passes=400) == Spending(8, 50, starved=False)
    assert choose(q=0.001, passes=400) == Spending(8, 50, starved=True)
    assert choose(q=0.001, passes=4000) == Spending(80, 50, starved=True)
    assert choose(q=0.0, passes=1) == Spending(1, 1, starved=True)
    assert strong_attacks(choose(q=0.001, passes=400))[0] == StochasticPGD(m=50, memory="aggmo")


def test_one_gradient_has_no_noise_to_measure() -> None:
    x, y = inputs()
    with pytest.raises(GradDivError, match="there are 1 gradients at an iteration, expected at least 2"):
        gradient_noise(EOT(linear_network(), 1), 0, x, y)


def test_few_gradients_do_not_make_the_mean_look_longer() -> None:
    F, (x, y) = linear_network(), inputs()
    mu = F.module.get_parameter("0.weight").detach()
    squares = torch.stack([gradient_noise(EOT(F, 3), k, x, y).mean_length.square() for k in range(40)])
    assert squares.mean().item() == pytest.approx((mu[1] - mu[0]).square().sum().item(), rel=0.15)
