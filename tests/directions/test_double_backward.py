"""The same values, first and second derivatives as torch's own, for every form of the two operations."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from graddiv.directions.double_backward import efficient_gradients, inputs_only
from graddiv.performance import channels_last
from graddiv.seeding import generator

LAYERS = {
    "plain": lambda: nn.Conv2d(2, 4, 3),
    "padded, strided": lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1),
    "grouped, dilated, no bias": lambda: nn.Conv2d(2, 4, (3, 2), padding=(2, 1), dilation=(2, 1), groups=2, bias=False),
    "same": lambda: nn.Conv2d(2, 4, 3, padding="same"),
    "circular": lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
    "one channel": lambda: nn.Conv2d(1, 4, 3, padding=1),
    "one channel, strided, dilated": lambda: nn.Conv2d(1, 4, (3, 2), stride=(2, 3), padding=(2, 1), dilation=(1, 2)),
    "one channel, strided beyond the image": lambda: nn.Conv2d(1, 3, 2, stride=4),
    "pool": lambda: nn.MaxPool2d(2),
    "overlapping pool": lambda: nn.MaxPool2d(3, stride=2, padding=1),
    "ceil pool": lambda: nn.MaxPool2d((2, 3), ceil_mode=True),
    "dilated pool": lambda: nn.MaxPool2d(2, stride=1, dilation=2),
}


def images(layer: nn.Module, b: int, h: int, w: int) -> Tensor:
    return torch.randn(b, getattr(layer, "in_channels", 2), h, w, generator=generator(0), dtype=torch.float64)


def penalty(layer: nn.Module, x: Tensor, fast: bool) -> list[Tensor]:
    """The input gradient, and the derivatives of its length with respect to x and the parameters."""
    x = x.detach().requires_grad_()
    if fast:
        with efficient_gradients():
            y = layer(x)
        with inputs_only():
            (g,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    else:
        y = layer(x)
        (g,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    return [y, g, *torch.autograd.grad(g.square().sum() + y.sum(), [x, *layer.parameters()], allow_unused=True)]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", LAYERS)
def test_values_and_derivatives_are_torchs(name: str, memory_format: torch.memory_format) -> None:
    layer = LAYERS[name]().double().to(memory_format=memory_format)
    x = images(layer, 3, 6, 7).contiguous(memory_format=memory_format)
    for ours, theirs in zip(penalty(layer, x, True), penalty(layer, x, False), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_without_the_shortcut_they_are_ordinary_differentiable_functions(name: str) -> None:
    layer = LAYERS[name]().double()
    x = images(layer, 2, 5, 5).requires_grad_()

    def function(x: Tensor, *_: Tensor) -> Tensor:
        with efficient_gradients():
            return layer(x).sin()

    inputs = (x, *layer.parameters())
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


def test_other_calls_are_left_alone() -> None:
    x = torch.rand(2, 4, 4)  # an image without a batch
    with efficient_gradients():
        assert torch.equal(nn.MaxPool2d(2)(x), nn.functional.max_pool2d(x, 2))
        y, index = nn.MaxPool2d(2, return_indices=True)(x[None])
    assert torch.equal(nn.functional.max_unpool2d(y, index, 2).amax((2, 3)), y.amax((2, 3)))


def test_inside_vmap_and_autocast_torch_is_left_alone() -> None:
    layer, x = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2)), torch.rand(3, 1, 6, 6)
    with efficient_gradients():
        assert torch.allclose(torch.func.vmap(lambda image: layer(image[None])[0])(x), layer(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16


def test_the_gradient_of_one_channel_is_stored_as_the_image_is() -> None:
    x = channels_last(torch.rand(2, 1, 6, 6)).requires_grad_()
    with efficient_gradients():
        y = nn.Conv2d(1, 4, 3).to(memory_format=torch.channels_last)(x)
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    assert g.stride() == x.stride()


def test_pooling_takes_an_upstream_gradient_in_the_other_format() -> None:
    x = torch.rand(2, 8, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    with efficient_gradients():
        y = nn.functional.max_pool2d(x, 2)
    weights = torch.rand(2, 8, 2, 2)  # in the default format, as what comes back from a flatten
    (ours,) = torch.autograd.grad((y * weights).sum(), x)
    (theirs,) = torch.autograd.grad((nn.functional.max_pool2d(x, 2) * weights).sum(), x)
    assert torch.equal(ours, theirs)
    assert ours.is_contiguous(memory_format=torch.channels_last)


def test_pooling_keeps_channels_last_through_the_second_derivative() -> None:
    x = torch.rand(2, 8, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    w = torch.ones_like(x).requires_grad_()
    with efficient_gradients():
        y = nn.functional.max_pool2d(x * w, 2)
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(g.sum(), w)
    assert second.is_contiguous(memory_format=torch.channels_last)
