import pytest
import torch
from torch import nn

import graddiv
from graddiv import GradDivError, randomize
from graddiv.attacks import PGD, as_view
from graddiv.networks import Dirac, bayesian, straight_through
from tests.helpers import convnet, images, labels


def coarse(x: torch.Tensor) -> torch.Tensor:
    return (x * 3).round() / 3


def test_the_forward_pass_is_exact_to_the_bit() -> None:
    x = images(50, dtype=torch.float32).requires_grad_()
    dark = 0.1 * coarse(x)
    assert torch.equal(straight_through(lambda x: 0.1 * coarse(x))(x), dark)
    assert not torch.equal(x + (dark - x), dark), "the usual form rounds"


def test_the_backward_pass_is_the_identity_and_can_be_differentiated_again() -> None:
    x, module = images(3).requires_grad_(), convnet()
    through, plain = nn.Sequential(straight_through(coarse), module)(x), module(coarse(x).detach().requires_grad_())
    assert torch.equal(through, plain)
    (g,) = torch.autograd.grad(through.square().sum(), x, create_graph=True)
    at = coarse(x).detach().requires_grad_()
    (expected,) = torch.autograd.grad(module(at).square().sum(), at, create_graph=True)
    assert torch.equal(g, expected)
    theta = list(module.parameters())
    second, again = (torch.autograd.grad(each.square().sum(), theta) for each in (g, expected))
    assert all(torch.equal(a, b) for a, b in zip(second, again, strict=True))


def test_a_network_says_that_its_gradient_is_a_proxy() -> None:
    squeezed = nn.Sequential(straight_through(coarse), convnet())
    for make in (Dirac, randomize, lambda module: bayesian(module, 0.1)):
        assert make(squeezed).proxy_gradient
        assert not make(convnet()).proxy_gradient


def test_an_attack_gets_through() -> None:
    module, x, y = convnet(), images(4), labels(4)
    squeezed = nn.Sequential(straight_through(coarse), module)
    x_adv = PGD(m=5)(as_view(squeezed), x, y, 0.2)
    loss = nn.functional.cross_entropy
    assert loss(squeezed(x_adv), y) > loss(squeezed(x), y)
    assert torch.equal(PGD(m=5)(as_view(nn.Sequential(Blocked(), module)), x, y, 0.2), x), "no gradient, no attack"


class Blocked(nn.Module):
    """The same without the stand-in: rounding has gradient zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return coarse(x)


def test_a_step_that_changes_the_shape_is_refused() -> None:
    with pytest.raises(GradDivError, match=r"turned shape \(2, 1, 6, 6\) into \(2, 1, 3, 3\)"):
        graddiv.straight_through(nn.AvgPool2d(2))(images(2))
