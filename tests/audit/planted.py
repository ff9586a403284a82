"""Networks whose faults, or whose robustness, are known: images of four classes, told apart by a linear network."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.planted.toys import CLASSES, SIDE, Linear, examples, margin_radii
from graddiv.evaluation.budget import BUDGETS
from graddiv.seeding import generator

BUDGET = replace(
    BUDGETS["audit"]["quick"], queries=8, random_points=8, substitute_steps=30, ensembles=2, known=(1,), m=6, passes=12,
    arc_m=2, looks=1, suite_m=8, fewest=2, most=8, radii=(1.0, 2.0),
)  # fmt: skip
"""Less than quick: the networks are tiny, and 60 images are enough at one look."""

__all__ = ["CLASSES", "SIDE", "Linear", "examples", "margin_radii"]


class Noisy(nn.Module):
    """Noise on the input, drawn from the global state."""

    def __init__(self, inner: nn.Module, sigma: float = 0.1) -> None:
        super().__init__()
        self.inner, self.sigma = inner, sigma

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + self.sigma * torch.randn_like(x))


class NoisyWeights(nn.Module):
    """One draw's gradient is mostly noise, and the ensemble's is not: it looks robust to those who average little."""

    def __init__(self, sigma: float = 8.0) -> None:
        super().__init__()
        self.inner, self.sigma = Linear(), sigma

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(CLASSES, SIDE * SIDE)
        return self.inner(x) + self.sigma * (x - 0.5).flatten(1) @ noise.T


class Shattered(nn.Module):
    """A ripple too small to change any answer, and steep enough to own the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + 0.01 * torch.sin(3000 * x))


class Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.round(64 * x) / 64


class Blind(nn.Module):
    """An answer without a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Linear()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.inner(x)


class FunctionalDropout(nn.Module):
    """Draws in train mode alone: in eval mode there is no noise left."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(nn.functional.dropout(x, 0.2, self.training))


class Member(nn.Module):
    """One of two opposed members: both are right, by a step in the label's pixel, and pull the other pixels apart."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(sign * torch.ones(SIDE * SIDE - 1))

    def forward(self, x: Tensor) -> Tensor:
        label, others = x.flatten(1)[:, 0], x.flatten(1)[:, 1:]
        s = torch.tanh(20 * (label - 0.5)) * (1 + (others - 0.5) @ self.weight)
        return torch.stack([-s, s], 1)


def opposed_examples(b: int = 60) -> tuple[Tensor, Tensor]:
    y = torch.arange(b) % 2
    x = 0.5 + 0.02 * (torch.rand(b, 1, SIDE, SIDE, generator=generator(3)) - 0.5)
    x[:, 0, 0, 0] = 0.1 + 0.8 * y
    return x, y
