"""Backward passes that are replaced: a decoy's gradient, or the right one scaled, turned, cut or reversed in part."""

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.planted.attacks import through
from benchmarks.planted.blocks import AsIf, Backward, Blind, Sum
from benchmarks.planted.digits import EPSILON, digits, plain, robust
from benchmarks.planted.record import plant
from benchmarks.planted.toys import Linear, images, radius, shortest_way
from graddiv.seeding import generator

decoy = partial(plant, family="decoy", images=digits, epsilon=EPSILON)
NEAR = 0.1
"""A radius at which little transfers from one network to another."""


def fixed(*shape: int, share: float, seed: int = 5) -> Tensor:
    """A fixed random choice of a share of the places."""
    return torch.rand(shape, generator=generator(seed)) < share


def reversed_at(places: Tensor) -> Backward:
    """The gradient turned around at these places."""
    return Backward(lambda g, x: torch.where(places, -g, g))


class OfConfidence(nn.Module):
    """Right gradients where the network is sure of its answer, another network's where it is not."""

    def __init__(self, inner: nn.Module, decoy: nn.Module, least: float) -> None:
        super().__init__()
        self.inner, self.least = inner, least
        self.other = AsIf(inner, decoy)

    def forward(self, x: Tensor) -> Tensor:
        z = self.inner(x)
        first, second = z.detach().topk(2, dim=1).values.unbind(1)
        return torch.where((first - second > self.least)[:, None], z, self.other(x))


class OfImage(nn.Module):
    """Another network's gradient for images of more ink than a threshold."""

    def __init__(self, inner: nn.Module, decoy: nn.Module, ink: float) -> None:
        super().__init__()
        self.inner, self.other, self.ink = inner, AsIf(inner, decoy), ink

    def forward(self, x: Tensor) -> Tensor:
        dark = x.detach().flatten(1).mean(1) > self.ink
        return torch.where(dark[:, None], self.other(x), self.inner(x))


class ByChance(nn.Module):
    """Another network's gradient in half of the calls; the values are always the same."""

    def __init__(self, inner: nn.Module, decoy: nn.Module) -> None:
        super().__init__()
        self.inner, self.other = inner, AsIf(inner, decoy)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(x) if float(torch.rand(())) < 0.9 else self.inner(x)


class NoisyGradient(nn.Module):
    """Noise in the gradient alone, drawn at each call and far larger than the gradient."""

    def __init__(self, inner: nn.Module, sigma: float = 20.0) -> None:
        super().__init__()
        self.inner, self.sigma = inner, sigma

    def forward(self, x: Tensor) -> Tensor:
        z = self.inner(x)
        noise = self.sigma * torch.randn_like(x)
        nothing = (noise * (x - x.detach())).flatten(1).sum(1, keepdim=True)
        return z + nothing * torch.linspace(-1, 1, z.shape[1])


def inside(module: nn.Module, layer: int, step: nn.Module) -> nn.Module:
    """The network with a step behind one of its layers."""
    layers = list(module)  # type: ignore[arg-type]
    return nn.Sequential(*layers[:layer], step, *layers[layer:])


def middle() -> Tensor:
    """The pixels in the middle, where the strokes are."""
    places = torch.zeros(28, 28, dtype=torch.bool)
    places[6:22, 6:22] = True
    return places


