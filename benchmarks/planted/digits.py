"""Small networks on the shipped digits, trained in seconds, each once: weights are kept in the cache folder."""

import inspect
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.planted import blocks
from graddiv import store
from graddiv.data import load
from graddiv.seeding import isolated

EPSILON = 0.15
"""The radius of most plants: a network trained on clean digits has little left there, a robust one most."""
BATCH = 128
Build = Callable[[], nn.Module]


@cache
def digits(b: int = 80) -> tuple[Tensor, Tensor]:
    """The first test digits and their labels."""
    return load("mnist-mini", "test").batch(range(b))


def kept(name: str, sources: str, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What `compute` returns, kept in the cache folder; computed anew when the sources that it depends on change."""
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "graddiv", "planted")
    path = cache_folder / f"{name}-{store.digest(torch.__version__, sources)[:10]}.safetensors"
    if not path.exists():
        store.make_directory(cache_folder)
        store.write(path, save({key: value.contiguous() for key, value in compute().items()}))
    return load_file(path)


def cnn(channels: int = 1, activation: Build = nn.ReLU) -> nn.Sequential:
    """Two strided convolutions and two linear layers, for images of 28 x 28."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 8, 4, stride=2, padding=1), activation()),
        *(nn.Conv2d(8, 16, 4, stride=2, padding=1), activation()),
        *(nn.Flatten(), nn.Linear(784, 64), activation(), nn.Linear(64, 10)),
    )


def mlp(pixels: int = 784, activation: Build = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 96), activation(), nn.Linear(96, 10))


def trained(name: str, build: Build, *, epsilon: float = 0.0, epochs: int = 6, seed: int = 0) -> nn.Module:
    """The network that `build` makes, trained on the digits; adversarially at a radius > 0, by its own gradient.

    A network whose gradient is wrong learns to withstand that gradient alone: this is how many published defenses came
    to look robust.
    """
    with isolated(seed):
        module = build()
        sources = "".join(inspect.getsource(each) for each in (sys.modules[__name__], blocks, build))
        weights = kept(f"{name}-{epsilon}-{epochs}-{seed}", sources, lambda: _fit(module, epsilon, epochs))
    module.load_state_dict(weights)
    return module.eval().requires_grad_(False)


def _fit(module: nn.Module, epsilon: float, epochs: int) -> dict[str, Tensor]:
    data = load("mnist-mini", "train")
    steps = epochs * (len(data) // BATCH)
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for step in range(steps):
        x, y = data.batch(torch.randint(len(data), (BATCH,)))
        if epsilon:
            x = _attacked(module, x, y, epsilon * min(1.0, 2 * step / steps))
        optimizer.zero_grad()
        cross_entropy(module(x), y).backward()
        optimizer.step()
        schedule.step()
    return module.state_dict()


def _attacked(module: nn.Module, x0: Tensor, y: Tensor, epsilon: float, m: int = 3) -> Tensor:
    x = x0 + epsilon * (2 * torch.rand_like(x0) - 1)
    for _ in range(m):
        x = x.clamp(0, 1).detach().requires_grad_()
        (g,) = torch.autograd.grad(cross_entropy(module(x), y), x)
        x = x0 + (x - x0 + 2.5 / m * epsilon * g.sign()).clamp(-epsilon, epsilon)
    return x.clamp(0, 1).detach()


def plain(seed: int = 0) -> nn.Module:
    """A convolutional network trained on clean digits: above 95 % on them, and next to nothing at EPSILON."""
    return trained("plain", cnn, seed=seed)


def robust(seed: int = 0) -> nn.Module:
    """The same network, trained adversarially."""
    return trained("robust", cnn, epsilon=0.2, epochs=8, seed=seed)


def beside(hidden: nn.Module) -> nn.Module:
    """A robust network that sees the image as it is, beside another one that counts for more."""
    return blocks.Sum(robust(), hidden, weights=(1.0, 2.0))
