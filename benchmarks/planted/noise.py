"""Randomness: of the wrong kind, where it cannot be drawn again, or where it hides what a mean would show."""

import random
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.planted.attacks import through
from benchmarks.planted.blocks import AsIf, Sum, rounded
from benchmarks.planted.digits import EPSILON, beside, digits, mlp, plain, robust, trained
from benchmarks.planted.record import plant
from benchmarks.planted.toys import Linear, images, radius, shortest_way
from graddiv.seeding import generator

noisy = partial(plant, family="noise", images=digits, epsilon=EPSILON)


class HashSeeded(nn.Module):
    """Noise that looks random and is a function of the image: the seed is a hash of its pixels."""

    def __init__(self, inner: nn.Module, sigma: float) -> None:
        super().__init__()
        self.inner, self.sigma = inner, sigma

    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for image in x:
            seed = int((image.detach().double() * 1e6).sum().item()) % 2**31
            rows.append(torch.randn(image.shape, generator=generator(seed)))
        return self.inner(x + self.sigma * torch.stack(rows))


class Added(nn.Module):
    """Gaussian noise on the image."""

    def __init__(self, inner: nn.Module, sigma: float) -> None:
        super().__init__()
        self.inner, self.sigma = inner, sigma

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + self.sigma * torch.randn_like(x))


class OwnGenerator(Added):
    """Noise from a generator that nobody else can set."""

    def __init__(self, inner: nn.Module, sigma: float) -> None:
        super().__init__(inner, sigma)
        self.generator = generator(0)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + self.sigma * torch.randn(x.shape, generator=self.generator))


class Chosen(nn.Module):
    """One of several networks answers, by Python's random.choice."""

    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return random.choice(list(self.members))(x)


class Rare(nn.Module):
    """Two networks, the second in one call of twenty, by NumPy's generator."""

    def __init__(self, usual: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.usual, self.other = usual, other

    def forward(self, x: Tensor) -> Tensor:
        return self.other(x) if np.random.rand() < 0.05 else self.usual(x)


class Canceling(nn.Module):
    """The same noise is added to a feature and taken away again, but only its first part has a gradient."""

    def __init__(self, inner: nn.Module, sigma: float) -> None:
        super().__init__()
        self.inner, self.sigma = inner, sigma

    def forward(self, x: Tensor) -> Tensor:
        slope = self.sigma * torch.randn_like(x)
        away = (slope * x).flatten(1).sum(1, keepdim=True) * torch.linspace(-1, 1, 10)
        return self.inner(x) + away - away.detach()


class Opposed(nn.Module):
    """A network plus or minus a strong linear function that is 0 at clean digits' class and cancels in the mean."""

    def __init__(self, inner: nn.Module, strength: float) -> None:
        super().__init__()
        self.inner, self.strength = inner, strength
        self.direction = torch.randn(784, 10, generator=generator(6))

    def forward(self, x: Tensor) -> Tensor:
        sign = 1.0 if float(torch.rand(())) < 0.5 else -1.0
        # a sine of the image: its slope is large, its value is bounded
        return self.inner(x) + sign * self.strength * torch.sin(20 * x.flatten(1) @ self.direction)


class FewValues(nn.Module):
    """One of four fixed patterns is added to the image."""

    def __init__(self, inner: nn.Module, sigma: float) -> None:
        super().__init__()
        self.inner = inner
        self.patterns = sigma * torch.randn(4, 1, 28, 28, generator=generator(9))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + self.patterns[int(torch.randint(len(self.patterns), ()))])


class GradientNoise(nn.Module):
    """Noise while somebody asks for gradients, none otherwise."""

    def __init__(self, inner: nn.Module, sigma: float) -> None:
        super().__init__()
        self.inner, self.sigma = inner, sigma

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + self.sigma * torch.randn_like(x) if x.requires_grad else x)


def dropping() -> nn.Module:
    """Dropout that is left on."""
    return Dropping(trained("dropping", lambda: nn.Sequential(nn.Dropout(0.3), mlp())))


