"""A network whose steps without a gradient hand one on, with the same answers to the bit.

Functions of torch are watched while the network runs.  What rounds, compares, looks up or cuts the graph is computed as
it is; a smooth companion of its result carries the gradient on.  Code outside of torch stays dark.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: How wide the slope of a comparison is, in standard deviations of what is compared: one surrogate for each.
WIDTHS = {"narrow": 0.1, "wide": 0.5}
ROUNDING = frozenset(("round", "floor", "ceil", "trunc", "fix"))
SIGNS = frozenset(("sign", "sgn"))
LIMITS = frozenset(("clamp", "clip", "hardtanh"))
CUTTING = frozenset(("detach", "detach_"))
LEAVING = frozenset(("numpy", "__array__", "tolist", "item", "__float__", "__int__", "__bool__"))  #: to Python
CASTS = frozenset(("to", "type", "type_as", "long", "int", "short", "char", "byte", "bool", "float", "double", "half"))
ABOVE = frozenset(("gt", "ge", "greater", "greater_equal", "__gt__", "__ge__", "heaviside"))
BELOW = frozenset(("lt", "le", "less", "less_equal", "__lt__", "__le__"))
BOTH = frozenset(("logical_and", "bitwise_and", "__and__"))
EITHER = frozenset(("logical_or", "bitwise_or", "__or__"))
NOT = frozenset(("logical_not", "bitwise_not", "__invert__"))
TABLES = frozenset(("embedding", "index_select", "take", "__getitem__", "one_hot"))
RESHAPING = frozenset(("reshape", "view", "flatten", "squeeze", "unsqueeze"))


class _Carry(torch.autograd.Function):
    """The first tensor, with the gradient of the second."""

    @staticmethod
    def forward(ctx: Any, exact: Tensor, smooth: Tensor) -> Tensor:
        ctx.dtype = smooth.dtype
        return exact.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        return None, torch.nan_to_num(g.to(ctx.dtype), 0.0, 0.0, 0.0)


class HandingOn(TorchFunctionMode):
    """While active, functions without a gradient hand one on; `touched` names them."""

    def __init__(self, width: float = WIDTHS["wide"]) -> None:
        super().__init__()
        self.width = width
        self.touched: set[str] = set()
        #: By id: the tensor, which keeps its id its own, and the tensor whose gradient is used instead.
        self.companions: dict[int, tuple[Tensor, Tensor]] = {}
        self.weights: dict[int, Tensor] = {}  #: By id of a position: how much each position counts.

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, options = getattr(func, "__name__", ""), dict(kwargs or {})
        if name == "_set_grad_enabled":
            self.touched |= set() if args[0] else {"no_grad"}
            return None
        if name == "register_hook":  # it may replace the gradient
            self.touched.add(name)
            return func(torch.zeros((), requires_grad=True), *args[1:])
        inside = not torch.is_grad_enabled()  # the forward of an autograd.Function, or inference mode
        with torch.inference_mode(False), torch.enable_grad():
            out = self._called(func, name, args, options)
            if inside and isinstance(out, Tensor) and out.requires_grad:
                self.touched.add("autograd.Function")
                self.companions[id(out)] = out, out * 1  # another backward will be put in the place of this graph
        return out

    def result(self, out: Any) -> Any:
        """What the network returned, with the graph that was kept for it."""
        return _each(out, self._own)

    def _called(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        args, options = _each(args, self._own), _each(options, self._own)
        if not any(map(self._carries, _leaves((args, options)))):
            return func(*args, **options)
        if name in CUTTING or (name == "__get__" and getattr(func, "__self__", None) is Tensor.data):
            self.touched.add("detach")
            return args[0]
        if name in LEAVING:
            self.touched.add("a step outside of torch")
            return func(args[0].detach(), *args[1:], **options)
        if name == "__setitem__":
            value = self._soft(args[2])
            return func(args[0], args[1], args[2] if value is args[2] else _Carry.apply(args[2].to(value), value))  # type: ignore[no-untyped-call]
        if name.endswith("_") and not name.endswith("__") and (plain := getattr(Tensor, name[:-1], None)):
            return self._in_place(func, plain, args, options)
        exact = func(*args, **options)
        if name in ("max", "min") and hasattr(exact, "indices"):
            self._join(name, exact.indices, self._smooth(f"arg{name}", func, args, options, exact.indices))
            return exact
        smooth = None
        with suppress(RuntimeError, TypeError, ValueError, LookupError, AttributeError):  # not all take numbers instead
            smooth = self._smooth(name, func, args, options, exact)
        return self._join(name, exact, smooth, args[0] if args else None)

    def _in_place(self, func: Callable[..., Any], plain: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Change a tensor in place; a flat function, or a companion among its arguments, hands the gradient on."""
        x, name = args[0], plain.__name__
        if name not in ROUNDING | SIGNS | LIMITS and not any(id(v) in self.companions for v in _leaves(args)):
            return func(*args, **options)
        result = self._called(plain, name, args, options)
        if x.is_floating_point():
            return x.copy_(result)
        x = func(*args, **options)
        if id(result) in self.companions:
            self.companions[id(x)] = x, self.companions[id(result)][1]
        return x

    def _own(self, value: Any) -> Any:
        """The tensor whose graph is that of its values, where another backward was put in the place of it."""
        found = self.companions.get(id(value))
        return found[1] if found and value.is_floating_point() else value

    def _soft(self, value: Any) -> Any:
        """The companion of a tensor without a gradient, or the value itself."""
        found = self.companions.get(id(value))
        return found[1] if found else value

    def _carries(self, value: Any) -> bool:
        return isinstance(value, Tensor) and (value.requires_grad or id(value) in self.companions)

    def _join(self, name: str, exact: Any, smooth: Any, source: Any = None) -> Any:
        """The exact result with the gradient of the smooth one, which is remembered if it cannot have any."""
        if not isinstance(exact, Tensor) or not isinstance(smooth, Tensor) or exact.shape != smooth.shape:
            return exact
        self.touched.add(name)
        if exact.is_floating_point():
            return _Carry.apply(exact.detach(), smooth)  # type: ignore[no-untyped-call]
        self.companions[id(exact)] = exact, smooth
        if name in RESHAPING and id(source) in self.weights:
            self.weights[id(exact)] = self.weights[id(source)].reshape(*exact.shape, -1)
        return exact

    def _smooth(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], exact: Any
    ) -> Any:
        """The companion of a result; None where the gradient that it has is right."""
        soft, named = _each(args, self._soft), _each(options, self._soft)
        x, other = soft[0], soft[1] if len(soft) > 1 else named.get("other", named.get("value", 0.0))
        changed = any(a is not b for a, b in zip(_leaves((args, options)), _leaves((soft, named)), strict=True))
        if name in ROUNDING or (name in LIMITS and self.width >= WIDTHS["wide"] and _two_sided(args, options)):
            return x
        if name in SIGNS:
            return 2 * self._step(x, 0.0) - 1
        if named.get("rounding_mode") or name in ("floor_divide", "__floordiv__"):
            return torch.true_divide(x, other)
        if name in CASTS:
            return x.to(exact.dtype if exact.is_floating_point() else x.dtype) if exact.dtype != args[0].dtype else None
        if name in ABOVE | BELOW:
            return self._step(x, other) if name in ABOVE else self._step(other, x)
        if name in ("eq", "ne"):
            near = torch.relu(1 - (torch.as_tensor(x) - other).abs())
            return near if name == "eq" else 1 - near
        if name in BOTH | EITHER | NOT and changed:
            return 1 - x if name in NOT else x * other if name in BOTH else x + other - x * other
        if name in ("argmax", "argmin"):
            return self._position(x, args, options, exact, 1.0 if name == "argmax" else -1.0)
        if name == "where" and len(soft) == 3 and changed:
            yes, no = (torch.nan_to_num(torch.as_tensor(v), 0.0, 0.0, 0.0) for v in soft[1:])
            return x * yes + (1 - x) * no if x.is_floating_point() else None
        if name == "masked_fill" and changed and soft[1].is_floating_point():
            return x * (1 - soft[1])
        if name in ("bucketize", "searchsorted"):
            values, limits = (x, other) if name == "bucketize" else (other, x)
            return self._step(values[..., None], limits).sum(-1) if limits.dim() == 1 else None
        if name in TABLES and (found := self._looked_up(name, args, exact)) is not None:
            return found
        return func(*soft, **{**named, **({"dtype": None} if "dtype" in named else {})}) if changed else None

    def _step(self, a: Any, b: Any) -> Tensor:
        """1 where a > b, with a slope whose width is a share of the spread of a - b."""
        apart = torch.as_tensor(a) - torch.as_tensor(b)
        apart = apart if apart.is_floating_point() else apart.float()
        spread = apart.detach().square().mean().sqrt()
        return torch.sigmoid(apart / (self.width * spread).clamp_min(1e-6))

    def _position(
        self, x: Tensor, args: tuple[Any, ...], options: dict[str, Any], exact: Tensor, sign: float
    ) -> Tensor | None:
        """The mean position, by a softmax of the values."""
        dim = options.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(dim, int):
            return None
        weights = torch.softmax(sign * x / (self.width * x.detach().std()).clamp_min(1e-6), dim).movedim(dim, -1)
        self.weights[id(exact)] = weights
        places = torch.arange(weights.shape[-1], dtype=weights.dtype, device=weights.device)
        return (weights * places).sum(-1).reshape(exact.shape)

    def _looked_up(self, name: str, args: tuple[Any, ...], exact: Tensor) -> Any:
        """The entries of a table around the one that was looked up: their weighted mean, or the slope between them."""
        table = args[1] if name == "embedding" else args[0]
        index = args[0] if name in ("embedding", "one_hot") else args[-1]
        if type(index) is tuple and len(index) == 2 and isinstance(table, Tensor):  # one entry in each row
            chosen = self.weights.get(id(index[1]))
            rows = chosen is not None and chosen.shape == table.shape[:2] and table.is_floating_point()
            return torch.einsum("bk,bk...->b...", chosen, table) if rows else None
        known = isinstance(index, Tensor) and id(index) in self.companions
        if not known or index.dtype not in (torch.int32, torch.int64):  # a mask is no index
            return None
        shift, weights = self.companions[id(index)][1], self.weights.get(id(index))
        if name == "one_hot":
            places = torch.arange(exact.shape[-1], device=exact.device)
            return torch.relu(1 - (shift[..., None] - places).abs()) if weights is None else weights
        if not isinstance(table, Tensor) or not table.is_floating_point():
            return None
        if weights is not None and weights.shape[-1] == len(table) and index.shape == weights.shape[:-1]:
            return torch.tensordot(weights, table, 1)
        up, down = ((index + k).clamp(0, len(table) - 1) for k in (1, -1))
        tail = (1,) * (table.dim() - 1)
        slope = (table[up] - table[down]) / (up - down).clamp_min(1).reshape(*index.shape, *tail)
        return slope.detach() * shift.reshape(*index.shape, *tail)


def _two_sided(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether values are limited on both sides, unlike by a ReLU under another name."""
    limits = [*args[1:3], *(options.get(name) for name in ("min", "max", "min_val", "max_val"))]
    return sum(limit is not None for limit in limits) == 2


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """The tuples, lists and mappings, with every entry changed."""
    if isinstance(value, dict):
        return {key: _each(part, change) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_each(part, change) for part in value)
    return change(value)


def _leaves(value: Any) -> list[Any]:
    """The entries of tuples, lists and mappings, in order."""
    found: list[Any] = []
    _each(value, found.append)
    return found
