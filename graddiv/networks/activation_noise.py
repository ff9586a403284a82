"""Parametric noise injection on inputs and activations (He et al. 2019); that on weights is in pni.py."""

import math
from collections.abc import Sequence
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.geometry import per_example
from graddiv.networks.sites import Site, SiteNetwork, place, remove

TINY = 1e-12
"""Added to the variance, whose root has no slope at 0."""

NoisePlace = Literal["image", "outputs", "inputs"]


class ActivationNoise(Site):
    """h~ = h + alpha * std(h) * noise, std(h) that of each example apart."""

    defense = "PNI"

    def __init__(self, layer: nn.Module, alpha: float) -> None:
        super().__init__(layer)
        self.alpha = nn.Parameter(next(layer.parameters()).new_tensor(alpha))

    def perturbed(self, h: Float[Tensor, "b ..."], noise: Float[Tensor, "r ..."]) -> Float[Tensor, "b ..."]:
        std = (h.flatten(1).var(1, correction=0) + TINY).sqrt()
        return h + self.alpha * per_example(std, h) * noise


class OutputNoise(ActivationNoise):
    """The same on the output of the layer."""

    after = True


class ActivationPNINetwork(SiteNetwork):
    """v~ = v + alpha * std(v) * noise, noise ~ N(0, I), alpha learned for each site, its sign free.

    The released code takes std over the whole batch, so that an image is classified by the company it is in; here it is
    that of the image alone, and the sample model a function of the image.  It also holds std constant for the gradient;
    here the gradient is that of the sample model.  Its authors' numbers with the noise switched
    off are below those of plain adversarial training: transfer from the mean network belongs to its attacks.
    """


def pni_activations(
    module: nn.Module, input_shape: Sequence[int], alpha: float = 0.25, *, at: NoisePlace = "outputs"
) -> ActivationPNINetwork:
    """Add learned noise inside `module` (in place).

        F = pni_activations(module, input_shape=x.shape[1:], at="outputs")

    Returns a `RandomizedNetwork` whose parameters include the noise levels.

    module: the network; it must contain a convolution or linear layer.
    input_shape: the shape of one image, from which the shape of the noise at each site follows.
    alpha: the initial noise level, in standard deviations of the activation.
    at: "image" for noise on the input alone (PNI-I), "outputs" for the outputs of all convolutions and linear layers
        (PNI-A-a), "inputs" for their inputs, that of the first included (PNI-A-b).
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise GradDivError(f"alpha is {alpha}, expected a positive number")
    if at not in get_args(NoisePlace):
        raise GradDivError(f"at is {at!r}, expected one of {get_args(NoisePlace)}")
    layers = {
        n: m for n, m in module.named_modules() if n and isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear))
    }
    if not layers:
        raise GradDivError(f"{type(module).__name__} has no convolution or linear layer inside to add noise to")
    kind = OutputNoise if at == "outputs" else ActivationNoise
    sites = {name: kind(layer, alpha) for name, layer in layers.items()}
    shapes = place(module, sites, input_shape)
    if at == "image":
        later = list(shapes)[1:]
        remove(module, {name: sites[name] for name in later})
        shapes = {name: shape for name, shape in shapes.items() if name not in later}
    return ActivationPNINetwork(module, {f"{name}.noise": shape for name, shape in shapes.items()})
