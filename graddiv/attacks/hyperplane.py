"""Projections to a hyperplane inside the box, in either norm: the inner problem of FAB, solved exactly."""

import torch
from jaxtyping import Float
from torch import Tensor

from graddiv.geometry import Geometry


def to_hyperplane(
    geometry: Geometry, x: Float[Tensor, "b d"], w: Float[Tensor, "b d"], b: Float[Tensor, " b"]
) -> Float[Tensor, "b d"]:
    """argmin |d|_p subject to <w, x + d> = b and low <= x + d <= high; the nearest corner if the box ends before.

    Each pixel moves towards the hyperplane, d_i = min(t |w_i|^(q-1), room_i) with one t for all, until the box stops
    it.  So sum_i |w_i| |d_i| grows with t, in straight pieces between the t at which one pixel after the other stops.
    """
    low, high = geometry.bounds
    top = w.abs().amax(1, keepdim=True)  # a hyperplane knows no scale: keeps the squares of tiny gradients apart from 0
    top = torch.where(top > 0, top, 1.0)
    gap = (b[:, None] - (w * x).sum(1, keepdim=True)) / top
    towards = w.sign() * torch.where(gap < 0, -1.0, 1.0).to(w.dtype)
    size = (w / top).abs()
    room = torch.where(towards > 0, high - x, x - low)
    speed = size ** (geometry.q - 1)
    stop = torch.where(speed > 0, room / speed, 0.0).clamp_max(torch.finfo(x.dtype).max)
    t = when_full(size * speed, stop, size * room, gap.abs())
    return towards * torch.minimum(t * speed, room)


def when_full(
    rate: Float[Tensor, "b d"], stop: Float[Tensor, "b d"], most: Float[Tensor, "b d"], goal: Float[Tensor, "b 1"]
) -> Float[Tensor, "b 1"]:
    """The t at which sum_i min(rate_i t, most_i) = goal, where most_i is reached at stop_i; the last stop if never."""
    stop, order = stop.sort(1)
    rate, most = rate.gather(1, order), most.gather(1, order)
    stopped = most.cumsum(1) - most  # by those before
    moving = rate.flip(1).cumsum(1).flip(1)  # this one and those after
    piece = (stopped + moving * stop < goal).sum(1, keepdim=True)
    last = piece.clamp_max(stop.shape[1] - 1)
    stopped, moving, stop = (values.gather(1, last) for values in (stopped, moving, stop))
    # no further than the stop: where nothing moves the quotient is 0/0 or infinite
    return torch.where(moving > 0, (goal - stopped) / moving, stop).clamp(min=0).minimum(stop)
