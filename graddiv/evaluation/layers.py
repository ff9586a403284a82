"""In which layer the gradient of a sample model is lost."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.losses import soft_margin
from graddiv.networks import SampleModel, running_statistics


@dataclass
class _Call:
    """A layer as it was called: what went in and what came out."""

    name: str
    layer: nn.Module
    before: Tensor
    after: Tensor


@dataclass
class _Watch:
    """The calls of a module's layers, in their order."""

    calls: list[_Call] = field(default_factory=list)

    @contextmanager
    def of(self, module: nn.Module) -> Iterator[None]:
        """Watch every layer that has no layers of its own."""
        hooks = [
            layer.register_forward_hook(self._hook(name))
            for name, layer in module.named_modules()
            if name and not list(layer.children())
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _hook(self, name: str) -> Any:
        def remember(layer: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            before = next((a for a in arguments if isinstance(a, Tensor)), None)
            after = next(
                (a for a in (output if isinstance(output, tuple) else (output,)) if isinstance(a, Tensor)), None
            )
            if before is not None and after is not None:
                self.calls.append(_Call(name, layer, before, after))

        return remember


def dying_layer(
    module: nn.Module, f: SampleModel, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"]
) -> tuple[str, nn.Module] | None:
    """Return name and layer through which no gradient comes back, although one arrives at its output.

    None where the gradient is lost outside of any layer, in code of the module's own `forward`.
    """
    watch = _Watch()
    with torch.enable_grad(), running_statistics(module), watch.of(module):
        s = soft_margin(f(x.detach().requires_grad_()), y).sum()
    for call in reversed(watch.calls):
        if _arrives(s, call.after) and not _arrives(s, call.before):
            return call.name, call.layer
    return None


def _arrives(s: Tensor, at: Tensor) -> bool:
    """Whether s has a gradient there that is not 0."""
    if not at.requires_grad or not s.requires_grad:
        return False
    (gradient,) = torch.autograd.grad(s, at, retain_graph=True, allow_unused=True)
    return gradient is not None and bool((gradient != 0).any())
