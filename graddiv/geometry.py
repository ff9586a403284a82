"""The perturbation balls of the two norms, cut with the box of valid pixels, for attacks.  See docs/equations.md."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from graddiv.errors import GradDivError
from graddiv.registries import Registry

Images = Float[Tensor, "b ..."]
Labels = Int64[Tensor, " b"]
PerExample = Float[Tensor, " b"]
Uniform = Float64[Tensor, "b d"]  #: numbers in [0, 1), one for each pixel


def radius_of(epsilon: Any) -> float:
    """Convert a radius to a number."""
    try:
        return float(epsilon)
    except (TypeError, ValueError):
        raise GradDivError(f"epsilon is {epsilon!r}, expected a number such as 0.3 or 8 / 255") from None


def in_bytes(epsilon: float) -> str:
    """A hint for the error of a radius that is too large: it may be in steps of 1/255."""
    return f": {epsilon:g}/255 = {epsilon / 255:.4g} perhaps?" if 1 <= epsilon <= 255 else ""


@dataclass(frozen=True)
class Geometry(ABC):
    """B(x0, epsilon) in the l_p norm, cut with the box `bounds` of valid pixels; epsilon is one number per example."""

    bounds: tuple[float, float] = (0.0, 1.0)  #: the least and the greatest value of a pixel
    name: ClassVar[str]  #: as it stands in records
    p: ClassVar[float]  #: the exponent of the norm
    q: ClassVar[float]  #: the dual exponent, 1/p + 1/q = 1

    def norm(self, delta: Images) -> PerExample:
        """|delta|_p, per example."""
        length: Tensor = torch.linalg.vector_norm(delta.flatten(1), ord=self.p, dim=1)
        return length

    def diameter(self, pixels: int) -> float:
        """The radius that admits every image with this many pixels: the size of the box, times pixels^(1/p)."""
        return float((self.bounds[1] - self.bounds[0]) * pixels ** (1 / self.p))

    def project(self, x: Images, x0: Images, epsilon: PerExample) -> Images:
        """Project x to the ball, then clip it to the box; x0 lies in the box, so clipping never leaves the ball."""
        return (x0 + self.clip(x - x0, epsilon)).clamp(*self.bounds)

    @abstractmethod
    def shrink(self, x: Images, x0: Images, epsilon: Float64[Tensor, " b"]) -> Images:
        """Move points inside that rounding has left outside, |x - x0|_p <= epsilon: 0.3 in float32 is above 0.3."""

    @abstractmethod
    def clip(self, delta: Images, epsilon: PerExample) -> Images:
        """Return the perturbation nearest to delta with |delta|_p <= epsilon."""

    @abstractmethod
    def steepest(self, g: Images, alpha: PerExample) -> Images:
        """argmax of <g, d> over |d|_p <= alpha; it attains alpha |g|_q.  0 where g is."""

    @abstractmethod
    def random(self, u: Uniform, x0: Images, epsilon: Tensor) -> Tensor:
        """Return a uniform point of the ball around x0, clipped to the box, made of uniform numbers u in [0, 1)."""


@dataclass(frozen=True)
class Linf(Geometry):
    """max_i |delta_i| <= epsilon."""

    name, p, q = "Linf", math.inf, 1.0

    def clip(self, delta: Images, epsilon: PerExample) -> Images:
        radius = per_example(epsilon, delta)
        return delta.clamp(-radius, radius)

    def shrink(self, x: Images, x0: Images, epsilon: Float64[Tensor, " b"]) -> Images:
        radius = per_example(epsilon, x)
        edge = (x0.double() + radius * (x - x0).sign()).to(x.dtype)
        x = torch.where(_is_beyond(x, x0, radius), edge, x)
        return torch.where(_is_beyond(x, x0, radius), torch.nextafter(x, x0), x)

    def steepest(self, g: Images, alpha: PerExample) -> Images:
        return per_example(alpha, g) * g.sign()

    def random(self, u: Uniform, x0: Images, epsilon: Tensor) -> Tensor:
        delta = per_example(epsilon, x0) * (2 * u - 1).to(x0.dtype).reshape(x0.shape)
        return self.project(x0 + delta, x0, epsilon)


@dataclass(frozen=True)
class L2(Geometry):
    """sqrt(sum_i delta_i^2) <= epsilon."""

    name, p, q = "L2", 2.0, 2.0

    def clip(self, delta: Images, epsilon: PerExample) -> Images:
        length = self.norm(delta)
        return delta * per_example(torch.where(length > epsilon, epsilon / length, 1.0), delta)

    def shrink(self, x: Images, x0: Images, epsilon: Float64[Tensor, " b"]) -> Images:
        wide, part = x0.double(), torch.finfo(x.dtype).eps
        # the sum of d squares is good to d roundings
        limit = epsilon * (1 - x[0].numel() * torch.finfo(torch.float64).eps)
        while part < 1:
            delta = x.double() - wide
            beyond = per_example((self.norm(delta) > limit) & (delta != 0).flatten(1).any(1), x)
            if not beyond.any():
                return x
            x, part = torch.where(beyond, (wide + delta * (1 - part)).to(x.dtype), x), 2 * part
        return torch.where(beyond, x0, x)

    def steepest(self, g: Images, alpha: PerExample) -> Images:
        largest = g.flatten(1).abs().amax(1)  # keeps the squares of tiny gradients from underflowing
        g = g / per_example(torch.where(largest > 0, largest, 1.0), g)
        length = self.norm(g)
        return g * per_example(alpha / torch.where(length > 0, length, 1.0), g)

    def random(self, u: Uniform, x0: Images, epsilon: Tensor) -> Tensor:
        """The direction comes from normal numbers; r^d is uniform, as for uniform points, so r is near epsilon."""
        normal = torch.special.ndtri(u.clamp(2**-54, 1 - 2**-53)).to(x0.dtype).reshape(x0.shape)
        radius = epsilon * (u.sum(1) % 1).pow(1 / u.shape[1]).to(x0.dtype)  # a sum of uniforms mod 1 is uniform
        return self.project(x0 + self.steepest(normal, radius), x0, epsilon)


LINF = Linf()
NORMS: Registry[Geometry] = Registry("norm", {"linf": LINF, "l2": L2()})  #: in which perturbations are measured


def _is_beyond(x: Images, x0: Images, radius: Float64[Tensor, "b ..."]) -> Bool[Tensor, "b ..."]:
    """|x - x0| > radius in exact arithmetic: where the rounded difference is the radius, what was rounded decides."""
    a, b = x.double(), x0.double()
    difference = a - b
    part = difference - a
    lost = (a - (difference - part)) - (b + part)  # Knuth: a - b = difference + lost, exactly
    return (difference.abs() > radius) | ((difference.abs() == radius) & (lost * difference.sign() > 0))


def per_example(values: Shaped[Tensor, " b"], like: Shaped[Tensor, "b ..."]) -> Shaped[Tensor, "b ..."]:
    """Return one value per example, reshaped to broadcast against `like`."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))
