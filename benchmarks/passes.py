"""What a training step cannot do without: the passes of its convolutions and linear layers, each timed by itself."""

import json
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.harness import Measurement, cpu_seconds
from graddiv.diversity.double_backward import efficient_double_backward

REPEATS = 4


def print_passes(module: nn.Module, x: Tensor, m: int, n: int) -> None:
    """Print the seconds of a forward pass, of an input gradient, of a weight gradient and of two of these in one call.

    Sums over the layers, and in `seconds` over all passes of a step: PGD takes m forwards and input gradients, the loss
    one of each and a weight gradient, each of the n graphs of GradDiv two of all three.
    """
    found: Measurement = dict.fromkeys(("forward", "input", "weight", "two weights"), 0.0)
    for layer, images in _layers(module, x):
        for name, seconds in _layer_passes(layer, images).items():
            found[name] += seconds
    both = found["forward"] + found["input"]
    print(json.dumps(found | {"seconds": (m + 1 + 2 * n) * both + (1 + 2 * n) * found["weight"]}))


def _layers(module: nn.Module, x: Tensor) -> list[tuple[nn.Module, Tensor]]:
    """The convolutions and linear layers, with what arrives at them."""
    found: list[tuple[nn.Module, Tensor]] = []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, inputs: found.append((layer, inputs[0].detach())))
        for layer in module.modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    with torch.no_grad():
        module(x)
    for hook in hooks:
        hook.remove()
    return found


def _layer_passes(layer: nn.Module, x: Tensor) -> Measurement:
    weights = list(layer.parameters())
    with torch.no_grad():
        dy = torch.rand_like(layer(x))

    def gradient(x: Tensor, dy: Tensor, *wanted: Tensor) -> Callable[[], object]:
        for tensor in (x, *weights):
            tensor.requires_grad_(any(tensor is w for w in wanted))
        with efficient_double_backward():
            y = layer(x)
        return lambda: torch.autograd.grad(y, wanted, dy, retain_graph=True)

    joined = [torch.cat([t, t]).contiguous(memory_format=_format(t)) for t in (x, dy)]
    with torch.no_grad():
        forward = _least(lambda: layer(x))
    return {
        "forward": forward,
        "input": _least(gradient(x, dy, x)),
        "weight": _least(gradient(x.detach(), dy, *weights)),
        "two weights": _least(gradient(*joined, *weights)),
    }


def _format(tensor: Tensor) -> torch.memory_format:
    return torch.channels_last if tensor.dim() == 4 else torch.contiguous_format


def _least(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(REPEATS):
        before = cpu_seconds()
        call()
        times.append(cpu_seconds() - before)
    return min(times)
