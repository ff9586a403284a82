"""Convolutions and max pooling whose gradient is cheap to differentiate again.

torch differentiates the input gradient of a convolution through a kernel as large as the image, and that of max pooling
without the channels_last format; `efficient_double_backward()` takes a transposed convolution and a gather instead.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
_WANTED: list[Node] = []  #: the inputs of backward passes in `inputs_only`; a global, as torch chooses the thread


@contextmanager
def inputs_only(x: Tensor) -> Iterator[None]:
    """Spare convolutions, in a backward pass to x alone, the gradients of weights that are not computed from x."""
    _WANTED.append(get_gradient_edge(x).node)
    try:
        yield
    finally:
        _WANTED.pop()


def _leads_to(target: Node, node: Node | None) -> bool:
    """Whether the backward pass from `node` of the graph arrives at `target`."""
    todo, seen = [node], set[Node]()
    while todo:
        if (node := todo.pop()) is target:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            todo += [before for before, _ in node.next_functions]
    return False


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
        if _WANTED and not any(_leads_to(_WANTED[-1], node) for node, _ in ctx.next_functions[1:]):
            return _input_gradient(upstream[0], w, x.shape, *ctx.geometry), None, None, *nothing
        mask = list(ctx.needs_input_grad[:3])
        return *aten.convolution_backward(upstream[0], x, w, ctx.bias_sizes, *ctx.geometry, mask), *nothing


def _input_gradient(
    dy: Tensor, w: Tensor, shape: torch.Size, stride: Any, padding: Any, dilation: Any, _: Any, __: Any, groups: int
) -> Tensor:
    """dx = the transposed convolution of dy with w, bilinear in both."""
    sides = zip(shape[2:], dy.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
    left = [of_x - ((of_y - 1) * s - 2 * p + d * (of_w - 1) + 1) for of_x, of_y, of_w, s, p, d in sides]
    return functional.conv_transpose2d(dy, w, None, stride, padding, left, groups, dilation)


class efficient_double_backward(TorchFunctionMode):  # noqa: N801 -- used like a function
    """While active, `conv2d` and `max_pool2d` on batches of images take the forms above; values are the same."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _REPLACEMENTS and (args[0] if args else kwargs["input"]).dim() == 4:
            function = _REPLACEMENTS[function]
        return function(*args, **kwargs)


def _conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1
) -> Tensor:
    if isinstance(padding, str):
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    geometry = _pair(stride), _pair(padding), _pair(dilation), False, [0, 0], groups
    y: Tensor = _Conv2d.apply(input, weight, bias, *geometry)  # type: ignore[no-untyped-call]
    return y


def _max_pool2d(input: Tensor, *args: Any, return_indices: bool = False, **options: Any) -> Any:
    """y_i = x_{index(i)}."""
    if return_indices or True in args[5:]:
        return functional.max_pool2d(input, *args[:5], return_indices=True, **options)
    with torch.no_grad():
        index = functional.max_pool2d(input, *args[:5], return_indices=True, **options)[1]
    if index.is_contiguous(memory_format=torch.channels_last):
        pixels, places = (t.permute(0, 2, 3, 1).flatten(1, 2) for t in (input, index))
        return pixels.gather(1, places).reshape(index.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
    return input.flatten(2).gather(2, index.flatten(2)).reshape(index.shape)


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value) * (3 - len(value))


_REPLACEMENTS: dict[Any, Callable[..., Any]] = {torch.conv2d: _conv2d, functional.max_pool2d: _max_pool2d}
