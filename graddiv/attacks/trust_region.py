"""The step of the Brendel & Bethge attack: to the point of the boundary nearest to x0, inside a trust region."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from graddiv.attacks.hyperplane import first_reach, to_hyperplane
from graddiv.geometry import Linf

ITERATIONS = 30
"""Most Newton iterations; enough for the hardest of many random problems, most of which are solved in ten."""

TOLERANCE = 1e-4
"""The share of the squared radius by which a step may leave the trust region."""


def along_hyperplane(
    geometry: Linf,
    x0: Float[Tensor, "b d"],
    x: Float[Tensor, "b d"],
    w: Float[Tensor, "b d"],
    c: Float[Tensor, " b"],
    r: Float[Tensor, " b"],
) -> Float[Tensor, "b d"]:
    """argmin |x + d - x0|_inf subject to <w, d> = c, |d|_2 <= r and low <= x + d <= high.

    Where the trust region ends before the hyperplane, d is the step inside it that comes closest to the hyperplane.

    geometry: gives the box, low and high.
    x0: the clean images, to which x + d shall be near.
    x: the points from which the step starts.
    w, c: the hyperplane, relative to x.
    r: the radius of the trust region around x.
    """
    low, high = geometry.bounds
    largest = w.abs().amax(1, keepdim=True)  # the hyperplane stays the same when w and c are scaled
    largest = torch.where(largest > 0, largest, 1.0)
    w, c, r = w / largest, c[:, None] / largest, r[:, None]
    nearest = to_hyperplane(geometry, x0, w, (w * x).sum(1) + c.squeeze(1))
    epsilon = nearest.abs().amax(1, keepdim=True)
    nearest = x0 + nearest - x
    inside = torch.linalg.vector_norm(nearest, dim=1, keepdim=True) <= r

    towards = torch.where(c < 0, -w, w)
    farthest = _longest_step(towards, torch.where(towards > 0, high - x, x - low), r)
    reached = (towards * farthest).sum(1, keepdim=True) >= c.abs()

    d = torch.where(reached, nearest, farthest)
    hard = (reached & ~inside).squeeze(1)
    if hard.any():
        d[hard] = _on_region_edge(*(values[hard] for values in (low - x, high - x, x0 - x, w, c, r, epsilon)))
    return d


def _longest_step(w: Float[Tensor, "b d"], room: Float[Tensor, "b d"], r: Float[Tensor, "b 1"]) -> Float[Tensor, "b d"]:
    """d = min(t |w|, room) sign(w) with the t at which |d|_2 = r; d takes all the room if that is shorter."""
    square = w**2
    stop = torch.where(square > 0, room**2 / square, 0.0).clamp_max(torch.finfo(w.dtype).max)
    t = first_reach(square, stop, square * stop, r**2).sqrt()
    return w.sign() * torch.minimum(t * w.abs(), room)


def _on_region_edge(
    below: Float[Tensor, "b d"],
    above: Float[Tensor, "b d"],
    to_x0: Float[Tensor, "b d"],
    w: Float[Tensor, "b d"],
    c: Float[Tensor, "b 1"],
    r: Float[Tensor, "b 1"],
    epsilon: Float[Tensor, "b 1"],
) -> Float[Tensor, "b d"]:
    """d = clip(t w) to ball and box, with the least epsilon and the t at which <w, d> = c and |d|_2 = r.

    g(t, epsilon) = |d|^2 / 2 - t (<w, d> - c) is the dual of the shortest d on the hyperplane: concave in t, convex and
    falling in epsilon.  So with g = r^2 / 2 a Newton step in epsilon never goes beyond the solution, which is the
    highest epsilon that any t demands; and once epsilon is what t demands, the sign of <w, d> - c tells on which side
    of t the solution is.

    below, above: low - x and high - x, the room that the box leaves each pixel.
    to_x0: x0 - x, the middle of the ball as seen from x.
    w, c: the hyperplane <w, d> = c.
    r: the radius of the trust region.
    epsilon: a lower bound of the ball's radius: the one that would do without a trust region.
    """
    epsilon = torch.maximum(epsilon, to_x0.abs().amax(1, keepdim=True) - r)
    unit = r / torch.linalg.vector_norm(w, dim=1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
    t = torch.zeros_like(c)
    left, right = torch.full_like(c, -math.inf), torch.full_like(c, math.inf)
    found, rows = torch.empty_like(w), torch.arange(len(w), device=w.device)
    for _ in range(ITERATIONS):
        free = t * w
        in_ball = free.clamp(to_x0 - epsilon, to_x0 + epsilon)
        d = in_ball.clamp(below, above)
        unboxed = 1 - (d - in_ball).sign().abs()
        pull = in_ball - free
        at_ball = pull.sign() * unboxed
        miss = (w * d).sum(1, keepdim=True) - c
        excess = (d * d).sum(1, keepdim=True) / 2 - t * miss - r**2 / 2
        settled = excess < TOLERANCE * r**2
        solved = settled & (miss.abs() < TOLERANCE * r**2 / unit)

        growth = (excess.clamp_min(0) / (pull * at_ball).sum(1, keepdim=True)).nan_to_num(0.0, 0.0)
        left = torch.where(settled & (miss < 0), t.maximum(left), left)
        right = torch.where(settled & (miss > 0), t.minimum(right), right)
        drift = growth * (w * at_ball).sum(1, keepdim=True)
        newton = t - (miss - drift) / (w**2 * (unboxed - at_ball.abs())).sum(1, keepdim=True)
        middle = unit * (((left / unit).atan() + (right / unit).atan()) / 2).tan()
        proposal = torch.where((newton > left) & (newton < right), newton, middle)
        t = torch.where(settled, proposal, t)
        epsilon = epsilon + growth

        if solved.any():  # few problems take long, and the others need not wait for them
            found[rows] = d
            hard = ~solved.squeeze(1)
            if not hard.any():
                return found
            rows, t, epsilon, left, right, unit, below, above, to_x0, w, c, r, d = (
                values[hard] for values in (rows, t, epsilon, left, right, unit, below, above, to_x0, w, c, r, d)
            )
    found[rows] = d
    return found
