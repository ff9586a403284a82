"""Stochastic activation pruning (Dhillon et al. 2018): small activations are dropped more often than large ones."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.randomized import Noise
from graddiv.networks.sites import Site, SiteNetwork, place

SAPGradient = Literal["pruned", "identity", "exact"]

ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid)


class PruningSite(Site):
    """h_j <- h_j 1[u_j < q_j] / q_j with q_j = 1 - (1 - p_j)^k, p_j = |h_j| / sum_i |h_i|, k = fraction * N.

    q_j is the chance that unit j is among k units drawn with replacement by their size.  u ~ U(0, 1) keeps each unit
    with that chance, independently of the others: the marginal law of SAP, with E h~ = h, and one number a unit.
    """

    defense = "SAP"
    after = True
    optional = True

    def __init__(self, layer: nn.Module, fraction: float, gradient: SAPGradient) -> None:
        super().__init__(layer)
        self.fraction, self.gradient = fraction, gradient

    def perturbed(self, h: Float[Tensor, "b ..."], noise: Float[Tensor, "r ..."]) -> Float[Tensor, "b ..."]:
        if len(noise) == 0:
            return h
        q = self.chance(h if self.gradient == "exact" else h.detach())
        weight = torch.where(noise < q, 1 / q.clamp_min(1e-12), 0.0).to(h.dtype)  # where q is 0, so is h
        if self.gradient == "identity":
            return (h * weight).detach() + (h - h.detach())
        return h * weight

    def chance(self, h: Float[Tensor, "b ..."]) -> Float64[Tensor, "b ..."]:
        """q = 1 - (1 - p)^k, in float64: p is tiny where there are many units."""
        size = h.double().abs().flatten(1)
        p = size / size.sum(1, keepdim=True).clamp_min(1e-300)
        return -torch.expm1(self.fraction * size.shape[1] * torch.log1p(-p.clamp_max(1 - 1e-12))).reshape(h.shape)

    def extra_repr(self) -> str:
        return f"fraction={self.fraction}, gradient={self.gradient!r}"


class SAPNetwork(SiteNetwork):
    """Prunes after every activation; what it wraps was trained without.

    SAP as its authors describe it: after the activation, with k = N.  The reimplementation that Athalye et al. (2018)
    broke prunes before batch norm and activation, with k = 2N and q = 1 - exp(-kp), and is not SAP: there is an erratum
    by Dhillon & Carlini (arXiv 2010.00071).
    """

    law = "uniform"

    def __init__(self, module: nn.Module, shapes: dict[str, tuple[int, ...]], gradient: SAPGradient) -> None:
        super().__init__(module, shapes)
        self.gradient = gradient

    @property
    def proxy_gradient(self) -> bool:
        """Yes, unless the derivative of q is taken too: SAP's own gradient holds q constant."""
        return self.gradient != "exact" or super().proxy_gradient

    def mean(self) -> dict[str, Tensor]:
        """Noise without rows, which stands for the network that is not pruned: E h~ = h at every site."""
        return {site: zero[:0] for site, zero in super().mean().items()}

    def mirrored(self, noise: Noise) -> None:
        """None: 1 - u is no mirror image around the network that is not pruned."""
        return None


def sap(
    module: nn.Module, input_shape: Sequence[int], *, fraction: float = 1.0, gradient: SAPGradient = "pruned"
) -> SAPNetwork:
    """Prune after every activation layer of `module` (in place).

        F = sap(module, input_shape=x.shape[1:])

    Returns a `RandomizedNetwork` whose noise chooses the units that are kept.

    module: the network; its activations must be modules, such as nn.ReLU.
    input_shape: the shape of one image, from which the shape of the noise at each site follows.
    fraction: how many units are drawn, as a share of all; 1 is the paper's SAP-100, which keeps 63 % of equal ones.
    gradient: what an adversary differentiates.  "pruned": the weights 1[u < q] / q are constants, as in SAP;
        "identity": straight through, as if nothing were pruned; "exact": the derivative of q counts, too.
    """
    if not fraction > 0:
        raise GradDivError(f"fraction is {fraction}, expected a positive share of the units")
    if gradient not in get_args(SAPGradient):
        raise GradDivError(f"gradient is {gradient!r}, expected one of {get_args(SAPGradient)}")
    sites = {n: PruningSite(m, fraction, gradient) for n, m in module.named_modules() if isinstance(m, ACTIVATIONS)}
    if not sites or "" in sites:
        raise GradDivError(f"{type(module).__name__} has no activation layer inside: SAP prunes after activations")
    shapes = place(module, sites, input_shape)
    return SAPNetwork(module, {f"{name}.noise": shape for name, shape in shapes.items()}, gradient)
