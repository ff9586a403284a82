"""Networks to attack in the place of another: surrogates with gradients of their own, and substitutes that learn."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from graddiv.attacks import PGD, Given
from graddiv.evaluation.models import Adapted
from graddiv.evaluation.straight_through import WIDTHS, HandingOn
from graddiv.geometry import per_example
from graddiv.networks import Noise, RandomizedNetwork, SampleModel, Theta, running_statistics
from graddiv.networks.ensemble import ensemble
from graddiv.networks.prediction import predict
from graddiv.seeding import fold, generator, isolated


class Smoothed(Adapted):
    """f(x + sigma u), u ~ N(0, I) drawn with the noise of the network: EOT over it follows the smoothed loss."""

    random = True

    def __init__(self, inner: RandomizedNetwork, sigma: float) -> None:
        super().__init__(inner, lambda f, x: f(x))
        self.sigma = sigma

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> Noise:
        return seed

    def bind(self, noise: Noise, theta: Theta | None = None) -> SampleModel:
        assert isinstance(noise, int)
        f = self.inner.bind(self.inner.draw(fold(noise, "inner")), theta)

        def model(x: Tensor) -> Tensor:
            u = torch.randn(x.shape, generator=generator(fold(noise, "offset")), dtype=x.dtype)
            return f(x + self.sigma * u.to(x.device))

        return model

    def mean(self) -> None:
        return None

    def support(self) -> None:
        return None


def straight_through_surrogate(F: RandomizedNetwork, width: float = WIDTHS["wide"]) -> RandomizedNetwork:
    """The network in which every step of torch without a gradient hands one on; its answers stay."""

    def call(f: SampleModel, x: Tensor) -> Tensor:
        if not (x.requires_grad and torch.is_grad_enabled()):
            return f(x)
        with HandingOn(width) as mode:
            out: Tensor = mode.result(f(x * 1))
        return out

    return Adapted(F, call)


def steps_without_gradient(F: RandomizedNetwork, x: Float[Tensor, "b ..."]) -> list[str]:
    """The functions of torch through which the network hands no gradient on, or perhaps a wrong one."""
    f = F.bind(F.draw(0))
    with torch.enable_grad(), running_statistics(F), HandingOn() as mode:
        f(x.detach().requires_grad_() * 1)
    return sorted(mode.touched)


class Answers(NamedTuple):
    """What a network said: a query each."""

    x: Tensor
    scores: Tensor


def substitutes(
    F: RandomizedNetwork, images: Sequence[Tensor], *, radius: float, steps: int, seed: int = 0
) -> RandomizedNetwork:
    """Networks of several architectures, one of which answers at random, trained on answers of F.

    images: the images themselves, then attacked ones; F is asked at them, between them, and around them within a radius
    in each pixel, and again at images that attack the substitutes.
    """
    address, x = fold(seed, "substitutes"), images[0]
    pool = _asked(F, images, radius, max(1, steps // 8), address)
    with isolated(address):
        modules = [m.to(x.device, x.dtype) for m in _architectures(x, pool.scores.shape[1])]
    y = predict(F, x, n=4, seed=address).label
    for turn in range(2):
        for number, module in enumerate(modules):
            _distilled(module, pool, steps // 2, fold(address, turn, number))
        if turn == 0:
            fooled = PGD(m=10, objective="margin")(Given(modules), x, y, radius)
            more = _asked(F, [*images, fooled], radius, max(1, steps // 8), fold(address, "again"))
            pool = Answers(*(torch.cat(both) for both in zip(pool, more, strict=True)))
    return ensemble([module.eval().requires_grad_(False) for module in modules])


def _asked(F: RandomizedNetwork, images: Sequence[Tensor], radius: float, rounds: int, address: int) -> Answers:
    """The answers of F, by two draws each, at points near the first images and the last ones, and between them."""
    points, x = [], images[0]
    for turn in range(rounds):
        draw = generator(fold(address, turn))
        end = images[turn % len(images)]
        rows = torch.randint(len(x), (min(len(x), 64),), generator=draw).to(x.device)
        share, noise = (torch.rand(size, generator=draw, dtype=x.dtype) for size in ((len(rows),), x[rows].shape))
        between = x[rows] + per_example(share.to(x), x) * (end - x)[rows]
        points.append((between + radius * (turn % 3) / 2 * (2 * noise.to(x) - 1)).clamp(0, 1))
    found = [predict(F, p, n=2, seed=fold(address, turn)).scores.to(x.dtype) for turn, p in enumerate(points)]
    return Answers(torch.cat(points), torch.cat(found))


def _distilled(module: nn.Module, pool: Answers, steps: int, seed: int) -> None:
    """Teach a network the answers."""
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)
    with torch.enable_grad():
        for step in range(steps):
            rows = torch.randint(len(pool.x), (64,), generator=generator(fold(seed, step))).to(pool.x.device)
            loss = kl_div(log_softmax(module(pool.x[rows]), 1), pool.scores[rows], reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def _architectures(x: Float[Tensor, "b ..."], classes: int) -> list[nn.Module]:
    """Two convolutional networks for images, of large and of small kernels, and one without."""
    size = x[0].numel()
    dense = nn.Sequential(nn.Flatten(), nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, classes))
    if x.dim() != 4:
        wide = nn.Sequential(nn.Flatten(), nn.Linear(size, 128), nn.Tanh(), nn.Linear(128, classes))
        return [dense, wide]
    found: list[nn.Module] = []
    for kernel in (3, 5):
        layers = [nn.Conv2d(c, d, kernel, stride=2, padding=kernel // 2) for c, d in ((x.shape[1], 16), (16, 32))]
        body = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), nn.Flatten())
        with torch.no_grad():
            flat = body(torch.zeros(1, *x.shape[1:])).shape[1]
        found.append(nn.Sequential(*body, nn.Linear(flat, classes)))
    return [*found, dense]
