"""Local reparametrization: the same law at every x, the same mean gradient, less variance; for linear layers only."""

import pytest
import torch
from torch import nn

from graddiv import GradDivError, bayesian
from graddiv.attacks import EOT
from graddiv.attacks.pilot import gradient_noise
from graddiv.networks import GaussianNetwork, local_reparametrization
from graddiv.networks.architectures import mnist_cnn
from graddiv.seeding import generator, isolated


def perceptron(sigma: float = 0.3) -> GaussianNetwork:
    with isolated(0):
        return bayesian(nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)).double(), sigma)


def inputs(count: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(count, 12, generator=generator(1), dtype=torch.float64), torch.arange(count) % 3


def test_logits_have_the_law_that_they_had() -> None:
    F, (x, _) = perceptron(), inputs()
    with torch.no_grad():
        plain, local = (torch.stack([f(x) for f in G.sample(200, 0)]) for G in (F, local_reparametrization(F)))
    error = (plain.std(0) / 200**0.5).max()
    assert (plain.mean(0) - local.mean(0)).abs().max() < 6 * error
    assert (local.std(0) / plain.std(0) - 1).abs().max() < 0.3


def test_the_input_gradient_has_the_same_mean_and_less_variance() -> None:
    F, (x, y) = perceptron(), inputs()
    n = 150
    found = {}
    for name, G in (("plain", F), ("local", local_reparametrization(F))):
        gradients = torch.stack(list(EOT(G, n, seed=1).gradients(0, x, y, "soft_margin")))
        found[name] = gradients.mean(0), gradient_noise(EOT(G, 60, seed=2), 0, x, y).trace
    (mean, variance), (local_mean, local_variance) = found["plain"], found["local"]
    assert ((mean - local_mean).norm(dim=1) < 5 * (2 * variance / n).sqrt()).all()
    assert (local_variance < 0.7 * variance).all()


def test_the_mean_network_is_the_same() -> None:
    F, (x, _) = perceptron(), inputs()
    G = local_reparametrization(F)
    assert torch.allclose(G.bind(G.mean())(x), F.bind(F.mean())(x), atol=1e-12)


def test_convolutions_are_refused_and_left_as_they_are() -> None:
    F = bayesian(mnist_cnn(0.125), 0.05)
    convolution = next(name for name, m in F.module.named_modules() if isinstance(m, nn.Conv2d))
    with pytest.raises(GradDivError, match=r"is Conv2d, expected linear layers only .*biased there"):
        local_reparametrization(F, [convolution])
    G = local_reparametrization(F)
    assert f"{convolution}.weight" in G.draw(0)
    with pytest.raises(GradDivError, match="no linear layer with random weights"):
        local_reparametrization(bayesian(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), 0.1))


def test_positions_that_share_weights_are_refused() -> None:
    F = bayesian(nn.Sequential(nn.Linear(4, 3), nn.Flatten()), 0.1)
    with pytest.raises(GradDivError, match="expected b x features"):
        local_reparametrization(F).sample(1, 0)[0](torch.rand(2, 5, 4))


def test_why_a_convolution_must_not_be_reparametrized() -> None:
    """Outputs of a convolution drawn apart at each position: the mean gradient of |sum of outputs| is another one."""
    x = torch.rand(1, 12, generator=generator(3), dtype=torch.float64).requires_grad_()
    n, patches = 20_000, x.reshape(3, 4)
    kernel = torch.randn(n, 4, generator=generator(4), dtype=torch.float64)
    (shared,) = torch.autograd.grad((kernel @ patches.T).sum(1).abs().mean(), x, retain_graph=True)
    z = torch.randn(n, 3, generator=generator(5), dtype=torch.float64)
    (apart,) = torch.autograd.grad((patches.square().sum(1).sqrt() * z).sum(1).abs().mean(), x)
    assert apart.norm() < 0.75 * shared.norm()
