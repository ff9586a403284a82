"""Projections to a hyperplane inside the box, in either norm: the inner problem of FAB, solved exactly."""

import torch
from jaxtyping import Float
from torch import Tensor

from graddiv.geometry import Geometry


def to_hyperplane(
    geometry: Geometry, x: Float[Tensor, "b d"], w: Float[Tensor, "b d"], b: Float[Tensor, " b"]
) -> Float[Tensor, "b d"]:
    """argmin |d|_p subject to <w, x + d> = b and low <= x + d <= high.

    Where the box ends before the hyperplane, d leads to the corner of the box nearest to it.

    Each pixel moves towards the hyperplane, d_i = min(t |w_i|^(q-1), room_i) with one t for all, until the box stops
    it.  So sum_i |w_i| |d_i| grows with t, in straight pieces between the t at which one pixel after the other stops.
    """
    low, high = geometry.bounds
    # the hyperplane stays the same when w and b are scaled; without this, squares of tiny gradients underflow
    largest = w.abs().amax(1, keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    gap = (b[:, None] - (w * x).sum(1, keepdim=True)) / largest
    towards = w.sign() * torch.where(gap < 0, -1.0, 1.0).to(w.dtype)
    size = (w / largest).abs()
    room = torch.where(towards > 0, high - x, x - low)
    speed = size ** (geometry.q - 1)
    stop = torch.where(speed > 0, room / speed, 0.0).clamp_max(torch.finfo(x.dtype).max)
    t = first_reach(size * speed, stop, size * room, gap.abs())
    return towards * torch.minimum(t * speed, room)


def first_reach(
    rate: Float[Tensor, "b d"], stop: Float[Tensor, "b d"], limit: Float[Tensor, "b d"], goal: Float[Tensor, "b 1"]
) -> Float[Tensor, "b 1"]:
    """Return the t at which sum_i min(rate_i t, limit_i) = goal, and the last stop if the sum never gets there.

    rate: how fast each summand grows with t.
    stop: the t at which each summand reaches its limit.
    limit: the greatest value of each summand.
    goal: the value that the sum is to reach.
    """
    stop, order = stop.sort(1)
    rate, limit = rate.gather(1, order), limit.gather(1, order)
    stopped = limit.cumsum(1) - limit  # the sum of the summands that stopped before
    moving = rate.flip(1).cumsum(1).flip(1)  # the rate of this summand and all that stop after it
    piece = (stopped + moving * stop < goal).sum(1, keepdim=True)
    last = piece.clamp_max(stop.shape[1] - 1)
    stopped, moving, stop = (values.gather(1, last) for values in (stopped, moving, stop))
    # No further than the stop: where nothing moves any more the quotient is 0/0 or infinite.
    return torch.where(moving > 0, (goal - stopped) / moving, stop).clamp(min=0).minimum(stop)
