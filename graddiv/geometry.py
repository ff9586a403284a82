"""The perturbation balls of the three norms, cut with the box of valid pixels, for attacks.  See docs/equations.md."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from graddiv.errors import GradDivError, unknown
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

    def shrink(self, x: Images, x0: Images, epsilon: Float64[Tensor, " b"]) -> Images:
        """Move points inside that rounding has left outside, |x - x0|_p <= epsilon: 0.3 in float32 is above 0.3."""
        wide, part = x0.double(), torch.finfo(x.dtype).eps
        # the sum of d terms is good to d roundings
        limit = epsilon * (1 - x[0].numel() * torch.finfo(torch.float64).eps)
        while part < 1:
            delta = x.double() - wide
            beyond = per_example((self.norm(delta) > limit) & (delta != 0).flatten(1).any(1), x)
            if not beyond.any():
                return x
            x, part = torch.where(beyond, (wide + delta * (1 - part)).to(x.dtype), x), 2 * part
        return torch.where(beyond, x0, x)

    @abstractmethod
    def clip(self, delta: Images, epsilon: PerExample) -> Images:
        """Return the perturbation nearest to delta with |delta|_p <= epsilon."""

    @abstractmethod
    def steepest(self, g: Images, alpha: PerExample) -> Images:
        """argmax of <g, d> over |d|_p <= alpha; it attains alpha |g|_q.  0 where g is."""

    def step(self, x: Images, g: Images, alpha: PerExample) -> Images:
        """Return x after a steepest step; it may leave the box, to which a projection leads back."""
        return x + self.steepest(g, alpha)

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


@dataclass(frozen=True)
class L1(Geometry):
    """sum_i |delta_i| <= epsilon."""

    name, p, q = "L1", 1.0, math.inf

    def clip(self, delta: Images, epsilon: PerExample) -> Images:
        return self._nearest(delta, torch.full_like(delta, math.inf), epsilon)

    def project(self, x: Images, x0: Images, epsilon: PerExample) -> Images:
        """Return the nearest point of ball and box; clipping after a projection to the ball would not lead there."""
        room = torch.where(x > x0, self.bounds[1] - x0, x0 - self.bounds[0])
        return (x0 + self._nearest(x - x0, room, epsilon)).clamp(*self.bounds)

    def _nearest(self, delta: Images, room: Images, epsilon: PerExample) -> Images:
        """argmin |d - delta|_2 over |d|_1 <= epsilon, |d_i| <= room_i: min(|delta_i| - t, room_i), but at least 0.

        As t grows from 0, pixel i begins to lose at |delta_i| - room_i and ends at |delta_i|: what is lost grows in
        straight pieces between these.
        """
        size, least = delta.flatten(1).abs().double(), room.flatten(1).double()
        bends, order = torch.cat([(size - least).clamp_min(0), size], 1).sort(1)
        losing = torch.cat([torch.ones_like(size), -torch.ones_like(size)], 1).gather(1, order).cumsum(1)
        lost = torch.nn.functional.pad((losing[:, :-1] * bends.diff()).cumsum(1), (1, 0))
        excess = torch.minimum(size, least).sum(1, keepdim=True) - epsilon.double()[:, None]
        piece = ((lost < excess).sum(1, keepdim=True) - 1).clamp_min(0)
        bend, slope, before = (values.gather(1, piece) for values in (bends, losing, lost))
        t = torch.where(excess > 0, bend + (excess - before) / slope.clamp_min(1), 0.0)
        return (delta.sign().flatten(1) * torch.minimum((size - t).clamp_min(0), least)).to(delta).view_as(delta)

    def steepest(self, g: Images, alpha: PerExample) -> Images:
        """The whole step in the pixel of the largest entry, the first of several."""
        return self._filled(g, torch.full_like(g, math.inf), alpha)

    def step(self, x: Images, g: Images, alpha: PerExample) -> Images:
        """x + argmax of <g, d> over |d|_1 <= alpha and x + d in the box (Croce & Hein 2021): the best pixels move.

        The pixels of the largest |g_i| go to the end of the box, one after the other, until alpha is used up.
        """
        return x + self._filled(g, torch.where(g > 0, self.bounds[1] - x, x - self.bounds[0]), alpha)

    def _filled(self, g: Images, room: Images, alpha: PerExample) -> Images:
        lengths = filled(g.flatten(1).abs(), room.flatten(1), torch.ones_like(g.flatten(1)), alpha[:, None])
        return g.sign() * lengths.view_as(g)

    def random(self, u: Uniform, x0: Images, epsilon: Tensor) -> Tensor:
        """The direction comes from exponential numbers with random signs; the radius as in L2."""
        centred = 2 * u - 1
        laplace = -centred.sign() * torch.log1p(-centred.abs().clamp_max(1 - 2**-53))
        unit = laplace / laplace.abs().sum(1, keepdim=True).clamp_min(2**-53)
        radius = epsilon * (u.sum(1) % 1).pow(1 / u.shape[1]).to(x0.dtype)
        return self.project(x0 + per_example(radius, x0) * unit.to(x0.dtype).reshape(x0.shape), x0, epsilon)


LINF = Linf()
NORMS: Registry[Geometry] = Registry("norm", {"linf": LINF, "l2": L2()})  #: in which perturbations are measured


def geometry_named(name: str) -> Geometry:
    """The norm of that name, with pixels in [0, 1]."""
    known = {**NORMS, "l1": L1()}
    if name.lower() not in known:
        raise unknown("norm", name, known)
    return known[name.lower()]


def filled(
    size: Float[Tensor, "b d"], room: Float[Tensor, "b d"], rate: Float[Tensor, "b d"], goal: Float[Tensor, "b 1"]
) -> Float[Tensor, "b d"]:
    """Lengths d with sum_i rate_i d_i = goal: all the room of the pixels of largest size, the last of them in part."""
    order = size.sort(stable=True, dim=1, descending=True).indices
    size, room, rate = size.gather(1, order), room.gather(1, order), rate.gather(1, order)
    before = torch.nn.functional.pad((rate * room)[:, :-1].cumsum(1), (1, 0))  # what larger ones contribute
    lengths = torch.where(size > 0, ((goal - before) / rate).clamp_min(0).minimum(room), 0.0)
    return torch.zeros_like(lengths).scatter(1, order, lengths)


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
