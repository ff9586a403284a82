"""Parametric noise injection (He et al. 2019).

In the paper: docs/equations.md.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.weight_noise import WeightNoise, parameter_key

Granularity = Literal["layerwise", "channelwise", "elementwise"]


class PNINetwork(WeightNoise):
    """w~ = w + alpha * std(w) * noise, noise ~ N(0, I).

    std(w) is that of the whole layer and a constant for the gradient; alpha is learned, and its sign is free.  Keep
    alpha out of weight decay: it is the parameter group `F.alpha.parameters()`.
    """

    def __init__(self, module: nn.Module, alpha: dict[str, Tensor]) -> None:
        super().__init__(module, list(alpha))
        self.alpha = nn.ParameterDict({parameter_key(name): value for name, value in alpha.items()})

    def scale(self, name: str) -> Tensor:
        """alpha * std(w)."""
        w = self.module.get_parameter(name).detach()
        std = w.std(correction=min(1, w.numel() - 1))  # without a correction where one weight alone makes a layer
        scale: Tensor = self.alpha[parameter_key(name)] * std
        return scale


def pni(module: nn.Module, alpha: float = 0.25, *, granularity: Granularity = "layerwise") -> PNINetwork:
    """Add learned noise to the weights of every convolution and linear layer; biases and batch norm stay clean.

        F = pni(module)

    Returns a `RandomizedNetwork` whose parameters include the noise levels.

    module: the network; it must contain a convolution or linear layer.
    alpha: the initial noise level, in standard deviations of a layer's weights.
    granularity: whether a level is one number for a layer ("layerwise"), for an output channel ("channelwise") or for
        each weight ("elementwise").
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise GradDivError(f"alpha is {alpha}, expected a positive number")
    if granularity not in get_args(Granularity):
        raise GradDivError(f"granularity is {granularity!r}, expected one of {get_args(Granularity)}")
    layers = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
    noisy = {id(m.weight) for m in module.modules() if isinstance(m, layers)}
    weights = {name: p for name, p in module.named_parameters() if id(p) in noisy}
    if not weights:
        raise GradDivError(f"{type(module).__name__} has no convolution or linear layer to add noise to")
    return PNINetwork(
        module, {name: torch.full_like(_one_per_alpha(w, granularity), alpha) for name, w in weights.items()}
    )


def _one_per_alpha(weight: Tensor, granularity: Granularity) -> Tensor:
    """Return a part of the weight in the shape of its alpha: one entry for each noise level to be learned."""
    match granularity:
        case "layerwise":
            return weight.detach().flatten()[0]
        case "channelwise":
            return weight.detach().flatten(1)[:, 0].reshape(-1, *(1,) * (weight.dim() - 1))
        case "elementwise":
            return weight.detach()
