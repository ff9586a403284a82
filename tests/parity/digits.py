"""Real digits and networks trained on them, for comparisons of strength."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from graddiv import bayesian
from graddiv.data import load
from graddiv.networks import RandomizedNetwork
from graddiv.seeding import generator, isolated


def digits(b: int) -> tuple[Tensor, Tensor]:
    return load("mnist-mini", "test").batch(range(b))


@cache
def trained() -> nn.Sequential:
    with isolated(0):
        module = nn.Sequential(
            *(nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2, padding=2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(784, 10)),
        )
    data, optimizer = load("mnist-mini"), torch.optim.Adam(module.parameters(), lr=3e-3)
    for step in range(300):
        x, y = data.batch(torch.randint(len(data), (128,), generator=generator(step)))
        optimizer.zero_grad()
        cross_entropy(module(x), y).backward()
        optimizer.step()
    return module.eval().requires_grad_(False)


def noisy(sigma: float) -> RandomizedNetwork:
    """The trained network with noise of this size on its weights: large enough for one model to say little of many."""
    return bayesian(trained(), sigma).eval()
