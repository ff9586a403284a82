import math

import pytest
import torch
from torch import nn

from graddiv import GradDivError, mc_dropout, sap
from graddiv.diversity import input_gradient
from graddiv.networks.dropping import DropoutSite, PruningSite
from graddiv.networks.randomized import Noiseless
from tests.helpers import SHAPE, convnet, images, labels


def test_every_layer_but_the_first_loses_channels_or_units() -> None:
    F = mc_dropout(convnet(), SHAPE, conv_rate=0.2, dense_rate=0.5)
    sites = [m for m in F.modules() if isinstance(m, DropoutSite)]
    assert [(type(s.layer), s.rate) for s in sites] == [(nn.Conv2d, 0.2), (nn.Linear, 0.5)]
    assert list(F.shapes.values()) == [(3, 1, 1), (36,)]


def test_masks_have_their_rate_and_the_expectation_is_the_activation() -> None:
    F = mc_dropout(nn.Sequential(nn.Flatten(), nn.Linear(4, 500), nn.Linear(500, 2)), (1, 2, 2), dense_rate=0.3)
    masks = torch.cat([F.draw(seed)["2.noise"] for seed in range(40)])
    assert set(masks.unique().tolist()) == {0.0, 1.0}
    assert masks.mean().item() == pytest.approx(0.7, abs=0.01)
    site = F.module[2]
    h = torch.ones(1, 500)
    assert site.perturbed(h, masks.mean(0, keepdim=True)).mean().item() == pytest.approx(1, abs=0.02)


def test_the_mean_network_is_the_one_without_dropout() -> None:
    module, x = convnet(), images(3)
    plain = module(x)
    F = mc_dropout(module, SHAPE)
    assert torch.allclose(F.bind(F.mean())(x), plain)
    quiet = Noiseless(F)
    assert not quiet.random
    assert torch.allclose(quiet.bind(quiet.draw(5))(x), plain)


def test_mistakes() -> None:
    with pytest.raises(GradDivError, match="dense_rate is 1"):
        mc_dropout(convnet(), SHAPE, dense_rate=1.0)
    with pytest.raises(GradDivError, match="nothing to drop"):
        mc_dropout(nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), SHAPE)


def site(gradient: str = "pruned", fraction: float = 1.0) -> PruningSite:
    return PruningSite(nn.ReLU(), fraction=fraction, gradient=gradient)


def test_a_unit_is_kept_as_often_as_k_draws_by_size_would_hit_it() -> None:
    """Against the sampling that the paper describes: k indices with replacement, in proportion to |h|."""
    h = torch.tensor([[5.0, -2.0, 1.0, 0.5, 0.0, 0.1]]).double()
    k, trials = 6, 20_000
    drawn = torch.multinomial(h[0].abs(), trials * k, replacement=True, generator=torch.Generator().manual_seed(0))
    hit = torch.zeros(trials, 6).scatter(1, drawn.reshape(trials, k), 1.0).mean(0)
    assert torch.allclose(site().chance(h)[0], hit.double(), atol=0.015)
    assert site().chance(h)[0, 4] == 0


def test_equal_units_are_kept_63_percent_of_the_time() -> None:
    h = torch.ones(1, 10_000)
    assert site().chance(h).mean().item() == pytest.approx(1 - math.exp(-1), rel=1e-4)
    u = torch.rand(1, 10_000, generator=torch.Generator().manual_seed(1))
    assert (site().perturbed(h, u) > 0).double().mean().item() == pytest.approx(0.632, abs=0.02)


def test_the_expectation_is_the_activation() -> None:
    h = torch.tensor([[3.0, 1.0, 0.2, 0.0]]).double()
    u = torch.rand(100_000, 4, generator=torch.Generator().manual_seed(2)).double()
    mean = site().perturbed(h.expand(len(u), -1), u).mean(0)
    assert torch.allclose(mean, h[0], atol=0.05)


@pytest.mark.parametrize("gradient", ["pruned", "identity", "exact"])
def test_all_three_gradients_have_the_same_forward_pass(gradient: str) -> None:
    h = images(3, shape=(8,)).requires_grad_()
    u = images(1, seed=1, shape=(8,))
    value = site(gradient).perturbed(h, u)
    assert torch.equal(value, site().perturbed(h, u))
    (g,) = torch.autograd.grad(value.sum(), h)
    weight = (value / h).detach()
    if gradient == "exact":
        assert not torch.allclose(g, weight)
    else:
        assert torch.allclose(g, weight if gradient == "pruned" else torch.ones_like(h))


def test_dead_units_and_dead_examples_have_finite_gradients() -> None:
    for gradient in ("pruned", "identity", "exact"):
        h = torch.tensor([[0.0, 0.0, 0.0], [0.0, 2.0, 0.0]]).requires_grad_()
        value = site(gradient).perturbed(h, torch.tensor([[0.5, 0.5, 0.5]]))
        assert torch.equal(value, torch.tensor([[0.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))
        value.sum().backward()
        assert torch.isfinite(h.grad).all()


def test_noise_without_rows_is_the_network_that_is_not_pruned() -> None:
    module, x = convnet(), images(3)
    plain = module(x)
    F = sap(module, SHAPE)
    assert torch.equal(F.bind(F.mean())(x), plain)
    quiet = Noiseless(F)
    assert torch.equal(quiet.bind(quiet.draw(0))(x), plain)
    assert not torch.allclose(F.bind(F.draw(0))(x), plain)


def test_only_the_exact_gradient_is_no_proxy() -> None:
    x, y = images(3), labels(3)
    for gradient in ("pruned", "identity", "exact"):
        F = sap(convnet(), SHAPE, gradient=gradient)
        assert F.proxy_gradient == (gradient != "exact")
        assert input_gradient(F.bind(F.draw(0)), x, y)[1].abs().sum() > 0


def test_mistakes_of_sap() -> None:
    with pytest.raises(GradDivError, match="fraction is 0"):
        sap(convnet(), SHAPE, fraction=0.0)
    with pytest.raises(GradDivError, match="no activation layer"):
        sap(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), SHAPE)
    with pytest.raises(GradDivError, match="has noise sites already"):
        sap(sap(convnet(), SHAPE).module, SHAPE)
