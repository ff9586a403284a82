"""Compression of the image before the network sees it (Guo et al. 2018): fewer bits, or JPEG.  Nothing is random.

Both have the identity for a gradient (`straight_through`): exact forward, BPDA backward, and every record says that the
gradient is a proxy.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from graddiv.errors import GradDivError
from graddiv.networks.randomized import Dirac
from graddiv.networks.straight_through import straight_through


@dataclass(frozen=True)
class BitDepth:
    """round(x (2^bits - 1)) / (2^bits - 1).

    Of three quantizers in released code this is the one that keeps black and white; another truncates the low bits, a
    third has one level too many.
    """

    bits: int

    def __call__(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        levels = 2**self.bits - 1
        quantized: Tensor = torch.round(x * levels) / levels
        return quantized


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


@dataclass(frozen=True)
class JPEG:
    """x -> 8 x 8 cosine transform -> round(. / Q) Q -> back, in YCbCr, for pixels in [0, 1].

    Without the subsampling of colour, and without the entropy coding, which loses nothing; images are continued at
    their edges to multiples of 8.
    """

    quality: int

    def __call__(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        b, c, h, w = x.shape
        planes = pad(self._ycc(x * 255).round() - 128, (0, -w % 8, 0, -h % 8), mode="replicate")
        high, wide = planes.shape[2] // 8, planes.shape[3] // 8
        blocks = planes.reshape(b, c, high, 8, wide, 8).transpose(3, 4)
        D = _cosines(x)
        Q = torch.stack([self._table(LUMINANCE, x), *[self._table(CHROMINANCE, x)] * (c - 1)])[:, None, None]
        blocks = D.mT @ ((D @ blocks @ D.mT / Q).round() * Q) @ D
        planes = blocks.transpose(3, 4).reshape(b, c, 8 * high, 8 * wide)[:, :, :h, :w]
        return self._rgb((planes + 128).round().clamp(0, 255)) / 255

    def _table(self, table: tuple[int, ...], like: Tensor) -> Float[Tensor, "8 8"]:
        """Return floor((S Q + 50) / 100), at least 1, with S = 5000 / quality below 50 and 200 - 2 quality above."""
        scale = 5000 // self.quality if self.quality < 50 else 200 - 2 * self.quality
        values = torch.tensor(table, dtype=torch.float64).mul(scale).add(50).div(100).floor().clamp(1, 255)
        return values.reshape(8, 8).to(like)

    def _ycc(self, x: Tensor) -> Tensor:
        """Return luminance, and where there are colours the two chrominances, around 128."""
        if x.shape[1] == 1:
            return x
        r, g, b = x.unbind(1)
        y = 0.299 * r + 0.587 * g + 0.114 * b
        return torch.stack([y, (b - y) / 1.772 + 128, (r - y) / 1.402 + 128], 1)

    def _rgb(self, ycc: Tensor) -> Tensor:
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


def compressed(module: nn.Module, *, bits: int | None = None, quality: int | None = None) -> Dirac:
    """Put a compression before `module`: to so many bits a pixel, or JPEG of that quality, or first the one, then JPEG.

        F = compressed(module, bits=3)

    Returns a `Dirac` network whose gradient is that of a stand-in: compression has none (`straight_through`).

    module: the network; train it on compressed images, as Guo et al. do.
    bits: 1 to 8; 3 is usual.
    quality: 1 to 100; 75 in the released code.
    """
    if bits is None and quality is None:
        raise GradDivError("neither bits nor quality is given, expected at least one of them")
    if bits is not None and not 1 <= bits <= 8:
        raise GradDivError(f"bits is {bits}, expected 1 to 8")
    if quality is not None and not 1 <= quality <= 100:
        raise GradDivError(f"quality is {quality}, expected 1 to 100")
    steps = [step for step in (bits and BitDepth(bits), quality and JPEG(quality)) if step]
    return Dirac(nn.Sequential(*(straight_through(step) for step in steps), module))
