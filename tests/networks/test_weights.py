import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from graddiv import GradDivError, bayesian, pni
from graddiv.networks import mnist_cnn, vgg16
from tests.helpers import convnet, images, no_type_checks


def test_the_kl_is_that_of_torch_distributions() -> None:
    F = bayesian(convnet(batch_norm=True), 0.07, init_sigma=0.03)
    with torch.no_grad():
        for value in F.log_sigma.values():
            value += torch.linspace(-1, 1, value.numel(), dtype=value.dtype).reshape(value.shape)
    expected = sum(
        kl_divergence(Normal(mu, F.scale(name)), Normal(0.0, 0.07)).sum() for name, mu in F.module.named_parameters()
    )
    assert torch.allclose(F.kl(), expected)


def test_the_kl_of_one_scalar_in_closed_form() -> None:
    F = bayesian(torch.nn.Linear(1, 1, bias=False), 0.5, init_sigma=0.25)
    with torch.no_grad():
        F.module.weight.fill_(0.3)
    expected = math.log(0.5 / 0.25) + (0.25**2 + 0.3**2) / (2 * 0.5**2) - 0.5
    assert F.kl().item() == pytest.approx(expected, rel=1e-6)


def test_the_kl_vanishes_at_the_prior_and_only_there() -> None:
    F = bayesian(convnet(), 0.1)
    with torch.no_grad():
        for mu in F.module.parameters():
            mu.zero_()
    assert F.kl().item() == pytest.approx(0, abs=1e-12)
    with torch.no_grad():
        F.log_sigma["0/weight"] += 0.1
    assert F.kl() > 0.01


def test_kl_scope_last_counts_the_classifier_alone() -> None:
    everything, last = bayesian(convnet(), 0.1), bayesian(convnet(), 0.1, kl_scope="last")
    classifier = bayesian(everything.module[-1], 0.1)
    assert torch.allclose(last.kl(), classifier.kl())
    assert everything.kl() > last.kl()


def test_every_named_parameter_is_bayesian_and_batch_norm_may_be_left_out() -> None:
    module = convnet(batch_norm=True)
    assert bayesian(module, 0.1).names == [name for name, _ in module.named_parameters()]
    deterministic = bayesian(convnet(batch_norm=True), 0.1, batch_norm=False)
    assert set(bayesian(module, 0.1).names) - set(deterministic.names) == {"1.weight", "1.bias"}
    noise = deterministic.draw(0)
    assert deterministic.realise(noise, deterministic.theta())["1.weight"] is deterministic.module[1].weight


def test_weights_are_normal_with_mean_mu_and_deviation_sigma() -> None:
    F = bayesian(torch.nn.Linear(300, 200).double(), 0.3)
    with torch.no_grad():
        w = F.realise(F.draw(11), F.theta())["weight"]
    z = ((w - F.module.weight) / 0.3).flatten().sort().values
    n = z.numel()
    distance = (Normal(0, 1).cdf(z) - (torch.arange(n) + 0.5) / n).abs().max() * math.sqrt(n)
    assert distance < 1.95  # Kolmogorov-Smirnov at the 0.001 level


def test_noise_of_different_parameters_is_not_shared() -> None:
    F = bayesian(torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.Linear(50, 50)), 0.1)
    noise = F.draw(0)
    assert abs(torch.corrcoef(torch.stack([noise["0.weight"].flatten(), noise["1.weight"].flatten()]))[0, 1]) < 0.1


def test_the_paper_network_made_bayesian_has_twice_the_parameters() -> None:
    F = bayesian(mnist_cnn(), 0.05)
    assert sum(p.numel() for p in F.parameters()) == 2 * 6_526_474


def test_a_bayesian_vgg_runs_and_its_state_survives_a_round_trip() -> None:
    F, G = bayesian(vgg16(0.1), 0.1), bayesian(vgg16(0.1, seed=5), 0.2)
    G.load_state_dict(F.state_dict())
    x = images(2, shape=(3, 32, 32), dtype=torch.float32)
    F.eval(), G.eval()
    assert torch.equal(F.bind(F.draw(1))(x), G.bind(G.draw(1))(x))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_prior_that_is_not_positive_is_refused(bad: float) -> None:
    with pytest.raises(GradDivError, match="prior_sigma is"):
        bayesian(convnet(), bad)


