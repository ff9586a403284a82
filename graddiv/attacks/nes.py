"""Gradients from queries alone: natural evolution strategies (Ilyas et al. 2018)."""

import math
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from graddiv.attacks.attack import Attack, Problem
from graddiv.geometry import Images, per_example
from graddiv.registries import Count, Positive
from graddiv.seeding import fold, uniform

COARSENESS = (1, 2, 4)  #: sides, in pixels, of the squares that one random sign covers: coarse directions matter more


@dataclass(frozen=True)
class NES(Attack):
    """g = sum_j (L(x + s u_j) - L(x - s u_j)) u_j / 2s over random signs u_j, then a step of SPGD along a mean of g.

    All losses of an iteration are of the same models (common random numbers), so that a difference is not noise.  It
    goes on from the problem's start, and returns the last point.  s falls with the steps.
    """

    objective: str = "margin"
    m: Count = 20  #: iterations
    samples: Count = 25  #: pairs of queries in each of them
    sigma: Positive = 0.5  #: the length s of the first differences, in each pixel, as a share of epsilon
    alpha: Positive = 0.5  #: length of the first step as a share of epsilon
    memory: Positive = 0.5  #: what a step keeps of the directions before, 0 to 1
    name = "NES"

    @property
    def passes_per_iteration(self) -> float:  # type: ignore[override]
        return 2.0 * self.samples

    def run(self, problem: Problem, restart: int) -> Images:
        x0, epsilon = problem.x0, problem.epsilon
        x = x0 if problem.start is None or restart else problem.start
        mean = torch.zeros_like(x0)
        for k in range(self.m):
            falling = (1 + math.cos(math.pi * (k / self.m))) / 2
            g = self.estimate(problem, x, restart * self.m + k, self.sigma * max(falling, 0.2))
            mean = self.memory * mean + g / per_example(g.flatten(1).norm(dim=1).clamp_min(1e-30), g)
            step = self.geometry.steepest(mean, self.alpha * falling * epsilon)
            x = self.geometry.project(x + step, x0, epsilon)
            problem.tick()
        return x

    def estimate(self, problem: Problem, x: Images, iteration: int, sigma: float) -> Images:
        """sum_j (L(x + s u_j) - L(x - s u_j)) u_j / 2s, on the models of one iteration."""
        models, length = problem.view.held(iteration), sigma * per_example(self._pixel(problem), x)
        g = torch.zeros_like(x)
        for j, coarseness in zip(range(self.samples), cycle(COARSENESS), strict=False):
            u = self._signs(problem, iteration, j, coarseness)
            up, down = models.losses(0, [x + length * u, x - length * u], problem.y, self.objective)
            g += per_example((up - down) / 2, x) * u / length
        return g / self.samples

    def _pixel(self, problem: Problem) -> Tensor:
        """The length of a step in each pixel that is as long as epsilon in all of them."""
        one = torch.ones_like(problem.x0)
        return problem.epsilon / self.geometry.norm(one).clamp_min(1e-30)

    def _signs(self, problem: Problem, iteration: int, j: int, coarseness: int) -> Tensor:
        """-1 or 1 for each pixel, or for each square of them where inputs are images."""
        x0 = problem.x0
        shape = list(x0.shape[1:])
        if x0.dim() == 4:
            shape[1:] = (math.ceil(side / coarseness) for side in shape[1:])
        u = uniform(fold(problem.seed, "nes", iteration, j), problem.ids, math.prod(shape))
        signs = torch.where(u < 0.5, -1.0, 1.0).to(x0.dtype).reshape(len(x0), *shape)
        if x0.dim() != 4 or coarseness == 1:
            return signs.reshape(x0.shape)
        large = interpolate(signs, scale_factor=coarseness, mode="nearest")
        return large[..., : x0.shape[2], : x0.shape[3]]
