"""The paper's architectures, as plain modules written once.  See docs/equations.md.

C(c, k, s, p) is a convolution with c output channels, F(c) a linear layer, MP and AP are max and average pooling by 2.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.registries import Registry
from graddiv.seeding import isolated


class Normalize(nn.Module):
    """(x - mean) / std per channel, as a layer: attacks and data stay in pixel units."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return (x - self.mean) / self.std


def mnist_cnn(width: float = 1.0, *, seed: int = 0) -> nn.Sequential:
    """C(32,3,1,1)-LReLU-C(64,3,1,1)-LReLU-MP-C(128,3,1,1)-LReLU-MP-F(1024)-LReLU-F(10), for 1 x 28 x 28."""
    a, b, c, d = (_scaled(channels, width) for channels in (32, 64, 128, 1024))
    with isolated(seed):
        return nn.Sequential(
            *(nn.Conv2d(1, a, 3, padding=1), nn.LeakyReLU()),
            *(nn.Conv2d(a, b, 3, padding=1), nn.LeakyReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(b, c, 3, padding=1), nn.LeakyReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(c * 7 * 7, d), nn.LeakyReLU(), nn.Linear(d, 10)),
        )


def vgg16(width: float = 1.0, *, seed: int = 0) -> nn.Sequential:
    """VGG-16 with batch norm, 13 convolutions and one linear layer, for 3 x 32 x 32."""
    stages = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
    layers: list[nn.Module] = []
    channels = 3
    with isolated(seed):
        for stage in stages:
            for out in (_scaled(c, width) for c in stage):
                layers += _conv_bn_relu(channels, out, padding=1)
                channels = out
            layers += [nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, 10))


def stl10_cnn(width: float = 1.0, *, seed: int = 0) -> nn.Sequential:
    """C(32,3,1,1)-BN-ReLU-MP-C(64,..)-..-MP-C(128,..)-..-MP-C(256,..)-..-MP-C(256,3,1)-BN-ReLU-C(512,3,1)-BN-ReLU-AP-F(10).

    For 3 x 96 x 96.
    """
    a, b, c, d, e, f = (_scaled(channels, width) for channels in (32, 64, 128, 256, 256, 512))
    with isolated(seed):
        return nn.Sequential(
            *(*_conv_bn_relu(3, a, padding=1), nn.MaxPool2d(2)),
            *(*_conv_bn_relu(a, b, padding=1), nn.MaxPool2d(2)),
            *(*_conv_bn_relu(b, c, padding=1), nn.MaxPool2d(2)),
            *(*_conv_bn_relu(c, d, padding=1), nn.MaxPool2d(2)),
            *(*_conv_bn_relu(d, e, padding=0), *_conv_bn_relu(e, f, padding=0), nn.AvgPool2d(2)),
            *(nn.Flatten(), nn.Linear(f, 10)),
        )


class Architecture(NamedTuple):
    """A network before any noise is added."""

    build: Callable[..., nn.Module]  #: build(width, seed=...) -> the module, freshly initialized
    multiplications: float  #: in a forward pass of one image at width 1; they grow with the square of the width


ARCHITECTURES: Registry[Architecture] = Registry("network", {"mnist_cnn": Architecture(mnist_cnn, 35.5e6)})
ARCHITECTURES["vgg16"] = Architecture(vgg16, 313e6)
ARCHITECTURES["stl10_cnn"] = Architecture(stl10_cnn, 150e6)


def architecture(name: str, width: float = 1.0, *, seed: int = 0) -> nn.Module:
    """Return a freshly initialized architecture by name."""
    return ARCHITECTURES[name].build(width, seed=seed)


def _conv_bn_relu(channels: int, out: int, padding: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, 3, padding=padding), nn.BatchNorm2d(out), nn.ReLU()]


def _scaled(channels: int, width: float) -> int:
    if not width > 0:
        raise GradDivError(f"width is {width}, expected a positive multiplier such as 0.25")
    return max(1, round(channels * width))
