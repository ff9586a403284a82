"""The step of the Brendel & Bethge attack: to the point of the boundary nearest to x0, inside a trust region."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from graddiv.attacks.hyperplane import to_hyperplane, when_full
from graddiv.geometry import Linf

ITERATIONS = 30
"""Enough for the hardest of many random problems; most are solved in ten."""

TOLERANCE = 1e-4
"""How much of the squared radius of the trust region may be overstepped."""


def along_hyperplane(
    geometry: Linf,
    x0: Float[Tensor, "b d"],
    x: Float[Tensor, "b d"],
    w: Float[Tensor, "b d"],
    c: Float[Tensor, " b"],
    r: Float[Tensor, " b"],
) -> Float[Tensor, "b d"]:
    """argmin |x + d - x0|_inf subject to <w, d> = c, |d|_2 <= r and low <= x + d <= high.

    Where the trust region ends before the hyperplane: the d that comes closest to it.
    """
    low, high = geometry.bounds
    top = w.abs().amax(1, keepdim=True)  # a hyperplane knows no scale
    top = torch.where(top > 0, top, 1.0)
    w, c, r = w / top, c[:, None] / top, r[:, None]
    nearest = to_hyperplane(geometry, x0, w, (w * x).sum(1) + c.squeeze(1))
    epsilon = nearest.abs().amax(1, keepdim=True)
    nearest = x0 + nearest - x
    inside = torch.linalg.vector_norm(nearest, dim=1, keepdim=True) <= r

    towards = torch.where(c < 0, -w, w)
    farthest = _until(towards, torch.where(towards > 0, high - x, x - low), r)
    reached = (towards * farthest).sum(1, keepdim=True) >= c.abs()

    d = torch.where(reached, nearest, farthest)
    hard = (reached & ~inside).squeeze(1)
    if hard.any():
        d[hard] = _between(*(of[hard] for of in (low - x, high - x, x0 - x, w, c, r, epsilon)))
    return d


def _until(w: Float[Tensor, "b d"], room: Float[Tensor, "b d"], r: Float[Tensor, "b 1"]) -> Float[Tensor, "b d"]:
    """d = min(t |w|, room) sign(w) with the t at which |d|_2 = r; all the room if that is shorter."""
    square = w**2
    stop = torch.where(square > 0, room**2 / square, 0.0).clamp_max(torch.finfo(w.dtype).max)
    t = when_full(square, stop, square * stop, r**2).sqrt()
    return w.sign() * torch.minimum(t * w.abs(), room)


def _between(
    below: Float[Tensor, "b d"],
    above: Float[Tensor, "b d"],
    way: Float[Tensor, "b d"],
    w: Float[Tensor, "b d"],
    c: Float[Tensor, "b 1"],
    r: Float[Tensor, "b 1"],
    epsilon: Float[Tensor, "b 1"],
) -> Float[Tensor, "b d"]:
    """d = clip(t w) to ball and box, with the least epsilon and the t at which <w, d> = c and |d|_2 = r.

    g(t, epsilon) = |d|^2 / 2 - t (<w, d> - c) is the dual of the shortest d on the hyperplane: concave in t, convex and
    falling in epsilon.  So with g = r^2 / 2 a Newton step in epsilon never goes beyond the solution, which is the
    highest epsilon that any t demands; and once epsilon is what t demands, the sign of <w, d> - c tells on which side
    of t the solution is.  `epsilon` comes as a bound from below: that of the hyperplane without a trust region.
    """
    epsilon = torch.maximum(epsilon, way.abs().amax(1, keepdim=True) - r)
    unit = r / torch.linalg.vector_norm(w, dim=1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
    t = torch.zeros_like(c)
    left, right = torch.full_like(c, -math.inf), torch.full_like(c, math.inf)
    square, negligible = w**2, TOLERANCE * r**2 / unit
    for _ in range(ITERATIONS):
        free = t * w
        in_ball = free.clamp(way - epsilon, way + epsilon)
        d = in_ball.clamp(below, above)
        unboxed = 1 - (d - in_ball).sign().abs()
        pull = in_ball - free
        at_ball = pull.sign() * unboxed
        miss = (w * d).sum(1, keepdim=True) - c
        excess = (d * d).sum(1, keepdim=True) / 2 - t * miss - r**2 / 2
        settled = excess < TOLERANCE * r**2
        solved = settled & (miss.abs() < negligible)
        if solved.all():
            break

        growth = (excess.clamp_min(0) / (pull * at_ball).sum(1, keepdim=True)).nan_to_num(0.0, 0.0)
        left = torch.where(settled & (miss < 0), t.maximum(left), left)
        right = torch.where(settled & (miss > 0), t.minimum(right), right)
        drift = growth * (w * at_ball).sum(1, keepdim=True)
        newton = t - (miss - drift) / (square * (unboxed - at_ball.abs())).sum(1, keepdim=True)
        middle = unit * (((left / unit).atan() + (right / unit).atan()) / 2).tan()
        proposal = torch.where((newton > left) & (newton < right), newton, middle)
        t = torch.where(settled & ~solved, proposal, t)
        epsilon = torch.where(solved, epsilon, epsilon + growth)
    return d
