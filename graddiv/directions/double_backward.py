"""Convolutions and max pooling whose gradient is cheap to differentiate again.

torch differentiates the input gradient of a convolution through a convolution with a kernel as large as the image, and
that of max pooling through a gather that drops the channels_last format.  Both have better forms.  A module need not
know: while `efficient_double_backward()` is active, its calls of `conv2d` and `max_pool2d` take these forms.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


class _InputsOnly:
    """Whether the backward pass under way is one of `inputs_only`."""

    active = False


@contextmanager
def inputs_only() -> Iterator[None]:
    """Spare convolutions the gradient of their weights in the backward pass inside, where nobody asks for it.

    Weights and biases that are computed from the input keep theirs.
    """
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
        nothing = (None,) * len(ctx.geometry)
        if _InputsOnly.active and not any(_is_visited(node) for node, _ in ctx.next_functions[1:]):
            dx: Tensor = _Conv2dInputGradient.apply(upstream[0], w, x, *ctx.geometry)  # type: ignore[no-untyped-call]
            return dx, None, None, *nothing
        mask = list(ctx.needs_input_grad[:3])
        return *aten.convolution_backward(upstream[0], x, w, ctx.bias_sizes, *ctx.geometry, mask), *nothing


def _is_visited(node: Any) -> bool:
    """Whether the backward pass under way goes on to this node of the graph."""
    try:
        return node is not None and torch._C._will_engine_execute_node(node)
    except RuntimeError:  # torch says so of a leaf that the derivative is asked for
        return True


class _Conv2dInputGradient(torch.autograd.Function):
    """dx = the transposed convolution of dy with w, bilinear in both; x is there for its shape."""

    @staticmethod
    def forward(ctx: Any, dy: Tensor, w: Tensor, x: Tensor, *geometry: Any) -> Tensor:
        ctx.save_for_backward(dy, w)
        ctx.geometry = geometry
        dx: Tensor = aten.convolution_backward(dy, x, w, None, *geometry, [True, False, False])[0]
        return dx

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        dy, w = ctx.saved_tensors
        ddy = aten.convolution(upstream[0], w, None, *ctx.geometry) if ctx.needs_input_grad[0] else None
        # the gradient of w for the input `upstream` and the output gradient dy: an ordinary one
        dw = aten.convolution_backward(dy, upstream[0], w, None, *ctx.geometry, [False, True, False])[1]
        return ddy, dw, None, *(None,) * len(ctx.geometry)


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
        dx: Tensor = aten.max_pool2d_with_indices_backward(dy, x, *geometry, index)
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


class efficient_double_backward(TorchFunctionMode):  # noqa: N801 -- used like a function
    """While active, `conv2d` and `max_pool2d` on batches of images take the forms above; values are the same."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        replacement = _REPLACEMENTS.get(function)
        if replacement is None or (args[0] if args else kwargs["input"]).dim() != 4:
            return function(*args, **kwargs)
        return replacement(*args, **kwargs)


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if isinstance(padding, str):
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    geometry = _pair(stride), _pair(padding), _pair(dilation), False, [0, 0], groups
    y: Tensor = _Conv2d.apply(input, weight, bias, *geometry)  # type: ignore[no-untyped-call]
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
