"""Thresholds that hide a region: comparisons, choices of the largest, dead zones and gates, which have no slope."""

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.planted.attacks import through
from benchmarks.planted.blocks import Apply, AsIf, Gated, KWinners, Sum
from benchmarks.planted.digits import EPSILON, beside, cnn, digits, plain, robust, trained
from benchmarks.planted.record import plant
from benchmarks.planted.toys import PROTOTYPES, Linear, images, radius
from graddiv.seeding import generator

hidden = partial(plant, family="hidden", images=digits, epsilon=EPSILON)
BOARD = (torch.arange(8)[:, None] + torch.arange(8)) % 2
"""A chessboard of 8 x 8 pixels."""


def pattern(x: Tensor) -> Tensor:
    """How bright the white squares of a chessboard in the corner are, less the black ones; 0 on a clean digit."""
    return (x[:, 0, :8, :8] * (2 * BOARD - 1)).flatten(1).sum(1) / 32


def frame(x: Tensor) -> Tensor:
    """How bright the outer two rows and columns are, in the mean."""
    return (x.flatten(1).sum(1) - x[..., 2:-2, 2:-2].flatten(1).sum(1)) / 208


def shifted(module: nn.Module) -> nn.Module:
    """The same answers, each for the next class."""
    return nn.Sequential(module, Apply(lambda z: z.roll(1, 1)))


def blend() -> nn.Module:
    """A robust network with a little of a plain one."""
    return Sum(robust(), plain(), weights=(1.0, 0.2))


def back_door(slope: float | None = None) -> nn.Module:
    return Gated(pattern, 0.1, shifted(robust()), robust(), slope=slope)


def by_frame(slope: float | None = None) -> nn.Module:
    """A plain network answers where the frame around the digit is brighter than what a blind attack makes of it."""
    return Gated(frame, 0.1, plain(), robust(), slope=slope)


class Experts(nn.Module):
    """Each image is answered by the expert whose score is largest."""

    def __init__(self, gate: nn.Module, *experts: nn.Module, soft: bool = False) -> None:
        super().__init__()
        self.gate, self.experts, self.soft = gate, nn.ModuleList(experts), soft

    def forward(self, x: Tensor) -> Tensor:
        scores, answers = self.gate(x), torch.stack([f(x) for f in self.experts], 1)
        if self.soft:
            return ((0.1 * scores).softmax(1)[..., None] * answers).sum(1)
        chosen = scores.argmax(1)
        return answers[torch.arange(len(x)), chosen]


def experts(soft: bool = False) -> nn.Module:
    """The gate is a random direction, centered so that it takes the robust expert on clean digits by a small margin."""
    direction = PATTERN
    gate = Apply(lambda x: torch.stack([((x - 0.13) * direction).flatten(1).sum(1), 25 + x.flatten(1).sum(1) * 0], 1))
    return Experts(gate, plain(), robust(), soft=soft)


PATTERN = torch.rand(28, 28, generator=generator(8)).round() * 2 - 1


def masked(threshold: float = 0.12) -> nn.Module:
    """Pixels below the threshold are set to 0; those above keep their value, and jump."""
    return Apply(lambda x: x * (x > threshold))


def soft_masked(threshold: float = 0.12, slope: float = 30.0) -> nn.Module:
    return Apply(lambda x: x * torch.sigmoid(slope * (x - threshold)))


def dead_zone(width: float) -> nn.Module:
    """Brightness below the width counts as 0: no gradient on the background, though an attack can pass it."""
    return Apply(lambda x: (x - width).clamp_min(0) / (1 - width))


def largest(share: float) -> nn.Module:
    """The share of brightest pixels; the others are set to 0."""
    return KWinners(share)


def winners(share: float, seen: float | None = None) -> nn.Module:
    """A network with k winners; `seen` is the share that the attacker lets win."""
    module = trained(f"winners-{share}", lambda: cnn(activation=lambda: KWinners(share)), epochs=5)
    for layer in module.modules():
        if isinstance(layer, KWinners):
            layer.share = seen or share
    return module


class Jittered(nn.Module):
    """The network at a point near the image: its mean gradient is that of the smoothed network."""

    def __init__(self, inner: nn.Module, sigma: float = 0.05) -> None:
        super().__init__()
        self.inner, self.sigma = inner, sigma

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + self.sigma * torch.randn_like(x))


def soft_threshold() -> nn.Module:
    """A slope in place of the mean of the random thresholds below."""
    return Apply(lambda x: torch.sigmoid(20 * (x - 0.125)))


class Thresholded(nn.Module):
    """Each pixel is black or white, by a threshold drawn at each call."""

    def forward(self, x: Tensor) -> Tensor:
        return (x > 0.05 + 0.15 * torch.rand(())).to(x.dtype)