def test_other_bad_arguments() -> None:
    with pytest.raises(GradDivError, match="unknown kl_scope 'some'"), no_type_checks():
        bayesian(convnet(), 0.1, kl_scope="some")  # type: ignore[arg-type]
    with pytest.raises(GradDivError, match="Flatten has no parameters"):
        bayesian(torch.nn.Flatten(), 0.1)


@pytest.mark.parametrize(
    ("granularity", "shape"), [("layerwise", ()), ("channelwise", (3, 1, 1, 1)), ("elementwise", (3, 1, 3, 3))]
)
def test_alpha_has_one_entry_for_each_cell(granularity: str, shape: tuple[int, ...]) -> None:
    F = pni(convnet(), 0.2, granularity=granularity)  # type: ignore[arg-type]
    assert F.alpha["0/weight"].shape == shape
    assert torch.all(F.alpha["0/weight"] == 0.2)


def test_noise_is_on_convolution_and_linear_weights_only() -> None:
    assert pni(convnet(batch_norm=True)).names == ["0.weight", "4.weight", "7.weight"]
    assert pni(torch.nn.Linear(3, 2)).names == ["weight"]


def test_weights_are_w_plus_alpha_std_noise() -> None:
    F = pni(convnet(), 0.25)
    noise = F.draw(0)
    w = F.module[0].weight
    assert torch.allclose(F.realise(noise, F.theta())["0.weight"], w + 0.25 * w.std() * noise["0.weight"])
    assert F.realise(noise, F.theta())["0.bias"] is F.module[0].bias


def test_the_gradient_ignores_std_and_reaches_alpha() -> None:
    """dL/dw = dL/dw~ and dL/dalpha = <dL/dw~, std(w) noise>."""
    F, x = pni(convnet()), images(4)
    noise = F.draw(1)
    weights = F.realise(noise, F.theta())
    probe = torch.func.functional_call(F.module, weights, (x,)).square().sum()
    (outer,) = torch.autograd.grad(probe, [weights["0.weight"]], retain_graph=True)
    inner, alpha = torch.autograd.grad(probe, [F.module[0].weight, F.alpha["0/weight"]])
    assert torch.allclose(inner, outer)
    assert torch.allclose(alpha, (outer * F.module[0].weight.std() * noise["0.weight"]).sum())


def test_noise_scales_with_the_layer() -> None:
    F = pni(torch.nn.Linear(200, 200, bias=False).double(), 0.5)
    w = F.module.weight.detach().clone()
    eta = (F.realise(F.draw(3), F.theta())["weight"] - w).detach()
    assert eta.std().item() == pytest.approx(0.5 * w.std().item(), rel=0.02)
    assert abs(eta.mean()) < 0.01 * w.std()


def test_bad_arguments() -> None:
    with pytest.raises(GradDivError, match="alpha is -1"):
        pni(convnet(), -1.0)
    with pytest.raises(GradDivError, match="unknown granularity 'blockwise'"), no_type_checks():
        pni(convnet(), granularity="blockwise")  # type: ignore[arg-type]
    with pytest.raises(GradDivError, match="ReLU has no convolution"):
        pni(torch.nn.ReLU())


def test_tied_weights_have_one_noise() -> None:
    a, b = torch.nn.Linear(5, 5), torch.nn.Linear(5, 5)
    b.weight = a.weight
    F = pni(torch.nn.Sequential(a, b))
    assert F.names == ["0.weight"]
    assert F.bind(F.draw(0))(torch.rand(2, 5)).shape == (2, 5)


def test_a_layer_of_a_single_weight_has_no_spread_to_scale_with() -> None:
    F = pni(torch.nn.Linear(1, 1)).eval()
    assert torch.equal(F.bind(F.draw(0))(torch.ones(1, 1)), F.module(torch.ones(1, 1)))
