"""A rough loss: ripples, plateaus and sawteeth, whose local slope is right and does not say where the loss goes."""

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.planted.attacks import through
from benchmarks.planted.blocks import Apply
from benchmarks.planted.decoys import fixed, inside
from benchmarks.planted.digits import EPSILON, beside, digits, plain, robust
from benchmarks.planted.record import plant
from benchmarks.planted.toys import Linear, images, radius, shortest_way

rough = partial(plant, family="rough", images=digits, epsilon=EPSILON)


def rippled(height: float, length: float) -> nn.Module:
    """x + height sin(2 pi x / length): a slope of 2 pi height / length where the image's own is 1."""
    return Apply(lambda x: x + height * torch.sin(2 * torch.pi * x / length))


def sawtooth(length: float, slope: float, places: Tensor | None = None) -> nn.Module:
    """A function near x whose slope is -slope nearly everywhere: it jumps up once a length."""

    def teeth(x: Tensor) -> Tensor:
        within = x / length - torch.floor(x / length).detach()
        toothed = x - (1 + slope) * length * (within - 0.5)
        return toothed if places is None else torch.where(places, toothed, x)

    return Apply(teeth)


def plateaus(length: float, rise: float) -> nn.Module:
    """A staircase in which a share of the length rises, and the rest is all but flat."""

    def stairs(x: Tensor) -> Tensor:
        t = x / length
        below = torch.floor(t).detach()
        up = ((t - below - 0.5) / rise).clamp(-0.5, 0.5) + 0.5
        return length * (below + up) + 0.01 * x

    return Apply(stairs)


def rough_beside(step: nn.Module) -> nn.Module:
    return beside(nn.Sequential(step, plain()))


plant(
    "toy-shattered", family="rough", fault="a ripple too small to change an answer and too steep to follow",
    make=lambda: nn.Sequential(rippled(0.01, 0.002), Linear()), images=images, epsilon=radius(0.25), find=shortest_way,
)  # fmt: skip
plant(
    "toy-sawtooth", family="rough", fault="a sawtooth: every slope is reversed, the image is nearly the same",
    make=lambda: nn.Sequential(sawtooth(0.02, 1.0), Linear()), images=images, epsilon=radius(0.25), find=shortest_way,
    partial=True,
)  # fmt: skip
rough(
    "ripple-fine",
    fault="a ripple of length 0.002",
    find=through(plain),
    make=lambda: nn.Sequential(rippled(0.003, 0.002), plain()),
)
rough(
    "ripple-coarse", fault="a ripple of length 0.04", find=through(plain), partial=True,
    make=lambda: nn.Sequential(rippled(0.02, 0.04), plain()),
)  # fmt: skip
rough(
    "ripple-beside", fault="the half that decides sees a ripple of length 0.02; the other half is robust", partial=True,
    make=lambda: rough_beside(rippled(0.012, 0.02)), find=through(lambda: beside(plain())),
)  # fmt: skip
rough(
    "sawtooth", fault="the slope of every pixel is reversed by a sawtooth of length 0.03", partial=True,
    make=lambda: nn.Sequential(sawtooth(0.03, 1.0), plain()), find=through(plain),
)  # fmt: skip
rough(
    "sawtooth-half", partial=True, fault="the slope of half of the pixels is reversed by a sawtooth",
    make=lambda: nn.Sequential(sawtooth(0.03, 1.0, fixed(28, 28, share=0.5)), plain()), find=through(plain),
    epsilon=0.1,
)  # fmt: skip
rough(
    "sawtooth-beside", fault="the half that decides sees a sawtooth; the other half is robust", partial=True,
    make=lambda: rough_beside(sawtooth(0.03, 0.3)), find=through(lambda: beside(plain())),
)  # fmt: skip
rough(
    "sawtooth-features", fault="hidden features with a sawtooth in most channels", partial=True, find=through(plain),
    make=lambda: inside(plain(), 4, sawtooth(0.05, 1.0, (torch.arange(16) < 11)[:, None, None])),
)  # fmt: skip
rough(
    "plateaus", fault="a staircase of length 0.05 that rises within a fifth of it", find=through(plain),
    make=lambda: nn.Sequential(plateaus(0.05, 0.2), plain()), partial=True,
)  # fmt: skip
rough(
    "plateaus-beside", fault="the half that decides sees a staircase that rises within a twentieth",
    make=lambda: rough_beside(plateaus(0.05, 0.05)), find=through(lambda: beside(plain())), partial=True,
)  # fmt: skip
rough(
    "rough-control", fault="a ripple too flat to turn a slope, before a robust network", sound=True,
    make=lambda: nn.Sequential(rippled(0.01, 0.15), robust()),
    find=through(lambda: nn.Sequential(rippled(0.01, 0.15), robust()), restarts=2),
)  # fmt: skip
