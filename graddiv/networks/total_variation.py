"""Total-variation minimisation (Guo et al. 2018): random pixels are dropped, the image is rebuilt from the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import pad

from graddiv.errors import GradDivError
from graddiv.networks.randomized import Noise, RandomizedNetwork, SampleModel, Theta, check_noise, check_rows
from graddiv.networks.straight_through import straight_through
from graddiv.seeding import numbers

TVGradient = Literal["identity", "unrolled"]

STEP = 8**-0.5
"""Of the primal and of the dual variable: their product times |grad|^2 <= 8 must not exceed 1."""


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """argmin_z sum_i keep_i (z_i - x_i)^2 + lam sum_i |grad z|_i, by so many primal-dual steps (Chambolle & Pock 2011).

    |grad z|_i is the length of the differences to the right and below, in each channel apart.
    """

    keep: Float[Tensor, "r 1 h w"]
    """1 for pixels that are kept, 0 for dropped ones; one mask, or one for each example."""
    lam: float
    iterations: int

    def __call__(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        check_rows(len(self.keep), len(x))
        keep = self.keep.to(x.dtype)
        z = ahead = keep * x + (1 - keep) * 0.5
        right, down = torch.zeros_like(x), torch.zeros_like(x)
        for _ in range(self.iterations):
            right = right + STEP * pad(ahead[..., :, 1:] - ahead[..., :, :-1], (0, 1))
            down = down + STEP * pad(ahead[..., 1:, :] - ahead[..., :-1, :], (0, 0, 0, 1))
            shrink = (torch.stack([right, down]).square().sum(0) / self.lam**2).clamp_min(1).rsqrt()
            right, down = right * shrink, down * shrink
            divergence = right - pad(right[..., :, :-1], (1, 0)) + down - pad(down[..., :-1, :], (0, 0, 1, 0))
            new = (z + STEP * divergence + 2 * STEP * keep * x) / (1 + 2 * STEP * keep)
            z, ahead = new, 2 * new - z
        return z.clamp(0, 1)


class TotalVariationNetwork(RandomizedNetwork):
    """f(x) = module(z(x, keep)), keep ~ Bernoulli(1/2) for each pixel, shared by its channels: the noise.

    With the gradient "identity" an adversary differentiates the network at z as if z were x (BPDA); "unrolled" goes
    through the steps of the solver, which is exact and costs as many passes over the image.  The released code draws a
    mask for each channel, sets dropped pixels to 0 and takes every 0 for dropped or kept alike, so that the black
    background of MNIST always counts as kept; here the mask is a value of its own.
    """

    def __init__(
        self, module: nn.Module, shape: tuple[int, ...], *, lam: float, iterations: int, gradient: TVGradient
    ) -> None:
        super().__init__(module)
        self.shape, self.lam, self.iterations, self.gradient = shape, lam, iterations, gradient

    @property
    def proxy_gradient(self) -> bool:
        return self.gradient == "identity" or super().proxy_gradient

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        _, h, w = self.shape
        u = numbers("uniform", seed, batch, h * w, next(self.module.parameters()))
        return {"keep": (u < 0.5).to(u.dtype).reshape(-1, 1, h, w)}

    def mirrored(self, noise: Noise) -> dict[str, Tensor]:
        """Keep just the pixels that were dropped: the mean of both masks is one half everywhere."""
        return {"keep": 1 - check_noise(noise, {"keep": (None, 1, *self.shape[1:])}, self.device)["keep"]}

    def mean(self) -> dict[str, Tensor]:
        """Half weight on every pixel: the image smoothed, and nothing dropped."""
        return {"keep": next(self.module.parameters()).new_full((1, 1, *self.shape[1:]), 0.5)}

    def realise(self, noise: Noise, theta: Theta) -> dict[str, Tensor]:
        return dict(theta.parameters)

    def bind(self, noise: Noise, theta: Theta | None = None) -> SampleModel:
        keep = check_noise(noise, {"keep": (None, 1, *self.shape[1:])}, self.device)["keep"]
        rebuilt = Rebuilt(keep, self.lam, self.iterations)
        return Preceded(
            super().bind(noise, theta), rebuilt if self.gradient == "unrolled" else straight_through(rebuilt)
        )


@dataclass(frozen=True, eq=False)
class Preceded:
    """f(step(x))."""

    f: SampleModel
    step: SampleModel

    def __call__(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
        return self.f(self.step(x))


def total_variation(
    module: nn.Module,
    input_shape: Sequence[int],
    *,
    lam: float = 0.03,
    iterations: int = 50,
    gradient: TVGradient = "identity",
) -> TotalVariationNetwork:
    """Rebuild the image from half of its pixels before `module` sees it; train `module` on rebuilt images.

        F = total_variation(module, input_shape=x.shape[1:], iterations=10)

    Returns a `RandomizedNetwork` whose noise chooses the pixels.

    module: the network.
    input_shape: the shape of one image, (c, h, w).
    lam: the weight of the total variation; 0.03 in the released code.
    iterations: of the solver, always all of them.
    gradient: "identity" (BPDA) or "unrolled", what an adversary differentiates.
    """
    if not lam > 0 or iterations < 1:
        raise GradDivError(f"lam is {lam} and iterations {iterations}, expected positive numbers")
    if gradient not in get_args(TVGradient):
        raise GradDivError(f"gradient is {gradient!r}, expected one of {get_args(TVGradient)}")
    if len(input_shape) != 3:
        raise GradDivError(f"input_shape is {tuple(input_shape)}, expected (channels, height, width)")
    return TotalVariationNetwork(module, tuple(input_shape), lam=lam, iterations=iterations, gradient=gradient)
