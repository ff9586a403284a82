"""Compress or rebuild the image before the network sees it (Guo et al. 2018): fewer bits, JPEG, total variation.

All have the identity for a gradient (`straight_through`): exact forward, BPDA backward.  See docs/zoo.md.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import pad

from graddiv.errors import GradDivError
from graddiv.networks.defense import defense
from graddiv.networks.images import InputNoise
from graddiv.networks.randomized import Dirac, SampleModel, straight_through
from graddiv.registries import Count, Positive, Range

TVGradient = Literal["identity", "unrolled"]
Bits = Annotated[int, Range(ge=1, le=8)]
Quality = Annotated[int, Range(ge=1, le=100)]

STEP = 8**-0.5  #: of the primal and of the dual variable: their product times |grad|^2 <= 8 must not exceed 1


def quantized(x: Float[Tensor, "..."], bits: int) -> Float[Tensor, "..."]:
    """round(x (2^bits - 1)) / (2^bits - 1)."""
    levels = float(2**bits - 1)
    return (x * levels).round() / levels


LUMINANCE = (
    *(16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56),
    *(14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMINANCE = (
    *(17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99),
    *(47, 66, 99, 99, 99, 99, 99, 99, *(99,) * 32),
)
"""The quantization tables of the JPEG standard (annex K), row by row."""


def jpeg(x: Float[Tensor, "b c h w"], quality: int) -> Float[Tensor, "b c h w"]:
    """x -> 8 x 8 cosine transform -> round(. / Q) Q -> back, in YCbCr, for pixels in [0, 1].

    Without the subsampling of color; images are continued at their edges to multiples of 8.
    """
    b, c, h, w = x.shape
    planes = pad(_ycc(x * 255).round() - 128, (0, -w % 8, 0, -h % 8), mode="replicate")
    blocks = planes.reshape(b, c, -1, 8, planes.shape[3] // 8, 8).transpose(3, 4)
    D, Q = _cosines(x), _tables(quality, x)[[0, *[1] * (c - 1)], None, None]
    blocks = D.mT @ ((D @ blocks @ D.mT / Q).round() * Q) @ D
    planes = blocks.transpose(3, 4).reshape(planes.shape)[:, :, :h, :w]
    return _rgb((planes + 128).round().clamp(0, 255)) / 255


def _tables(quality: int, like: Tensor) -> Float[Tensor, "2 8 8"]:
    """Return floor((S Q + 50) / 100), at least 1, with S = 5000 / quality below 50 and 200 - 2 quality above."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    values = torch.tensor([LUMINANCE, CHROMINANCE], dtype=torch.float64).mul(scale).add(50).div(100).floor()
    return values.clamp(1, 255).reshape(2, 8, 8).to(like)


def _ycc(x: Tensor) -> Tensor:
    """Return luminance, and where there are colors the two chrominances, around 128."""
    if x.shape[1] == 1:
        return x
    r, g, b = x.unbind(1)
    y = 0.299 * r + 0.587 * g + 0.114 * b
    return torch.stack([y, (b - y) / 1.772 + 128, (r - y) / 1.402 + 128], 1)


def _rgb(ycc: Tensor) -> Tensor:
    if ycc.shape[1] == 1:
        return ycc
    y, cb, cr = ycc[:, 0], ycc[:, 1] - 128, ycc[:, 2] - 128
    r, b = y + 1.402 * cr, y + 1.772 * cb
    return torch.stack([r, (y - 0.299 * r - 0.114 * b) / 0.587, b], 1).round().clamp(0, 255)


def _cosines(like: Tensor) -> Float[Tensor, "8 8"]:
    """D_ki = cos(pi k (2i + 1) / 16) / 2, its first row divided by sqrt 2: the orthogonal cosine transform."""
    k, i = torch.arange(8, dtype=torch.float64)[:, None], torch.arange(8, dtype=torch.float64)
    D = torch.cos(math.pi * k * (2 * i + 1) / 16) / 2
    D[0] /= math.sqrt(2)
    return D.to(like)


