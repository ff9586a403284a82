"""MC dropout (Gal & Ghahramani 2016): dropout that stays active, with its masks as noise."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.randomized import Noise
from graddiv.networks.sites import Site, SiteNetwork, place, remove

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class DropoutSite(Site):
    """layer(x * keep / (1 - rate)), keep in {0, 1}: of single units before a linear layer, else of whole channels."""

    defense = "MC dropout"

    def __init__(self, layer: nn.Module, rate: float) -> None:
        super().__init__(layer)
        self.rate = rate

    def noise_shape(self, activation: tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(self.layer, CONVOLUTIONS):
            return (activation[0], *(1,) * (len(activation) - 1))
        return activation

    def perturbed(self, h: Float[Tensor, "b ..."], noise: Float[Tensor, "r ..."]) -> Float[Tensor, "b ..."]:
        return h * (noise / (1 - self.rate))

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class DropoutNetwork(SiteNetwork):
    """h <- h * keep / (1 - rate), keep ~ Bernoulli(1 - rate), before every convolution and linear layer but the first.

    The noise is the masks; their mean makes the ordinary network, with dropout switched off.  No defense by itself, but
    the cheapest randomized network to compare others with.
    """

    law = "uniform"

    def __init__(self, module: nn.Module, shapes: dict[str, tuple[int, ...]], rates: dict[str, float]) -> None:
        super().__init__(module, shapes)
        self.rates = rates

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        return {site: (u >= self.rates[site]).to(u.dtype) for site, u in super().draw(seed, batch).items()}

    def mean(self) -> dict[str, Tensor]:
        return {site: torch.ones_like(zero) * (1 - self.rates[site]) for site, zero in super().mean().items()}

    def mirrored(self, noise: Noise) -> None:
        """Masks have no opposite of the same law, but for a rate of one half."""
        return None


def mc_dropout(
    module: nn.Module, input_shape: Sequence[int], *, conv_rate: float = 0.2, dense_rate: float = 0.5
) -> DropoutNetwork:
    """Insert dropout before every convolution and linear layer of `module` (in place) but the first.

        F = mc_dropout(module, input_shape=x.shape[1:])

    Returns a `RandomizedNetwork` whose noise are the masks.  A module with dropout of its own: `randomize`.

    module: the network; layers of its own that drop out must be in eval mode, as they would draw behind the noise.
    input_shape: the shape of one image, from which the shapes of the masks follow.
    conv_rate: the share of channels that is dropped before a convolution.
    dense_rate: the share of units that is dropped before a linear layer.
    """
    for name, value in (("conv_rate", conv_rate), ("dense_rate", dense_rate)):
        if not 0 <= value < 1:
            raise GradDivError(f"{name} is {value}, expected a share in [0, 1)")
    layers = {n: m for n, m in module.named_modules() if n and isinstance(m, (*CONVOLUTIONS, nn.Linear))}
    sites = {n: DropoutSite(m, conv_rate if isinstance(m, CONVOLUTIONS) else dense_rate) for n, m in layers.items()}
    if len(sites) < 2:
        raise GradDivError(f"{type(module).__name__} has no layer after its first: there is nothing to drop")
    shapes = place(module, sites, input_shape)
    first = next(iter(shapes))
    remove(module, {first: sites[first]})  # the image itself is not dropped
    del shapes[first]
    return DropoutNetwork(
        module, {f"{n}.noise": s for n, s in shapes.items()}, {f"{n}.noise": sites[n].rate for n in shapes}
    )
