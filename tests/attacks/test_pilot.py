"""The pilot: what it predicts about the noise of gradients is what is measured, and plans follow from it."""

import pytest
import torch
from torch import nn

from graddiv import Dirac, GradDivError, bayesian
from graddiv.attacks import EOT, StochasticPGD
from graddiv.attacks.pilot import (
    Plan,
    antithetic_correlation,
    check_antithetic,
    choose,
    gradient_noise,
    measured_cosine,
)
from graddiv.networks import GaussianNetwork
from graddiv.seeding import generator
from tests.helpers import images, labels, network

SIGMA = 0.4


def linear_network(even: bool = False) -> GaussianNetwork:
    """Logits linear in the weights, or even in them, so that opposite noise gives the same gradient."""

    class Even(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.weight.square())

    head = (Even if even else nn.Linear)(30, 2, bias=False).double()
    with torch.no_grad():
        head.weight.copy_(torch.randn(2, 30, generator=generator(0), dtype=torch.float64) * (0 if even else 0.3))
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


def test_opposite_noise_cancels_what_is_odd_and_is_refused_where_nothing_is() -> None:
    x, y = inputs()
    odd = EOT(linear_network(), 40, antithetic=True)
    assert torch.allclose(antithetic_correlation(odd, 0, x, y), torch.tensor(-1.0).double())
    assert check_antithetic(odd, x, y) == pytest.approx(-1)
    even = EOT(linear_network(even=True), 40, antithetic=True)
    assert torch.allclose(antithetic_correlation(even, 0, x, y), torch.tensor(1.0).double())
    with pytest.raises(GradDivError, match=r"r = \+1\.000, expected below 0"):
        check_antithetic(even, x, y)
    with pytest.raises(GradDivError, match="draws no antithetic pairs"):
        antithetic_correlation(EOT(linear_network(), 4), 0, x, y)


def test_antithetic_means_are_unbiased_and_less_noisy() -> None:
    F, x, y = network("bayesian"), images(3), labels(3)
    paired, plain = EOT(F, 10, antithetic=True), EOT(F, 10, seed=9)
    truth = torch.stack([plain.gradient(k, x, y, "soft_margin").direction for k in range(20)])
    means = torch.stack([paired.gradient(k, x, y, "soft_margin").direction for k in range(20)])
    error = (truth.var(0) / 20).flatten(1).sum(1).sqrt()
    assert ((means.mean(0) - truth.mean(0)).flatten(1).norm(dim=1) < 4 * error).all()
    assert means.var(0).sum() < 0.9 * truth.var(0).sum()


def test_antithetic_pairs_need_an_even_number_and_a_mirror_image() -> None:
    for F, n in ((network("bayesian"), 3), (network("foreign"), 4), (network("mixup"), 4)):
        with pytest.raises(GradDivError, match="expected an even n, and noise with a mirror image"):
            EOT(F, n, antithetic=True)
    assert len(list(EOT(Dirac(nn.Linear(2, 2)), 4, antithetic=True)(0))) == 1


def test_plans_buy_draws_where_gradients_are_noisy_and_never_all_the_steps() -> None:
    assert choose(q=10.0, passes=400) == Plan(1, 400)
    assert choose(q=1.0, passes=400) == Plan(3, 133)
    assert choose(q=0.05, passes=400) == Plan(8, 50, starved=False)
    assert choose(q=0.001, passes=400) == Plan(8, 50, starved=True)
    assert choose(q=0.001, passes=4000) == Plan(80, 50, starved=True)
    assert choose(q=0.0, passes=1) == Plan(1, 1, starved=True)
    assert choose(q=0.001, passes=400).spent_on(StochasticPGD()) == StochasticPGD(m=50, memory="aggmo")


def test_one_gradient_has_no_noise_to_measure() -> None:
    x, y = inputs()
    with pytest.raises(GradDivError, match="there are 1 gradients at an iteration, expected at least 2"):
        gradient_noise(EOT(linear_network(), 1), 0, x, y)


def test_few_gradients_do_not_make_the_mean_look_longer() -> None:
    F, (x, y) = linear_network(), inputs()
    mu = F.module.get_parameter("0.weight").detach()
    squares = torch.stack([gradient_noise(EOT(F, 3), k, x, y).mean_length.square() for k in range(40)])
    assert squares.mean().item() == pytest.approx((mu[1] - mu[0]).square().sum().item(), rel=0.15)
