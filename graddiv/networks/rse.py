"""Random self-ensemble (Liu et al. 2018): Gaussian noise on the input of every convolution.

In the paper: docs/equations.md.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.architectures import Normalize
from graddiv.networks.sites import Site, SiteNetwork, place, remove


class NoiseSite(Site):
    """layer(x + sigma * noise)."""

    defense = "RSE"

    def __init__(self, layer: nn.Module, sigma: float) -> None:
        super().__init__(layer)
        self.sigma = sigma

    def perturbed(self, h: Float[Tensor, "b ..."], noise: Float[Tensor, "r ..."]) -> Float[Tensor, "b ..."]:
        return torch.add(h, noise, alpha=self.sigma)

    def extra_repr(self) -> str:
        return f"sigma={self.sigma}"


class RSENetwork(SiteNetwork):
    """h <- h + sigma * noise, noise ~ N(0, I), before every convolution, in training and in inference alike.

    Training draws noise for each example apart, as RSE does.
    """


def rse(
    module: nn.Module, input_shape: Sequence[int], *, sigma_init: float = 0.2, sigma_inner: float = 0.1
) -> RSENetwork:
    """Insert a noise site before every convolution of `module` (in place); the first has sigma_init, in pixel units.

        F = rse(module, input_shape=x.shape[1:])

    Returns a `RandomizedNetwork`.

    module: the network; it must contain a convolution.
    input_shape: the shape of one image, (c, h, w), from which the shape of the noise at each site follows.
    sigma_init: the standard deviation of the noise on the image; 0.2 as in RSE.  Input normalization comes after this
        noise, so that it means the same with and without normalization.
    sigma_inner: the standard deviation of the noise at the later sites, in units of the activations; 0.1 as in RSE.
    """
    for name, value in (("sigma_init", sigma_init), ("sigma_inner", sigma_inner)):
        if not (math.isfinite(value) and value >= 0):
            raise GradDivError(f"{name} is {value}, expected a number >= 0")
    layers = {n: m for n, m in module.named_modules() if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d, Normalize))}
    if not any(name and not isinstance(m, Normalize) for name, m in layers.items()):
        raise GradDivError(f"{type(module).__name__} has no convolution inside: RSE adds noise before convolutions")
    sites = {name: NoiseSite(layer, sigma_inner) for name, layer in layers.items()}
    shapes = place(module, sites, input_shape)
    names = list(shapes)
    if isinstance(sites[names[0]].layer, Normalize) and len(names) > 1:  # its site serves the first convolution
        remove(module, {names[1]: sites[names[1]]})
        del shapes[names[1]]
    sites[names[0]].sigma = sigma_init
    return RSENetwork(module, {f"{name}.noise": shape for name, shape in shapes.items()})