class Dropping(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner[1](nn.functional.dropout(x, 0.3, True))  # type: ignore[index]


plant(
    "toy-hash-seeded", family="noise", fault="noise seeded with the image: deterministic, and its gradient leads on",
    make=lambda: HashSeeded(Linear(), 0.02), images=images, epsilon=radius(0.25), find=shortest_way,
)  # fmt: skip
plant(
    "toy-own-generator", family="noise", fault="noise from a generator of its own: it cannot be drawn again",
    make=lambda: OwnGenerator(Linear(), 0.1), images=images, epsilon=radius(0.25), find=shortest_way, random=True,
)  # fmt: skip
noisy("hash-seeded", fault="noise seeded with the image", make=lambda: HashSeeded(plain(), 0.1), find=through(plain))
noisy(
    "hash-seeded-beside", fault="the half that decides has noise seeded with the image, rounded", partial=True,
    make=lambda: beside(HashSeeded(nn.Sequential(rounded(17), plain()), 0.05)),
    find=through(lambda: beside(plain())),
)  # fmt: skip
noisy(
    "own-generator", fault="noise from a generator of its own", make=lambda: OwnGenerator(plain(), 0.1), random=True,
    find=through(lambda: Added(plain(), 0.1), n=4),
)  # fmt: skip
noisy(
    "random-choice", fault="one of three networks, by random.choice", random=True,
    make=lambda: Chosen(plain(), plain(1), plain(2)),
    find=through(lambda: Sum(plain(), plain(1), plain(2))),
)  # fmt: skip
noisy(
    "choice-with-decoys", random=True, partial=True,
    fault="one of three networks, by random.choice; two of them have the gradient of a robust one",
    make=lambda: Chosen(plain(), AsIf(plain(1), robust()), AsIf(plain(2), robust())),
    find=through(lambda: Sum(plain(), plain(1), plain(2))),
)  # fmt: skip
noisy(
    "rare-member", fault="a second network, robust, answers one call in twenty", random=True,
    make=lambda: Rare(plain(), robust()), find=through(plain),
)  # fmt: skip
noisy(
    "canceling-noise", fault="noise that cancels in the answer and not in the gradient", random=True, partial=True,
    make=lambda: Canceling(plain(), 20.0), find=through(plain),
)  # fmt: skip
noisy(
    "few-values", fault="one of four fixed patterns is added to the image", random=True,
    make=lambda: FewValues(plain(), 0.1), find=through(lambda: FewValues(plain(), 0.1), n=4),
)  # fmt: skip
noisy(
    "few-values-rounded-beside", random=True, partial=True,
    fault="one of four patterns is added before 8 gray values, in the half that decides; the other half is robust",
    make=lambda: beside(FewValues(nn.Sequential(rounded(8), plain()), 0.1)),
    find=through(lambda: beside(FewValues(plain(), 0.1)), n=4),
)  # fmt: skip
noisy(
    "opposed-signs", fault="a steep random function with either sign: it cancels in the mean", random=True,
    make=lambda: Opposed(plain(), 2.0), find=through(plain, lambda: Opposed(plain(), 2.0), n=4),
)  # fmt: skip
noisy(
    "gradient-noise", fault="noise only while gradients are asked for", random=False, partial=True,
    make=lambda: GradientNoise(plain(), 0.5), find=through(plain),
)  # fmt: skip
noisy(
    "dropout-left-on",
    fault="dropout of 30 % of the pixels, also at test time",
    random=True,
    make=dropping,
    find=through(dropping, n=8),
)
noisy(
    "noise-and-rounding", random=True, partial=True, fault="noise, then 8 gray values, beside a robust network",
    make=lambda: beside(Added(nn.Sequential(rounded(8), plain()), 0.1)),
    find=through(lambda: beside(Added(plain(), 0.1)), n=4),
)  # fmt: skip
noisy(
    "noise-control", fault="one of two robust networks, by random.choice", sound=True, random=True,
    make=lambda: Chosen(robust(), robust(1)), find=through(lambda: Sum(robust(), robust(1)), restarts=2),
)  # fmt: skip
