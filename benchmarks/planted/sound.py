"""Networks that are as robust as they look: an audit that accuses them is wrong."""

import inspect
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.planted.attacks import through
from benchmarks.planted.blocks import Sum
from benchmarks.planted.digits import BATCH, EPSILON, digits, kept, mlp, robust
from benchmarks.planted.noise import Added
from benchmarks.planted.record import Planted, plant
from benchmarks.planted.toys import Linear, images, proved_share, radius, shortest_way
from graddiv.data import load
from graddiv.networks import RandomizedNetwork
from graddiv.paper.shipped import shipped
from graddiv.seeding import isolated

linear = partial(
    plant, family="sound", images=images, find=shortest_way, how="closed form", proved=proved_share,
    proof="closed form", sound=True,
)  # fmt: skip
honest = partial(plant, family="sound", images=digits, epsilon=EPSILON, sound=True)


class Drawing(nn.Module):
    """A randomized network as a module that draws at each call."""

    def __init__(self, F: RandomizedNetwork) -> None:
        super().__init__()
        self.F = F

    def forward(self, x: Tensor) -> Tensor:
        return self.F.bind(self.F.draw(int(torch.randint(2**31, ()))))(x)


def certified(epsilon: float = 0.1) -> nn.Module:
    """Two layers trained on the bounds of their outputs over the whole ball (Gowal et al. 2018)."""
    with isolated(0):
        module = mlp()
        weights = kept("certified", inspect.getsource(_fit_bounds), lambda: _fit_bounds(module, epsilon))
    module.load_state_dict(weights)
    return module.eval().requires_grad_(False)


def _fit_bounds(module: nn.Module, epsilon: float, epochs: int = 20) -> dict[str, Tensor]:
    data = load("mnist-mini", "train")
    steps = epochs * (len(data) // BATCH)
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    for step in range(steps):
        x, y = data.batch(torch.randint(len(data), (BATCH,)))
        share = min(1.0, 2 * step / steps)
        loss = nn.functional.cross_entropy(worst_logits(module, x, y, share * epsilon), y)
        optimizer.zero_grad()
        (0.5 * loss + 0.5 * nn.functional.cross_entropy(module(x), y)).backward()
        optimizer.step()
    return module.state_dict()


def worst_logits(module: nn.Module, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    """The label's logit less each other's is at least what these say, anywhere in the ball, by interval arithmetic."""
    low, high = (x - epsilon).clamp_min(0).flatten(1), (x + epsilon).clamp_max(1).flatten(1)
    first, last = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    center, width = (low + high) / 2, (high - low) / 2
    center, width = first(center), width @ first.weight.abs().T
    low, high = (center - width).relu(), (center + width).relu()
    center, width = (low + high) / 2, (high - low) / 2
    differences = last.weight[None] - last.weight[y][:, None]  # b c h: each class against the label
    biases = last.bias[None] - last.bias[y][:, None]
    return (differences @ center[..., None])[..., 0] + (differences.abs() @ width[..., None])[..., 0] + biases


def proved_by_intervals(planted: Planted) -> float:
    """The share of images whose label stays ahead by interval arithmetic."""
    x, y = planted.images()
    worst = worst_logits(planted.make(), x, y, planted.epsilon).scatter(1, y[:, None], -torch.inf)
    return float((worst.amax(1) < 0).double().mean())


def proved_by_slopes(planted: Planted) -> float:
    """The share of images whose margin is larger than the slope of any difference of logits, times the radius."""
    (x, y), module = planted.images(), planted.make()
    first, last = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    steepest = (last.weight[:, None] - last.weight[None]).norm(dim=2) * torch.linalg.matrix_norm(first.weight, 2)
    z = module(x)
    gaps = z.gather(1, y[:, None]) - z - planted.epsilon * steepest[y]
    return float((gaps.scatter(1, y[:, None], torch.inf).amin(1) > 0).double().mean())


linear("linear-none", fault="a linear network at a radius that leaves nothing", make=Linear, epsilon=radius(0.0) + 0.01)
linear("linear-half", fault="a linear network at its median radius", make=Linear, epsilon=radius(0.5))
linear(
    "linear-all", fault="a linear network below every image's radius", make=Linear, epsilon=round(0.6 * radius(1.0), 4)
)
linear("linear-l2", fault="a linear network in l2", make=Linear, epsilon=radius(0.5, "l2"), norm="l2")
plant(
    "linear-smoothed", family="sound", fault="a linear network with noise on its input: the ensemble is nearly linear",
    make=lambda: Added(Linear(), 0.1), images=images, epsilon=radius(0.5), find=shortest_way, random=True, sound=True,
)  # fmt: skip
honest("adversarial", fault="adversarially trained", make=robust, find=through(robust, restarts=2))
honest(
    "adversarial-l2", fault="adversarially trained in l_inf, attacked in l2", make=robust, norm="l2", epsilon=1.5,
    find=through(robust, restarts=2),
)  # fmt: skip
honest(
    "adversarial-noisy", fault="noise on the image of an adversarially trained network", random=True,
    make=lambda: Added(robust(), 0.1), find=through(lambda: Added(robust(), 0.1), robust, n=6),
)  # fmt: skip
honest(
    "robust-ensemble", fault="the sum of two adversarially trained networks", make=lambda: Sum(robust(), robust(1)),
    find=through(lambda: Sum(robust(), robust(1)), restarts=2),
)  # fmt: skip
honest(
    "certified", fault="trained on interval bounds", make=certified, epsilon=0.1, find=through(certified, restarts=2),
    proved=proved_by_intervals, proof="interval arithmetic",
)  # fmt: skip
honest(
    "certified-l2", fault="the same network, by the slope of its layers", make=certified, norm="l2", epsilon=0.3,
    find=through(certified, restarts=2), proved=proved_by_slopes, proof="Lipschitz constants",
)  # fmt: skip
for method in ("adv-bnn", "adv-bnn+graddiv"):
    honest(
        method, fault="a Bayesian network of the paper, adversarially trained, as shipped", random=True, epsilon=0.3,
        make=lambda method=method: Drawing(shipped(method).network()),
        find=through(lambda method=method: Drawing(shipped(method).network()), m=40, n=5),
    )  # fmt: skip
