"""Rounded, thermometer-coded or JPEG-coded images: alone, and beside a path that is not coded."""

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.planted.attacks import through
from benchmarks.planted.blocks import AsIf, Channels, jpeg, rounded, soft_rounded, soft_thermometer, thermometer
from benchmarks.planted.digits import EPSILON, beside, cnn, digits, plain, trained
from benchmarks.planted.record import plant
from benchmarks.planted.toys import Linear, images, radius, shortest_way

coded = partial(plant, family="coding", images=digits, epsilon=EPSILON)

plant(
    "toy-round-64", family="coding", fault="64 gray values: no gradient anywhere",
    make=lambda: nn.Sequential(rounded(65), Linear()), images=images, epsilon=radius(0.25), find=shortest_way,
)  # fmt: skip
coded(
    "round-32", fault="32 gray values before a network trained on clean digits",
    make=lambda: nn.Sequential(rounded(32), plain()), find=through(plain),
)  # fmt: skip
coded(
    "round-6", fault="6 gray values", make=lambda: nn.Sequential(rounded(6), on_few()),
    find=through(lambda: nn.Sequential(AsIf(rounded(6), soft_rounded(6)), on_few()), restarts=2),
)  # fmt: skip


def on_few() -> nn.Module:
    """A network trained on six gray values."""
    return trained("on-few", lambda: nn.Sequential(rounded(6), cnn()))[1]


def coded_beside(step: nn.Module) -> nn.Module:
    return beside(nn.Sequential(step, plain()))


for levels in (32, 8):
    coded(
        f"round-{levels}-beside", fault=f"the half that decides sees {levels} gray values; the other half is robust",
        make=lambda levels=levels: coded_beside(rounded(levels)), partial=True,
        find=through(lambda levels=levels: coded_beside(AsIf(rounded(levels), nn.Identity()))),
    )  # fmt: skip
coded(
    "jpeg-beside", fault="the half that decides sees coarse cosine coefficients",
    make=lambda: coded_beside(jpeg(0.2)), partial=True,
    find=through(lambda: coded_beside(AsIf(jpeg(0.2), nn.Identity()))),
)  # fmt: skip
coded(
    "jpeg", fault="rounded cosine coefficients before a network trained on clean digits",
    make=lambda: nn.Sequential(jpeg(0.2), plain()),
    find=through(lambda: nn.Sequential(AsIf(jpeg(0.2), nn.Identity()), plain())),
)  # fmt: skip


def two_channels(levels: int) -> nn.Module:
    """A network that sees the image and its code, trained adversarially by the half of the gradient that there is."""
    return trained(
        f"thermometer-{levels}", lambda: nn.Sequential(Channels(nn.Identity(), thermometer(levels)), cnn(levels + 1)),
        epsilon=0.2, epochs=5,
    )  # fmt: skip


def with_code(code: nn.Module, levels: int) -> nn.Module:
    return nn.Sequential(Channels(nn.Identity(), code), two_channels(levels)[1])


coded(
    "thermometer-12-beside", partial=True,
    fault="12 thermometer channels beside the image; trained adversarially by the image's gradient alone",
    make=lambda: with_code(thermometer(12), 12),
    find=through(lambda: with_code(AsIf(thermometer(12), soft_thermometer(12)), 12)),
)  # fmt: skip
coded(
    "thermometer-10", fault="thermometer code alone",
    make=lambda: nn.Sequential(thermometer(10), on_thermometer()),
    find=through(lambda: nn.Sequential(AsIf(thermometer(10), soft_thermometer(10)), on_thermometer())),
)  # fmt: skip


def on_thermometer() -> nn.Module:
    return trained("on-thermometer", lambda: nn.Sequential(thermometer(10), cnn(10)))[1]


class Dithered(nn.Module):
    """Gray values rounded up or down by chance."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels

    def forward(self, x: Tensor) -> Tensor:
        return torch.floor(x * self.levels + torch.rand_like(x)) / self.levels


coded(
    "dithered-8", fault="8 gray values, rounded up or down by chance", random=True,
    make=lambda: nn.Sequential(Dithered(8), plain()),
    find=through(lambda: nn.Sequential(AsIf(Dithered(8), nn.Identity()), plain()), n=4),
)  # fmt: skip
coded(
    "dithered-8-beside", fault="the half that decides sees 8 gray values, rounded by chance", random=True, partial=True,
    make=lambda: coded_beside(Dithered(8)), find=through(lambda: coded_beside(AsIf(Dithered(8), nn.Identity())), n=4),
)  # fmt: skip
coded(
    "coding-control", fault="the two halves without any code", sound=True,
    make=lambda: coded_beside(nn.Identity()), find=through(lambda: coded_beside(nn.Identity()), restarts=2),
)  # fmt: skip
