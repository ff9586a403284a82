"""A step that cleans the image without a graph: alone, and beside a path that has one."""

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.planted.attacks import through
from benchmarks.planted.blocks import AsIf, Blind, blurred, mean_filter, median
from benchmarks.planted.digits import EPSILON, beside, cnn, digits, trained
from benchmarks.planted.record import plant
from benchmarks.planted.toys import Linear, images, radius, shortest_way
from graddiv.data import load

purified = partial(plant, family="purifying", images=digits, epsilon=EPSILON)


class Projection(nn.Module):
    """The image's part in the space of the principal components of the digits."""

    def __init__(self, components: int) -> None:
        super().__init__()
        x = load("mnist-mini", "train").batch(slice(0, 1000))[0].flatten(1)
        self.mean = x.mean(0)
        self.basis = torch.linalg.svd(x - self.mean, full_matrices=False).Vh[:components]

    def forward(self, x: Tensor) -> Tensor:
        return (self.mean + (x.flatten(1) - self.mean) @ self.basis.T @ self.basis).view_as(x).clamp(0, 1)


class Iterated(nn.Module):
    """Some steps of total-variation descent away from the image."""

    def __init__(self, steps: int = 8, rate: float = 0.1) -> None:
        super().__init__()
        self.steps, self.rate = steps, rate

    def forward(self, x: Tensor) -> Tensor:
        z = x
        for _ in range(self.steps):
            down, right = torch.tanh(10 * (z[:, :, 1:] - z[:, :, :-1])), torch.tanh(10 * (z[..., 1:] - z[..., :-1]))
            slope = nn.functional.pad(down, (0, 0, 1, 0)) - nn.functional.pad(down, (0, 0, 0, 1))
            slope = slope + nn.functional.pad(right, (1, 0)) - nn.functional.pad(right, (0, 1))
            z = z - self.rate * (0.3 * slope + (z - x))
        return z.clamp(0, 1)


class Noised(nn.Module):
    """A step after Gaussian noise."""

    def __init__(self, step: nn.Module, sigma: float = 0.2) -> None:
        super().__init__()
        self.step, self.sigma = step, sigma

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x + self.sigma * torch.randn_like(x))


STEPS = {"blur": blurred, "median": median, "projection": lambda: Projection(40), "variation": Iterated}

plant(
    "toy-blind", family="purifying", fault="the answer has no graph at all", make=lambda: Blind(Linear()),
    images=images, epsilon=radius(0.25), find=shortest_way,
)  # fmt: skip


def cleaned(name: str, step: nn.Module) -> nn.Module:
    """A network trained on purified digits, behind the step."""
    return nn.Sequential(step, trained(f"on-{name}", lambda: nn.Sequential(STEPS[name](), cnn()))[1])


for name, make in STEPS.items():
    if name in ("blur", "projection"):
        purified(
            f"{name}-blind", fault=f"purified by {name} under no_grad",
            make=lambda name=name, make=make: cleaned(name, Blind(make())),
            find=through(lambda name=name, make=make: cleaned(name, make())),
        )  # fmt: skip
    purified(
        f"{name}-blind-beside", partial=True,
        fault=f"the half that decides sees the image purified by {name} under no_grad; the other half is robust",
        make=lambda name=name, make=make: beside(cleaned(name, Blind(make()))),
        find=through(lambda name=name, make=make: beside(cleaned(name, make()))),
    )  # fmt: skip
purified(
    "residual-detached", fault="x - 0.8 (x - median(x)).detach(): the gradient takes the step for the identity",
    make=lambda: cleaned("median", Residual(median())), partial=True,
    find=through(
        lambda: cleaned("median", Residual(mean_filter(), detached=False)), lambda: cleaned("median", median())
    ),
)  # fmt: skip


class Residual(nn.Module):
    """x minus most of what the step takes away."""

    def __init__(self, step: nn.Module, *, detached: bool = True) -> None:
        super().__init__()
        self.step, self.detached = step, detached

    def forward(self, x: Tensor) -> Tensor:
        dirt = 0.8 * (x - self.step(x))
        return x - (dirt.detach() if self.detached else dirt)


purified(
    "noised-blur-beside", random=True, partial=True,
    fault="the half that decides sees noise and then a blur under no_grad; the other half is robust",
    make=lambda: beside(cleaned("blur", Blind(Noised(blurred())))),
    find=through(lambda: beside(cleaned("blur", Noised(blurred()))), n=4),
)  # fmt: skip
purified(
    "purifying-control", fault="the same halves with the gradient of the blur", sound=True,
    make=lambda: beside(cleaned("blur", blurred())),
    find=through(lambda: beside(cleaned("blur", blurred())), restarts=2),
)  # fmt: skip
purified(
    "straight-through-control", sound=True, fault="a blur with the gradient of a slightly sharper one",
    make=lambda: cleaned("blur", AsIf(blurred(), blurred(sigma=1.1))),
    find=through(lambda: cleaned("blur", blurred()), restarts=2),
)  # fmt: skip
