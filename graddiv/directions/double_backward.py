"""Convolutions and max pooling whose input gradients are cheap and can be differentiated again at little cost.

torch differentiates the input gradient of a convolution through a convolution with a kernel as large as the image, and
that of max pooling through a gather that drops the channels_last format.  On the CPU, the input gradient of a
convolution of one channel takes six times as long as the convolution, and that of max pooling four times as long as it
could where its upstream gradient is in the other memory format, as after `flatten`.  All have better forms.  A module
need not know: while `efficient_gradients()` is active, its calls of `conv2d` and `max_pool2d` take these forms.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from graddiv.performance import stored_as

aten = torch.ops.aten


class _InputsOnly:
    """Whether the backward pass under way wants gradients of inputs alone: a Function cannot see that by itself."""

    active = False


@contextmanager
def inputs_only() -> Iterator[None]:
    """Spare convolutions the gradient of their weights in the backward pass inside, where nobody asks for it."""
    before, _InputsOnly.active = _InputsOnly.active, True
    try:
        yield
    finally:
        _InputsOnly.active = before


class _Conv2d(torch.autograd.Function):
    """y = x * w + bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.geometry, ctx.bias_sizes = geometry, None if bias is None else [len(w)]
        y: Tensor = aten.convolution(x, w, bias, *geometry)
        return y

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        dx = dw = dbias = None
        if ctx.needs_input_grad[0]:
            dx = _Conv2dInputGradient.apply(upstream[0], w, x, *ctx.geometry)  # type: ignore[no-untyped-call]
        if any(ctx.needs_input_grad[1:3]) and not _InputsOnly.active:
            mask = [False, *ctx.needs_input_grad[1:3]]
            _, dw, dbias = aten.convolution_backward(upstream[0], x, w, ctx.bias_sizes, *ctx.geometry, mask)
        return dx, dw, dbias, *(None,) * len(ctx.geometry)


class _Conv2dInputGradient(torch.autograd.Function):
    """dx = the transposed convolution of dy with w, bilinear in both; x is there for its shape and memory format."""

    @staticmethod
    def forward(ctx: Any, dy: Tensor, w: Tensor, x: Tensor, *geometry: Any) -> Tensor:
        ctx.save_for_backward(dy, w, x)
        ctx.geometry = geometry
        if x.shape[1] == 1 and x.device.type == "cpu":
            return _one_channel_gradient(dy, w, x, *geometry[:3])
        dx: Tensor = aten.convolution_backward(dy, x, w, None, *geometry, [True, False, False])[0]
        return dx

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        dy, w, x = ctx.saved_tensors
        ddx = stored_as(upstream[0], x)
        ddy = aten.convolution(ddx, w, None, *ctx.geometry) if ctx.needs_input_grad[0] else None
        # the gradient of w for the input ddx and the output gradient dy: an ordinary one
        mask = [False, True, False]
        dw = aten.convolution_backward(dy, ddx, w, None, *ctx.geometry, mask)[1] if ctx.needs_input_grad[1] else None
        return ddy, dw, None, *(None,) * len(ctx.geometry)


def _one_channel_gradient(
    dy: Float[Tensor, "b o i j"],
    w: Float[Tensor, "o 1 k l"],
    x: Float[Tensor, "b 1 h w"],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Float[Tensor, "b 1 h w"]:
    """dx = sum over (k, l) of w[:, 0, k, l] . dy, moved by (k, l): one matrix product, then a sum of moved images."""
    (b, _, *sizes), (rows, columns) = x.shape, dy.shape[2:]
    products = w.flatten(1).t() @ dy.permute(0, 2, 3, 1).flatten(0, 2).t()
    dx = dy.new_zeros(b, *(size + 2 * pad for size, pad in zip(sizes, padding, strict=True)))
    places = product(*(range(0, size * step, step) for size, step in zip(w.shape[2:], dilation, strict=True)))
    for part, (top, left) in zip(products.view(len(products), b, rows, columns), places, strict=True):
        dx[:, top :: stride[0], left :: stride[1]][:, :rows, :columns] += part
    inner = dx[:, padding[0] : padding[0] + sizes[0], padding[1] : padding[1] + sizes[1]]
    return stored_as(inner[:, None], x)


class _MaxPool2d(torch.autograd.Function):
    """y_i = x_{index(i)}."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *geometry: Any) -> Tensor:
        y, index = aten.max_pool2d_with_indices(x, *geometry)
        ctx.save_for_backward(x, index)
        ctx.geometry = geometry
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        dx: Tensor = _Scatter.apply(upstream[0], *ctx.saved_tensors, *ctx.geometry)  # type: ignore[no-untyped-call]
        return dx, *(None,) * len(ctx.geometry)


class _Scatter(torch.autograd.Function):
    """dx_j = sum of dy_i over index(i) = j; its own gradient gathers: ddy_i = ddx_{index(i)}."""

    @staticmethod
    def forward(ctx: Any, dy: Tensor, x: Tensor, index: Tensor, *geometry: Any) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rest = (None,) * (2 + len(geometry))
        dx: Tensor = aten.max_pool2d_with_indices_backward(stored_as(dy, index), x, *geometry, index)
        return dx

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        if index.is_contiguous(memory_format=torch.channels_last):
            pixels, places = (t.permute(0, 2, 3, 1).flatten(1, 2) for t in (upstream[0], index))
            gathered = pixels.gather(1, places).reshape(index.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
        else:
            gathered = upstream[0].flatten(2).gather(2, index.flatten(2)).reshape(index.shape)
        return gathered, *ctx.rest


class efficient_gradients(TorchFunctionMode):  # noqa: N801 -- used like a function
    """While active, `conv2d` and `max_pool2d` on batches of images take the forms above; values are the same."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        replacement = _REPLACEMENTS.get(function)
        if replacement is None or not _is_plain(args[0]):
            return function(*args, **kwargs)
        return replacement(*args, **kwargs)


def _is_plain(x: Tensor) -> bool:
    """Whether these are batches of images, neither in the hands of torch.func nor cast by autocast."""
    transformed = torch._C._are_functorch_transforms_active()
    return x.dim() == 4 and not transformed and not torch.is_autocast_enabled(x.device.type)


def _conv2d(
    x: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    if isinstance(padding, str):
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    geometry = _pair(stride), _pair(padding), _pair(dilation), False, [0, 0], groups
    y: Tensor = _Conv2d.apply(x, weight, bias, *geometry)  # type: ignore[no-untyped-call]
    return y


def _max_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    if return_indices:
        return functional.max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode, True)
    geometry = _pair(kernel_size), _pair(stride or kernel_size), _pair(padding), _pair(dilation), ceil_mode
    return _MaxPool2d.apply(x, *geometry)  # type: ignore[no-untyped-call]


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value) * (3 - len(value))


_REPLACEMENTS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.conv2d: _conv2d,
    functional.max_pool2d: _max_pool2d,
}