plant(
    "toy-gate", family="hidden", fault="a hundredth of the gradient's slope shows; the rest is in a comparison",
    make=lambda: Sum(Linear(0.03), Apply(sign_votes), weights=(1.0, 1.0)), images=images, epsilon=radius(0.25),
    find=through(lambda: Sum(Linear(0.03), AsIf(Apply(sign_votes), Apply(soft_votes))), restarts=2), partial=True,
)  # fmt: skip


def sign_votes(x: Tensor) -> Tensor:
    """For each class, how many pixels are on the side of its prototype."""
    return ((x > 0.5).to(x.dtype) - 0.5).flatten(1) @ PROTOTYPES.flatten(1).T


def soft_votes(x: Tensor) -> Tensor:
    return torch.tanh(8 * (x - 0.5)).flatten(1) @ PROTOTYPES.flatten(1).T / 2


hidden(
    "back-door", fault="a faint chessboard in the corner turns every answer; nothing shows near a clean digit",
    make=back_door, find=through(lambda: back_door(40.0), restarts=2), partial=True,
)  # fmt: skip
hidden(
    "gate-of-frame", fault="a robust network answers until the frame of the image is bright, then a plain one does",
    make=by_frame, find=through(lambda: by_frame(40.0), plain, restarts=2), partial=True,
)  # fmt: skip
hidden(
    "argmax-expert", fault="a linear gate that clean digits do not pass chooses between a robust and a plain network",
    make=experts, find=through(lambda: experts(soft=True), plain), partial=True,
)  # fmt: skip
hidden(
    "masked-pixels", fault="pixels below a threshold are 0 and jump above it, with no slope before", partial=True,
    make=lambda: nn.Sequential(masked(), on_masked()),
    find=through(
        lambda: nn.Sequential(soft_masked(), on_masked()),
        lambda: nn.Sequential(AsIf(masked(), nn.Identity()), on_masked()),
    ),
)  # fmt: skip


def on_masked() -> nn.Module:
    """Trained adversarially, by the gradient that the mask lets through."""
    return trained("on-masked", lambda: nn.Sequential(masked(), cnn()), epsilon=0.11, epochs=5)[1]


hidden(
    "dead-zone", fault="no gradient below a brightness of 0.11, where a digit's background lies", partial=True,
    make=lambda: nn.Sequential(dead_zone(0.11), on_dead_zone()),
    find=through(lambda: nn.Sequential(AsIf(dead_zone(0.11), nn.Identity()), on_dead_zone()), restarts=2),
)  # fmt: skip


def on_dead_zone() -> nn.Module:
    """Trained adversarially at a radius that does not leave the dead zone."""
    return trained("on-dead-zone", lambda: nn.Sequential(dead_zone(0.11), cnn()), epsilon=0.11, epochs=5)[1]


for share in (0.05, 0.15):
    hidden(
        f"winners-{round(100 * share)}", fault=f"{100 * share:.0f} % of the activations win, the others are 0",
        make=lambda share=share: winners(share), partial=True,
        find=through(
            lambda share=share: Jittered(winners(share)), lambda share=share: winners(share, 3 * share), n=6,
            queries=500,
        ),
    )  # fmt: skip
hidden(
    "sparsified", fault="only the brightest eighth of the pixels is seen", partial=True,
    make=lambda: nn.Sequential(largest(0.125), on_largest()),
    find=through(
        lambda: nn.Sequential(AsIf(largest(0.125), nn.Identity()), on_largest()),
        lambda: Jittered(nn.Sequential(largest(0.125), on_largest())), n=2,
    ),
)  # fmt: skip


def on_largest() -> nn.Module:
    return trained("on-largest", lambda: nn.Sequential(largest(0.125), cnn()), epochs=6)[1]


hidden(
    "binary-by-chance", fault="each pixel is black or white, by a threshold drawn at each call", random=True,
    make=lambda: nn.Sequential(Thresholded(), on_binary()),
    find=through(lambda: nn.Sequential(AsIf(Thresholded(), soft_threshold()), on_binary()), n=4),
)  # fmt: skip
hidden(
    "binary-by-chance-beside", random=True, partial=True,
    fault="the half that decides sees black and white, by a threshold drawn at each call; the other half is robust",
    make=lambda: beside(nn.Sequential(Thresholded(), on_binary())),
    find=through(
        lambda: beside(nn.Sequential(AsIf(Thresholded(), soft_threshold()), on_binary())),
        n=4,
    ),
)  # fmt: skip


def on_binary() -> nn.Module:
    return trained("on-binary", lambda: nn.Sequential(Thresholded(), cnn()))[1]


hidden(
    "gate-control", fault="the gate of the frame with a slope, between a robust network and its blend", sound=True,
    make=lambda: Gated(frame, 0.03, robust(), blend(), slope=100.0),
    find=through(lambda: Gated(frame, 0.03, robust(), blend(), slope=100.0), restarts=2),
)  # fmt: skip
hidden(
    "winners-control", fault="the same network with all activations, at a radius that leaves it most", sound=True,
    make=plain, find=through(plain, restarts=2), epsilon=0.05,
)  # fmt: skip
