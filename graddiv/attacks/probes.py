"""Attacks that are not meant to win: they show how much a gradient's direction matters, and what chance alone finds.

In the paper: docs/equations.md.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from graddiv.attacks.attack import RESCORE, Attack, Problem, keep_best
from graddiv.attacks.pgd import PGD
from graddiv.errors import GradDivError
from graddiv.geometry import per_example


@dataclass(frozen=True)
class RotatedPGD(PGD):
    """PGD along g' = cos(angle) g/|g| + sin(angle) u, u a random direction orthogonal to g, new at every iteration.

    The paper's cosine figure: in the l_2 norm a small step raises the loss in proportion to cos(angle), exactly so to
    first order; in l_inf, the paper's setting, the sign of g' is taken and the relation is rough.
    """

    angle: float = 0.0
    """In degrees, 0 to 180."""

    name = "rotated PGD"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.angle <= 180:
            raise GradDivError(f"angle is {self.angle}, expected degrees between 0 and 180")

    def proxy(self, g: Float[Tensor, "b ..."], problem: Problem, iteration: int) -> Float[Tensor, "b ..."]:
        """Return the gradient turned by the angle towards a random orthogonal direction; 0 where g is."""
        u = problem.uniform("axis", iteration).clamp(2**-54, 1 - 2**-53)
        normal = torch.special.ndtri(u).reshape(g.shape)
        unit = _unit(g.double())
        along = per_example((normal * unit).flatten(1).sum(1), unit)
        across = _unit(normal - along * unit)
        turn = math.radians(self.angle)
        turned = math.cos(turn) * unit + math.sin(turn) * across
        return torch.where(per_example((g != 0).flatten(1).any(1), g), turned, 0.0).to(g.dtype)


@dataclass(frozen=True)
class RandomSearch(Attack):
    """argmax of the loss over uniform points of the ball: what brute force finds (the checklist's fourth item).

    All points are scored on one model, the first the view shows.  The best `confirmed` points of each example are then
    scored on the fresh models of a whole iteration, and the one of highest loss is returned.
    """

    samples: int = 100_000
    """Random points per example; 100,000 as the checklist of Athalye et al. suggests."""
    confirmed: int = 20
    """How many of the best are scored again on fresh models."""

    name = "random search"
    passes_per_iteration = 1.0

    def __post_init__(self) -> None:
        if self.samples < 1 or self.confirmed < 1:
            raise GradDivError(f"samples is {self.samples} and confirmed {self.confirmed}, expected at least 1 of each")

    @property
    def iterations(self) -> int:
        return self.samples

    def run(self, problem: Problem, restart: int) -> Float[Tensor, "b ..."]:
        x0, y, view = problem.x0, problem.y, problem.view
        best, best_loss = x0.new_empty(0, *x0.shape), x0.new_empty(0, len(x0))
        screen = view.first(restart)
        for sample in range(self.samples):
            x = self.geometry.random(problem.uniform("sample", restart, sample), x0, problem.epsilon)
            best, best_loss = keep_best(best, best_loss, x, screen.loss(0, x, y, self.objective), self.confirmed)
            problem.tick()
        fresh = RESCORE - 1 - restart
        losses = view.losses(fresh, best.unbind(), y, self.objective)
        return best[losses.argmax(0), torch.arange(len(x0), device=x0.device)]


def _unit(g: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
    length: Tensor = torch.linalg.vector_norm(g.flatten(1), dim=1)
    return g / per_example(torch.where(length > 0, length, 1.0), g)
