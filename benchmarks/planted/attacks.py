"""Attacks that know the fault: they follow the gradient of a witness, and are judged on the planted model itself."""

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from benchmarks.planted import blocks, digits
from benchmarks.planted.digits import kept
from benchmarks.planted.record import Make, Planted, draws
from graddiv.attacks import Square
from graddiv.geometry import NORMS
from graddiv.seeding import fold, generator, isolated

SHARP = 10.0
"""The spread that logits get where the attack looks at them: a smooth margin is then nearly the margin."""


def through(
    *witnesses: Make, m: int = 60, n: int = 1, restarts: int = 1, queries: int = 0
) -> Callable[[Planted], Tensor]:
    """Follow the gradient of each of these networks from several starts, and keep the best image on the planted model.

    witnesses: networks whose gradient leads where that of the planted model does not.  Random ones are drawn n times
        at each step.
    queries: a search by squares besides, which needs no gradient.
    """

    def find(planted: Planted) -> Tensor:
        family = sys.modules[planted.make.__module__]
        sources = "".join(inspect.getsource(module) for module in (sys.modules[__name__], digits, blocks, family))
        key = f"attack-{planted.name}-{m}-{n}-{restarts}-{queries}"
        return kept(key, sources, lambda: {"x_adv": _search(planted, witnesses, m, n, restarts, queries)})["x_adv"]

    return find


def _search(planted: Planted, witnesses: Sequence[Make], m: int, n: int, restarts: int, queries: int) -> Tensor:
    (x0, y), model = planted.images(), planted.make()
    best, least = x0, _margin(model, x0, y, planted, 0)
    for number, make in enumerate(witnesses):
        witness = make()
        for restart in range(restarts):
            for step, x in enumerate(_iterates(witness, x0, y, planted, m, n, fold(number, restart))):
                if step % 5 == 4 or step == m - 1:
                    best, least = _better(best, least, x, _margin(model, x, y, planted, fold(number, restart, step)))
    if queries:
        x = Square(m=queries, geometry=NORMS[planted.norm])(model, x0, y, planted.epsilon)
        best, least = _better(best, least, x, _margin(model, x, y, planted, fold(0, "squares")))
    return NORMS[planted.norm].shrink(best, x0, torch.full((len(x0),), planted.epsilon, dtype=torch.float64))


def _better(best: Tensor, least: Tensor, x: Tensor, margin: Tensor) -> tuple[Tensor, Tensor]:
    wins = margin < least
    return torch.where(wins.view(-1, *[1] * (x.dim() - 1)), x, best), torch.minimum(margin, least)


def _margin(model: nn.Module, x: Tensor, y: Tensor, planted: Planted, seed: int) -> Tensor:
    """How much more probable the label is than the best other class, by the mean of several draws."""
    p = draws(model, x, 8 if planted.random else 1, seed).double().log_softmax(2)
    log_p = p.logsumexp(0) - math.log(len(p))
    others = log_p.scatter(1, y[:, None], -torch.inf).amax(1)
    return log_p.gather(1, y[:, None])[:, 0] - others


def _iterates(
    witness: nn.Module, x0: Tensor, y: Tensor, planted: Planted, m: int, n: int, seed: int
) -> Iterator[Tensor]:
    """Follow the sum of the last gradients, in steps that fall from half of epsilon to almost 0."""
    geometry, radius = NORMS[planted.norm], torch.full((len(x0),), planted.epsilon)
    noise = torch.rand(x0.shape, generator=generator(fold(seed, "start"))).double().flatten(1)
    x, memory = geometry.random(noise, x0, radius), torch.zeros_like(x0)
    for step in range(m):
        total = torch.zeros_like(x0)
        for i in range(n):
            with isolated(fold(seed, step, i)):
                total += torch.nan_to_num(_slope(witness, x, y))
        memory = 0.75 * memory + geometry.steepest(total, torch.ones_like(radius))
        size = radius * (0.255 + 0.25 * math.cos(math.pi * step / m))
        x = geometry.project(x + geometry.steepest(memory, size), x0, radius)
        yield x


def _slope(witness: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the smooth margin, of logits on a common scale."""
    at = x.detach().requires_grad_()
    with torch.enable_grad():
        z = witness(at).double()
        z = SHARP * z / z.detach().std(1, keepdim=True).clamp_min(1e-9)
        s = z.scatter(1, y[:, None], -torch.inf).logsumexp(1) - z.gather(1, y[:, None])[:, 0]
        (g,) = torch.autograd.grad(s.sum(), at)
    return g
