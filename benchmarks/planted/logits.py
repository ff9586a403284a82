"""Outputs that hide the loss: saturated, rescaled, rounded, clipped, or probabilities."""

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.planted.attacks import through
from benchmarks.planted.blocks import Apply
from benchmarks.planted.digits import EPSILON, beside, digits, plain, robust
from benchmarks.planted.record import plant
from benchmarks.planted.toys import Linear, images, proved_share, radius, shortest_way

outputs = partial(plant, family="logits", images=digits, epsilon=EPSILON, find=through(plain))


def behind(change: object, inner: nn.Module | None = None) -> nn.Module:
    """A network whose logits are changed."""
    return nn.Sequential(inner or plain(), Apply(change))  # type: ignore[arg-type]


def staircase(z: Tensor) -> Tensor:
    """Logits in whole numbers, with a tenth of a slope in between, and that downward."""
    return torch.round(z) - 0.1 * (z - torch.round(z))


plant(
    "toy-saturated", family="logits", fault="logits a thousand times too large", make=lambda: Linear(3000.0),
    images=images, epsilon=radius(0.25), find=shortest_way, how="closed form", proved=proved_share, proof="closed form",
)  # fmt: skip
plant(
    "toy-probabilities", family="logits", fault="probabilities for logits", images=images, epsilon=radius(0.25),
    make=lambda: nn.Sequential(Linear(), nn.Softmax(1)), find=shortest_way, how="closed form", proved=proved_share,
    proof="closed form",
)  # fmt: skip
outputs("saturated", fault="logits a thousand times too large", make=lambda: behind(lambda z: 1000 * z))
outputs("temperature", fault="logits a thousand times too small", make=lambda: behind(lambda z: z / 1000))
outputs("probabilities", fault="probabilities for logits", make=lambda: behind(lambda z: z.softmax(1)))
outputs(
    "hard-probabilities", fault="probabilities at a temperature of 0.01, all but 0 or 1 in float32",
    make=lambda: behind(lambda z: (100 * z).softmax(1)),
)  # fmt: skip
outputs(
    "clipped-logits", fault="logits clipped to [-2, 2], where those of clean digits lie outside", partial=True,
    make=lambda: behind(lambda z: z.clamp(-2, 2) + 0.001 * z),
)  # fmt: skip
outputs(
    "staircase-logits", fault="logits in whole numbers with a small slope in between, downward", partial=True,
    make=lambda: behind(staircase),
)  # fmt: skip
outputs(
    "rounded-beside", fault="rounded logits of a plain network, plus those of a robust one", partial=True,
    make=lambda: beside(behind(lambda z: (2 * z).round() / 2)),
    find=through(lambda: beside(plain())),
)  # fmt: skip
outputs(
    "logits-control", fault="standardized logits of a robust network", sound=True, find=through(robust, restarts=2),
    make=lambda: behind(lambda z: 5 * (z - z.mean(1, keepdim=True)) / z.std(1, keepdim=True), robust()),
)  # fmt: skip
