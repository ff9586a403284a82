"""Drop units at random: MC dropout (Gal & Ghahramani 2016), SAP (Dhillon et al. 2018).  See docs/zoo.md."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.activations import CONVOLUTIONS, WEIGHTED, Site, SiteNetwork, find
from graddiv.networks.defense import WithoutNoise, defense
from graddiv.registries import Positive, Range

SAPGradient = Literal["pruned", "identity", "exact"]
Rate = Annotated[float, Range(ge=0, lt=1)]

ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid)


class DropoutSite(Site):
    """layer(x * keep / (1 - rate)), keep in {0, 1}: of single units before a linear layer, else of whole channels."""

    defense = "MC dropout"
    rate: float

    def noise_shape(self, activation: tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(self.layer, CONVOLUTIONS):
            return (activation[0], *(1,) * (len(activation) - 1))
        return activation

    def perturbed(self, h: Float[Tensor, "b ..."], noise: Float[Tensor, "r ..."]) -> Float[Tensor, "b ..."]:
        return h * (noise / (1 - self.rate))


class DropoutNetwork(SiteNetwork):
    """h <- h * keep / (1 - rate), keep ~ Bernoulli(1 - rate), before convolutions and linear layers but the first."""

    law = "uniform"
    rates: dict[str, float]  #: of each site

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        return {site: (u >= self.rates[site]).to(u.dtype) for site, u in super().draw(seed, batch).items()}

    def mean(self) -> dict[str, Tensor]:
        return {site: torch.ones_like(zero) * (1 - self.rates[site]) for site, zero in super().mean().items()}


@defense("dropout")
def mc_dropout(
    module: nn.Module, input_shape: Sequence[int], *, conv_rate: Rate = 0.2, dense_rate: Rate = 0.5
) -> DropoutNetwork:
    """Insert dropout before every convolution and linear layer of `module` (in place) but the first.

        F = mc_dropout(module, input_shape=x.shape[1:])

    Returns a `RandomizedNetwork` whose noise are the masks.  A module with dropout of its own: `randomize`.

    module, input_shape: the network, whose own dropout must be in eval mode, and the shape of one image.
    conv_rate, dense_rate: the shares dropped: of channels before a convolution, of units before a linear layer.
    """
    visits = find(module, WEIGHTED, input_shape)
    _, *later = visits or ("",)  # the image itself is not dropped
    if not later:
        raise GradDivError(f"{type(module).__name__} has no layer after its first: there is nothing to drop")
    layers = {name: visits[name].layer for name in later}
    rates = {name: conv_rate if isinstance(layer, CONVOLUTIONS) else dense_rate for name, layer in layers.items()}
    sites = {name: DropoutSite(layer, rate=rates[name]) for name, layer in layers.items()}
    return DropoutNetwork(module, sites, visits, rates={f"{name}.noise": rate for name, rate in rates.items()})


class PruningSite(Site):
    """h_j <- h_j 1[u_j < q_j] / q_j with q_j = 1 - (1 - p_j)^k, p_j = |h_j| / sum_i |h_i|, k = fraction * N.

    q_j is the chance that unit j is among k units drawn with replacement by their size: E h~ = h.
    """

    defense = "SAP"
    after = True
    fraction: float
    gradient: SAPGradient

    def perturbed(self, h: Float[Tensor, "b ..."], noise: Float[Tensor, "r ..."]) -> Float[Tensor, "b ..."]:
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


class SAPNetwork(SiteNetwork):
    """SAP as its authors describe it, after every activation of a network that was trained without it."""

    law = "uniform"
    gradient: SAPGradient

    @property
    def proxy_gradient(self) -> bool:  # SAP's own gradient holds q constant
        return self.gradient != "exact" or super().proxy_gradient

    def mean(self) -> dict[str, Tensor]:  # noise without rows stands for the network that is not pruned: E h~ = h
        return {site: zero[:0] for site, zero in super().mean().items()}


@defense("sap", WithoutNoise)
def sap(
    module: nn.Module, input_shape: Sequence[int], *, fraction: Positive = 1.0, gradient: SAPGradient = "pruned"
) -> SAPNetwork:
    """Prune after every activation layer of `module` (in place).

        F = sap(module, input_shape=x.shape[1:])

    Returns a `RandomizedNetwork` whose noise chooses the units that are kept.

    module, input_shape: the network, whose activations must be modules such as nn.ReLU, and the shape of one image.
    fraction: how many units are drawn, as a share of all; 1 is the paper's SAP-100, which keeps 63 % of equal ones.
    gradient: what an adversary differentiates.  "pruned": the weights 1[u < q] / q are constants, as in SAP;
        "identity": straight through, as if nothing were pruned; "exact": the derivative of q counts, too.
    """
    visits = find(module, ACTIVATIONS, input_shape)
    if not visits:
        raise GradDivError(f"{type(module).__name__} has no activation layer inside: SAP prunes after activations")
    sites = {name: PruningSite(visit.layer, fraction=fraction, gradient=gradient) for name, visit in visits.items()}
    return SAPNetwork(module, sites, visits, gradient=gradient)
