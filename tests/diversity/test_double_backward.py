"""The same values, first and second derivatives as torch's own, for every form of the two operations."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from graddiv import GradDiv
from graddiv.diversity import double_backward
from graddiv.diversity.double_backward import efficient_double_backward, inputs_only
from graddiv.seeding import generator
from tests.helpers import images, labels, network

LAYERS = {
    "plain": lambda: nn.Conv2d(2, 4, 3),
    "padded, strided": lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1),
    "grouped, dilated, no bias": lambda: nn.Conv2d(2, 4, (3, 2), padding=(2, 1), dilation=(2, 1), groups=2, bias=False),
    "same": lambda: nn.Conv2d(2, 4, 3, padding="same"),
    "circular": lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
    "pool": lambda: nn.MaxPool2d(2),
    "overlapping pool": lambda: nn.MaxPool2d(3, stride=2, padding=1),
    "ceil pool": lambda: nn.MaxPool2d((2, 3), ceil_mode=True),
    "dilated pool": lambda: nn.MaxPool2d(2, stride=1, dilation=2),
}


class FromTheInput(nn.Module):
    """A convolution whose weight, or whose bias, is a function of the image."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.which, self.conv = which, nn.Conv2d(2, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        tensors = {"weight": self.conv.weight, "bias": self.conv.bias}
        tensors[self.which] = tensors[self.which] * x.exp().mean()
        return nn.functional.conv2d(x, **tensors)


class WithTheInput(nn.Module):
    """A convolution of features with the image itself."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x.sin(), x)


LAYERS |= {
    "weight from the input": lambda: FromTheInput("weight"),
    "bias from the input": lambda: FromTheInput("bias"),
    "the input as weight": WithTheInput,
}


def penalty(layer: nn.Module, x: Tensor, fast: bool) -> list[Tensor]:
    """The input gradient, and the derivatives of its length with respect to x and the parameters."""
    x = x.detach().requires_grad_()
    if fast:
        with efficient_double_backward():
            y = layer(x)
        with inputs_only(x):
            (g,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    else:
        y = layer(x)
        (g,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    return [y, g, *torch.autograd.grad(g.square().sum() + y.sum(), [x, *layer.parameters()], allow_unused=True)]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", LAYERS)
def test_values_and_derivatives_are_torchs(name: str, memory_format: torch.memory_format) -> None:
    layer = LAYERS[name]().double().to(memory_format=memory_format)
    x = torch.randn(3, 2, 6, 7, generator=generator(0), dtype=torch.float64).contiguous(memory_format=memory_format)
    for ours, theirs in zip(penalty(layer, x, True), penalty(layer, x, False), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_without_the_shortcut_they_are_ordinary_differentiable_functions(name: str) -> None:
    layer = LAYERS[name]().double()
    x = torch.randn(2, 2, 5, 5, generator=generator(1), dtype=torch.float64).requires_grad_()

    def function(x: Tensor, *_: Tensor) -> Tensor:
        with efficient_double_backward():
            return layer(x).sin()

    inputs = (x, *layer.parameters())
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


def test_a_convolution_may_be_called_with_keywords() -> None:
    x, w = images(2), torch.ones(3, 1, 2, 2, dtype=torch.float64)
    with efficient_double_backward():
        assert torch.equal(nn.functional.conv2d(input=x, weight=w), nn.functional.conv2d(x, w))
        assert torch.equal(nn.functional.conv2d(weight=w, input=x[0]), nn.functional.conv2d(x[0], w))


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize("kind", ["bayesian", "pni", "rse"])
def test_weights_that_noise_is_added_to_are_spared_their_gradient(
    kind: str, low_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spared, shortcut = [], double_backward._input_gradient

    def counted(*arguments: object) -> Tensor:
        spared.append(1)
        return shortcut(*arguments)

    monkeypatch.setattr(double_backward, "_input_gradient", counted)
    F, diversity = network(kind), GradDiv(n=3, low_memory=low_memory)
    diversity(F, images(2), labels(2), step=0).backward()
    assert len(spared) == 3 * 2  # models, and convolutions of each


def test_other_calls_are_left_alone() -> None:
    x = torch.rand(2, 4, 4)  # an image without a batch
    with efficient_double_backward():
        assert torch.equal(nn.MaxPool2d(2)(x), nn.functional.max_pool2d(x, 2))
        y, index = nn.MaxPool2d(2, return_indices=True)(x[None])
    assert torch.equal(nn.functional.max_unpool2d(y, index, 2).amax((2, 3)), y.amax((2, 3)))


def test_pooling_keeps_channels_last_through_the_second_derivative() -> None:
    x = torch.rand(2, 8, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    w = torch.ones_like(x).requires_grad_()
    with efficient_double_backward():
        y = nn.functional.max_pool2d(x * w, 2)
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(g.sum(), w)
    assert second.is_contiguous(memory_format=torch.channels_last)