def turned(channels: int) -> Tensor:
    """A rotation of half of the channels."""
    q = torch.eye(channels)
    half = torch.linalg.qr(torch.randn(channels // 2, channels // 2, generator=generator(3))).Q
    q[: channels // 2, : channels // 2] = half
    return q


plant(
    "toy-reversed-third", family="decoy", fault="the gradient is reversed at a third of the pixels", partial=True,
    make=lambda: nn.Sequential(reversed_at(fixed(6, 6, share=0.33)), Linear()), images=images, epsilon=radius(0.25),
    find=shortest_way,
)  # fmt: skip
plant(
    "toy-two-pixels", family="decoy", fault="the gradient is right at a quarter of the pixels, 0 elsewhere",
    make=lambda: nn.Sequential(Backward(lambda g, x: g * fixed(6, 6, share=0.25)), Linear()), partial=True,
    images=images, epsilon=radius(0.25), find=shortest_way,
)  # fmt: skip
decoy(
    "decoy-robust", fault="the values of a plain network, the gradient of a robust one", partial=True,
    make=lambda: AsIf(plain(), robust()), find=through(plain), epsilon=NEAR,
)  # fmt: skip
decoy(
    "decoy-mixed", fault="three quarters of the gradient are a robust network's", partial=True,
    make=lambda: AsIf(plain(), Sum(robust(), plain(), weights=(3.0, 0.3))), find=through(plain),
)  # fmt: skip
decoy(
    "decoy-other", fault="the gradient of a plain network that was trained from another start", partial=True,
    make=lambda: AsIf(plain(), plain(1)), find=through(plain),
)  # fmt: skip
decoy(
    "detached-branch", fault="a detached plain network beside a robust one", partial=True,
    make=lambda: Sum(robust(), Blind(plain()), weights=(1.0, 2.0)),
    find=through(lambda: Sum(robust(), plain(), weights=(1.0, 2.0))),
)  # fmt: skip
decoy(
    "decoy-unsure", fault="right where the network is sure, a robust network's near the boundary", partial=True,
    make=lambda: OfConfidence(plain(), robust(), 8.0), find=through(plain), epsilon=NEAR,
)  # fmt: skip
decoy(
    "decoy-dark", fault="images with much ink get the gradient of a robust network", partial=True,
    make=lambda: OfImage(plain(), robust(), 0.09), find=through(plain), epsilon=NEAR,
)  # fmt: skip
decoy(
    "decoy-by-chance", fault="nine calls in ten have the gradient of a robust network", partial=True, random=True,
    make=lambda: ByChance(plain(), robust()), find=through(plain),
)  # fmt: skip
decoy(
    "noisy-gradient", fault="noise in the gradient alone", random=True, partial=True,
    make=lambda: NoisyGradient(plain()), find=through(plain),
)  # fmt: skip
decoy(
    "reversed-pixels", fault="the gradient is reversed at 45 % of the pixels", partial=True,
    make=lambda: nn.Sequential(reversed_at(fixed(28, 28, share=0.45)), plain()), find=through(plain), epsilon=NEAR,
)  # fmt: skip
decoy(
    "cut-middle", fault="no gradient at the pixels in the middle", partial=True,
    make=lambda: nn.Sequential(Backward(lambda g, x: g * ~middle()), plain()), find=through(plain),
)  # fmt: skip
decoy(
    "reversed-channels", fault="the gradient is reversed in 6 of 16 channels of the second layer", partial=True,
    make=lambda: inside(plain(), 3, reversed_at((torch.arange(16) < 6)[:, None, None])), find=through(plain),
)  # fmt: skip
decoy(
    "turned-channels", fault="the gradient of the first layer is turned in half of the channels", partial=True,
    make=lambda: inside(plain(), 1, Backward(lambda g, x: torch.einsum("ij,bjhw->bihw", turned(8), g))),
    find=through(plain),
)  # fmt: skip
decoy(
    "clipped-gradient", fault="only the smaller three fifths of the gradient are left", partial=True,
    make=lambda: nn.Sequential(Backward(smallest), plain()), find=through(plain), epsilon=NEAR,
)  # fmt: skip


def smallest(g: Tensor, x: Tensor) -> Tensor:
    """The entries of the gradient that matter least."""
    limit = g.flatten(1).abs().quantile(0.6, dim=1).view(-1, 1, 1, 1)
    return torch.where(g.abs() <= limit, g, torch.zeros(()))


decoy(
    "decoy-control", fault="the network's own values and gradient, by the same detour", sound=True,
    make=lambda: AsIf(robust(), robust()), find=through(robust, restarts=2),
)  # fmt: skip
