"""Medians, sorting, hashing, integers and tables: steps with a discrete choice inside."""

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.planted.attacks import through
from benchmarks.planted.blocks import Apply, AsIf, Lookup, SoftLookup, mean_filter, median
from benchmarks.planted.digits import EPSILON, beside, cnn, digits, plain, robust, trained
from benchmarks.planted.record import plant
from benchmarks.planted.toys import Linear, images, radius, shortest_way

sorting = partial(plant, family="sorting", images=digits, epsilon=EPSILON)
PRIME = 40503


def hashed(x: Tensor) -> Tensor:
    """x, moved by up to 0.02 in each pixel, by a hash of its gray value: it changes with every gray level."""
    number = (x * 255).round().to(torch.int64)
    return (x * 255).round() / 255 + 0.04 * (((number * PRIME) % 256) / 255 - 0.5)


def integers(x: Tensor) -> Tensor:
    """Bytes with the last two bits cut off."""
    return ((x * 255).to(torch.uint8) // 4 * 4).to(x.dtype) / 255


def ranks(x: Tensor) -> Tensor:
    """How many pixels of a few random ones each pixel is brighter than, as a share."""
    probes = x.flatten(2)[:, :, ::24]
    return (x[..., None] > probes[:, :, None, None] + 0.02).to(x.dtype).mean(4)


def soft_ranks(x: Tensor) -> Tensor:
    probes = x.flatten(2)[:, :, ::24]
    return torch.sigmoid(12 * (x[..., None] - probes[:, :, None, None] - 0.02)).mean(4)


def looked_up(soft: bool = False) -> nn.Module:
    """A network trained on a table of 12 learned vectors."""
    hard = trained("looked-up", lambda: nn.Sequential(Lookup(12), cnn(2)))
    if not soft:
        return hard
    table = SoftLookup(12)
    table.load_state_dict(hard[0].state_dict())
    return nn.Sequential(AsIf(hard[0], table), hard[1])


class Pooled(nn.Module):
    """The largest pixel of each window of 2 x 2, as one of 8 gray values that a table has."""

    def __init__(self, *, soft: bool = False) -> None:
        super().__init__()
        self.soft, self.values = soft, torch.linspace(0, 1, 8)

    def forward(self, x: Tensor) -> Tensor:
        top = nn.functional.max_pool2d(x, 2)
        if self.soft:
            return nn.functional.interpolate(top, scale_factor=2)
        table = self.values[(8 * top).long().clamp_max(7)]
        return nn.functional.interpolate(table, scale_factor=2)


def on_pooled() -> nn.Module:
    return trained("on-pooled", lambda: nn.Sequential(Pooled(), cnn()))[1]


plant(
    "toy-hashed", family="sorting", fault="pixels are moved by a hash of their gray value",
    make=lambda: nn.Sequential(Apply(hashed), Linear()), images=images, epsilon=radius(0.25), find=shortest_way,
)  # fmt: skip
sorting(
    "hashed", fault="pixels are moved by a hash of their gray value", find=through(plain),
    make=lambda: nn.Sequential(Apply(hashed), plain()),
)  # fmt: skip
sorting(
    "hashed-beside", fault="the half that decides sees hashed pixels; the other half is robust", partial=True,
    make=lambda: beside(nn.Sequential(Apply(hashed), plain())),
    find=through(lambda: beside(plain())),
)  # fmt: skip
sorting(
    "integers", fault="a cast to bytes without the last two bits", find=through(plain),
    make=lambda: nn.Sequential(Apply(integers), plain()),
)  # fmt: skip
sorting(
    "integers-beside", fault="the half that decides sees bytes; the other half is robust", partial=True,
    make=lambda: beside(nn.Sequential(Apply(integers), plain())),
    find=through(lambda: beside(plain())),
)  # fmt: skip
sorting(
    "lookup", fault="brightness is looked up in a table of 12 vectors", make=looked_up,
    find=through(lambda: looked_up(soft=True)),
)  # fmt: skip
sorting(
    "lookup-beside", fault="the half that decides looks brightness up in a table; the other half is robust",
    make=lambda: beside(looked_up()), partial=True,
    find=through(lambda: beside(looked_up(soft=True))),
)  # fmt: skip
sorting(
    "pooled-lookup-beside", fault="the half that decides pools the image and looks it up in a table", partial=True,
    make=lambda: beside(nn.Sequential(Pooled(), on_pooled())),
    find=through(lambda: beside(nn.Sequential(AsIf(Pooled(), Pooled(soft=True)), on_pooled())), restarts=2),
)  # fmt: skip
sorting(
    "ranks-beside", fault="the half that decides sees the ranks of pixels, by comparisons; the other half is robust",
    make=lambda: beside(nn.Sequential(Apply(ranks), on_ranks())), partial=True,
    find=through(lambda: beside(nn.Sequential(AsIf(Apply(ranks), Apply(soft_ranks)), on_ranks())), restarts=2),
)  # fmt: skip


def on_ranks() -> nn.Module:
    return trained("on-ranks", lambda: nn.Sequential(Apply(ranks), cnn()))[1]


sorting(
    "median", fault="a median filter with its gradient, which follows one pixel of a window at a time",
    make=lambda: nn.Sequential(median(), on_median()),
    find=through(
        lambda: nn.Sequential(median(), on_median()),
        lambda: nn.Sequential(AsIf(median(), mean_filter()), on_median()), restarts=2,
    ),
)  # fmt: skip


def on_median() -> nn.Module:
    return trained("on-median", lambda: nn.Sequential(median(), cnn()))[1]


sorting(
    "mean-control", fault="a mean filter in place of the median", sound=True,
    make=lambda: nn.Sequential(mean_filter(), robust()),
    find=through(lambda: nn.Sequential(mean_filter(), robust()), restarts=2),
)  # fmt: skip
