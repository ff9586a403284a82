"""The paper's architectures, as plain modules written once.  See docs/equations.md.

C(c, k, s, p) is a convolution with c output channels, F(c) a linear layer, MP and AP are max and average pooling by 2.
"""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from graddiv.errors import GradDivError
from graddiv.networks.inputs import check_is_module, logits_of, naming_the_shape, switched
from graddiv.references import called, is_code, made
from graddiv.registries import Registry
from graddiv.seeding import isolated

Shape = tuple[int, int, int]  #: Channels, height and width of an image.


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


def mnist_cnn(width: float = 1.0, *, seed: int = 0, shape: Shape = (1, 28, 28), classes: int = 10) -> nn.Sequential:
    """C(32,3,1,1)-LReLU-C(64,3,1,1)-LReLU-MP-C(128,3,1,1)-LReLU-MP-F(1024)-LReLU-F(10), the paper's for 1 x 28 x 28."""
    a, b, c, d = (_scaled(channels, width) for channels in (32, 64, 128, 1024))
    _check_size("mnist_cnn", shape, 4)
    with isolated(seed):
        return nn.Sequential(
            *(nn.Conv2d(shape[0], a, 3, padding=1), nn.LeakyReLU()),
            *(nn.Conv2d(a, b, 3, padding=1), nn.LeakyReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(b, c, 3, padding=1), nn.LeakyReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(c * (shape[1] // 4) * (shape[2] // 4), d), nn.LeakyReLU(), nn.Linear(d, classes)),
        )


def vgg16(width: float = 1.0, *, seed: int = 0, shape: Shape = (3, 32, 32), classes: int = 10) -> nn.Sequential:
    """VGG-16 with batch norm, 13 convolutions and one linear layer, the paper's for 3 x 32 x 32."""
    _check_size("vgg16", shape, 32)
    stages = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
    layers: list[nn.Module] = []
    channels = shape[0]
    with isolated(seed):
        for stage in stages:
            for out in (_scaled(c, width) for c in stage):
                layers += _conv_bn_relu(channels, out, padding=1)
                channels = out
            layers += [nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * (shape[1] // 32) * (shape[2] // 32), classes))


def stl10_cnn(width: float = 1.0, *, seed: int = 0, shape: Shape = (3, 96, 96), classes: int = 10) -> nn.Sequential:
    """C(32,3,1,1)-BN-ReLU-MP-C(64,..)-..-MP-C(128,..)-..-MP-C(256,..)-..-MP-C(256,3,1)-BN-ReLU-C(512,3,1)-BN-ReLU-AP-F(10).

    The paper's for 3 x 96 x 96.
    """
    _check_size("stl10_cnn", shape, 96)
    left = ((shape[1] // 16 - 4) // 2) * ((shape[2] // 16 - 4) // 2)
    a, b, c, d, e, f = (_scaled(channels, width) for channels in (32, 64, 128, 256, 256, 512))
    with isolated(seed):
        return nn.Sequential(
            *(*_conv_bn_relu(shape[0], a, padding=1), nn.MaxPool2d(2)),
            *(*_conv_bn_relu(a, b, padding=1), nn.MaxPool2d(2)),
            *(*_conv_bn_relu(b, c, padding=1), nn.MaxPool2d(2)),
            *(*_conv_bn_relu(c, d, padding=1), nn.MaxPool2d(2)),
            *(*_conv_bn_relu(d, e, padding=0), *_conv_bn_relu(e, f, padding=0), nn.AvgPool2d(2)),
            *(nn.Flatten(), nn.Linear(f * left, classes)),
        )


class Architecture(NamedTuple):
    """A network before any noise is added."""

    #: build(width, seed=...) -> the module, freshly initialized; with shape=... and classes=... if it can adapt to them
    build: Callable[..., nn.Module]
    multiplications: float  #: in a forward pass of one image at width 1; they grow with the square of the width


ARCHITECTURES: Registry[Architecture] = Registry("network", {"mnist_cnn": Architecture(mnist_cnn, 35.5e6)})
ARCHITECTURES["vgg16"] = Architecture(vgg16, 313e6)
ARCHITECTURES["stl10_cnn"] = Architecture(stl10_cnn, 150e6)


def architecture(
    name: str, width: float = 1.0, *, seed: int = 0, shape: Shape | None = None, classes: int | None = None
) -> nn.Module:
    """Return a freshly initialized architecture by name, or what `file.py:name` makes.

    shape, classes: those of the images it is for, by default of the paper's.  A function of one's own is given what it
        asks for of `shape`, `channels`, `classes`, `width` and `seed`; whatever it draws is a function of the seed.
    """
    wanted = {} if shape is None or classes is None else {"shape": shape, "classes": classes}
    if name in ARCHITECTURES or not is_code(name):
        build = ARCHITECTURES[name].build
        if signature(build).parameters.keys() >= {"shape", "classes"}:
            return build(width, seed=seed, **wanted)
        module = build(width, seed=seed)
    else:
        offered = {**wanted, "channels": shape and shape[0], "width": width, "seed": seed}
        expected = "a function that makes a module"
        with isolated(seed):
            module = called(name, expected=expected, take=lambda found: made(name, found, **offered))
        check_is_module(module)
    if shape is not None and classes is not None:
        _check_fits(name, module, shape, classes)
    return module


def multiplications_of(module: nn.Module, shape: Shape) -> float:
    """Multiplications in a forward pass of one image, counted by torch."""
    with FlopCounterMode(display=False) as counter, torch.no_grad(), switched(module.modules(), training=False):
        module(torch.zeros(1, *shape))
    return float(counter.get_total_flops()) / 2


def _check_fits(name: str, module: nn.Module, shape: Shape, classes: int) -> None:
    """Refuse a module that cannot take such images, or tells fewer classes apart."""
    x = torch.zeros(2, *shape)
    with torch.no_grad(), isolated(0), switched(module.modules(), training=False), naming_the_shape(x):
        found = logits_of(module(x), name, 2).shape[1]
    if found < classes:
        raise GradDivError(f"the network {name} tells {found} classes apart, and the data have {classes}")


def _check_size(name: str, shape: Shape, least: int) -> None:
    if min(shape[1:]) < least:
        found = f"the data's have {shape[1]} x {shape[2]}"
        raise GradDivError(f"the network {name} takes images of at least {least} x {least} pixels, and {found}")


def _conv_bn_relu(channels: int, out: int, padding: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, 3, padding=padding), nn.BatchNorm2d(out), nn.ReLU()]


def _scaled(channels: int, width: float) -> int:
    if not width > 0:
        raise GradDivError(f"width is {width}, expected a positive multiplier such as 0.25")
    return max(1, round(channels * width))