@defense("compression", random=False)
def compressed(module: nn.Module, *, bits: Bits | None = None, quality: Quality | None = None) -> Dirac:
    """Put a compression before `module`: fewer `bits` per pixel, JPEG of this `quality`, or both, in this order.

        F = compressed(module, bits=3)

    Returns a `Dirac` network whose gradient is that of a stand-in: compression has none (`straight_through`).

    module: the network; train it on compressed images, as Guo et al. do.
    bits, quality: 1 to 8, 3 being usual; 1 to 100, 75 in the released code.
    """
    if bits is None and quality is None:
        raise GradDivError("neither bits nor quality is given, expected at least one of them")
    steps = [partial(quantized, bits=bits)] if bits else []
    steps += [partial(jpeg, quality=quality)] if quality else []
    return Dirac(nn.Sequential(*map(straight_through, steps), module))


def rebuilt(
    x: Float[Tensor, "b c h w"], keep: Float[Tensor, "r 1 h w"], lam: float, iterations: int
) -> Float[Tensor, "b c h w"]:
    """argmin_z sum_i keep_i (z_i - x_i)^2 + lam sum_i |grad z|_i, by primal-dual steps (Chambolle & Pock 2011).

    |grad z|_i is the length of the differences to the right and below, in each channel apart; keep is 0 where dropped.
    """
    keep = keep.to(x.dtype)
    z = ahead = keep * x + (1 - keep) * 0.5
    right, down = torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(iterations):
        right = right + STEP * pad(ahead[..., :, 1:] - ahead[..., :, :-1], (0, 1))
        down = down + STEP * pad(ahead[..., 1:, :] - ahead[..., :-1, :], (0, 0, 0, 1))
        shrink = (torch.stack([right, down]).square().sum(0) / lam**2).clamp_min(1).rsqrt()
        right, down = right * shrink, down * shrink
        divergence = right - pad(right[..., :, :-1], (1, 0)) + down - pad(down[..., :-1, :], (0, 0, 1, 0))
        new = (z + STEP * divergence + 2 * STEP * keep * x) / (1 + 2 * STEP * keep)
        z, ahead = new, 2 * new - z
    return z.clamp(0, 1)


class TotalVariationNetwork(InputNoise):
    """f(x) = module(z(x, keep)), keep ~ Bernoulli(1/2) for each pixel, shared by its channels: the noise.

    The gradient "identity" is that of the network at z as if z were x (BPDA); "unrolled" goes through the solver.
    """

    law = "uniform"
    lam: float
    iterations: int
    gradient: TVGradient

    @property
    def proxy_gradient(self) -> bool:
        return self.gradient == "identity" or super().proxy_gradient

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        return {name: (u < 0.5).to(u.dtype) for name, u in super().draw(seed, batch).items()}

    def mean(self) -> dict[str, Tensor]:  # half weight on every pixel: the image smoothed, and nothing dropped
        return {name: zero + 0.5 for name, zero in super().mean().items()}

    def changed(self, x: Tensor, noise: Mapping[str, Tensor], f: SampleModel) -> Tensor:
        step = partial(rebuilt, keep=noise["keep"], lam=self.lam, iterations=self.iterations)
        return step(x) if self.gradient == "unrolled" else straight_through(step)(x)


@defense("total_variation")
def total_variation(
    module: nn.Module,
    input_shape: Sequence[int],
    *,
    lam: Positive = 0.03,
    iterations: Count = 50,
    gradient: TVGradient = "identity",
) -> TotalVariationNetwork:
    """Rebuild the image from half of its pixels before `module` sees it; train `module` on rebuilt images.

        F = total_variation(module, input_shape=x.shape[1:], iterations=10)

    Returns a `RandomizedNetwork` whose noise chooses the pixels.

    module, input_shape: the network, and the shape of one image, (c, h, w).
    lam, iterations: the weight of the total variation, 0.03 in the released code, and the steps of the solver.
    gradient: "identity" (BPDA) or "unrolled", what an adversary differentiates.
    """
    if len(input_shape) != 3:
        raise GradDivError(f"input_shape is {tuple(input_shape)}, expected (channels, height, width)")
    shapes = {"keep": (1, *input_shape[1:])}
    return TotalVariationNetwork(module, shapes, lam=lam, iterations=iterations, gradient=gradient)
