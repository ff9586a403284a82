"""Projected gradient descent (Madry et al. 2018), FG(S)M, and PGD along turned gradients.  See docs/equations.md."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import normalize

from graddiv.attacks.attack import Attack, Problem
from graddiv.attacks.view import EOT
from graddiv.geometry import Images
from graddiv.networks import RandomizedNetwork
from graddiv.networks.prediction import predict
from graddiv.registries import Count, Positive, Range


@dataclass(frozen=True)
class PGD(Attack):
    """x' = x_k + argmax_{|g|_p <= alpha} <g, E grad L(F(x_k), y)>, x_{k+1} = the projection of x' to the ball.

    m iterations of step alpha * epsilon; from x0 itself, or from a random point of the ball (after the first restart
    always).  Returns the last iterate.
    """

    m: Count = 50  #: iterations
    alpha: Positive = 0.25  #: length of a step as a share of epsilon
    random_start: bool = False  #: whether the first run, too, starts from a random point of the ball
    name = "PGD"

    def run(self, problem: Problem, restart: int) -> Images:
        x = problem.x0
        for x in self.iterates(problem, restart):  # noqa: B007 -- the last one is returned
            problem.tick()
        return x

    def iterates(self, problem: Problem, restart: int = 0) -> Iterator[Images]:
        """Yield x_1 .. x_m."""
        x0, epsilon = problem.x0, problem.epsilon
        x = self.geometry.random(problem.uniform("start", restart), x0, epsilon) if self.random_start or restart else x0
        for k in range(self.m):
            iteration = restart * self.m + k
            g = self.proxy(problem.view.gradient(iteration, x, problem.y, self.objective).direction, problem, iteration)
            x = self.geometry.project(self.geometry.step(x, g, self.alpha * epsilon), x0, epsilon)
            yield x

    def proxy(self, g: Images, problem: Problem, iteration: int) -> Images:
        """Return the direction that the step follows: the gradient g itself; `RotatedPGD` takes another."""
        return g


@dataclass(frozen=True)
class FGSM(PGD):
    """x = x0 + argmax_{|g|_p <= epsilon} <g, E grad L(F(x0), y)>: PGD with m = 1 and alpha = 1; FGM in the l_2 norm."""

    m: Count = 1
    alpha: Positive = 1.0
    name = "FGSM"


@dataclass(frozen=True)
class RotatedPGD(PGD):
    """PGD along g' = cos(angle) g/|g| + sin(angle) u, u a random direction orthogonal to g, new at every iteration.

    It shows how much a gradient's direction matters, the paper's cosine figure.  In the l_2 norm a small step raises
    the loss in proportion to cos(angle) to first order; in l_inf, the paper's setting, the relation is rough.
    """

    angle: Annotated[float, Range(ge=0, le=180)] = 0.0  #: in degrees
    name = "rotated PGD"

    def proxy(self, g: Images, problem: Problem, iteration: int) -> Images:
        """Return the gradient turned by the angle towards a random orthogonal direction; 0 where g is."""
        u = problem.uniform("axis", iteration).clamp(2**-54, 1 - 2**-53)
        normal, unit = torch.special.ndtri(u), normalize(g.flatten(1).double(), eps=1e-300)
        across = normalize(normal - (normal * unit).sum(1, keepdim=True) * unit, eps=1e-300)
        turn = math.radians(self.angle)
        turned = math.cos(turn) * unit + math.sin(turn) * across
        return torch.where((g != 0).flatten(1).any(1, keepdim=True), turned, 0.0).to(g.dtype).reshape(g.shape)


def eot_pgd_accuracy(
    F: RandomizedNetwork, batches: Iterable[tuple[Tensor, Tensor, Tensor]], epsilon: float, *, n: int, m: int,
    seed: int, judged_by: int,
) -> tuple[float, float]:  # fmt: skip
    """Shares of images, clean and under EOT-PGD, that fresh models (seed `judged_by`) get right; batches: x, y, ids."""
    right = []
    for x, y, ids in batches:
        x_adv = PGD(m=m)(EOT(F, n, seed), x, y, epsilon, ids=ids)
        right.append(torch.stack([predict(F, each, seed=judged_by).label == y for each in (x, x_adv)]))
    clean, robust = torch.cat(right, 1).double().mean(1).tolist()
    return clean, robust
