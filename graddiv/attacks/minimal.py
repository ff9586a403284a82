"""What the minimal-norm attacks share: which of the points they meet they keep, and which one they return."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.attacks.attack import RESCORE, Attack, Problem
from graddiv.attacks.views import View, as_view
from graddiv.geometry import Geometry, per_example
from graddiv.losses import margin

KEPT = 5
"""How many of the best points are kept until fresh models choose among them."""

FRESH = 10
"""How many iterations' worth of fresh models choose: with one model each, a single one would decide by chance."""


class CandidatePool(ABC):
    """The points worth keeping of those an attack meets, and the choice among them."""

    def __init__(self, problem: Problem, geometry: Geometry) -> None:
        self.problem, self.geometry = problem, geometry

    @abstractmethod
    def offer(self, k: int, x: Tensor, against: Float[Tensor, " b"], beyond: Tensor) -> None:
        """Look at x, whose margin over the models of iteration k is `against`, and the way from x0 that raises it."""

    @abstractmethod
    def choice(self) -> Float[Tensor, "b ..."]:
        """The best of them on fresh models; one of the points met, or in its direction, and never x0."""


@dataclass(frozen=True)
class MinimalAttack(Attack):
    """An attack that looks for the nearest adversarial point.

    Called with a radius it returns the nearest point met, if that is inside.  Where each iteration has models of its
    own they disagree about x0 and all that is near the boundary: there it is the point of highest margin.
    """

    @abstractmethod
    def search(self, problem: Problem, restart: int, radius: Float[Tensor, " b"], kept: CandidatePool) -> None:
        """One run, which shows `kept` the points it makes; beyond `radius` there is nothing to gain."""

    def run(self, problem: Problem, restart: int) -> Float[Tensor, "b ..."]:
        kept = (Strongest if problem.view.fresh else Nearest)(problem, self.geometry)
        self.search(problem, restart, problem.epsilon, kept)
        return kept.choice()

    def nearest(
        self,
        view: View | nn.Module,
        x0: Float[Tensor, "b ..."],
        y: Int64[Tensor, " b"],
        *,
        ids: Int64[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b ..."]:
        """argmin |x - x0|_p over the adversarial points met; x0 where it is one; where none was, the highest margin."""
        view, x0 = as_view(view), x0.detach()
        radius = torch.full_like(self._checked(x0, y, 0.0), math.inf)
        if len(x0) == 0:
            return x0.clone()
        ids = torch.arange(len(x0), device=x0.device) if ids is None else ids
        problem = Problem(view, x0, y, radius, ids, self.seed, lambda: None)
        width = self.geometry.bounds[1] - self.geometry.bounds[0]
        found: list[Tensor] = []
        for restart in range(self.restarts):
            kept = Nearest(problem, self.geometry)
            self.search(problem, restart, radius, kept)
            found = [kept.choice(*found)]
            radius = self.geometry.norm(found[0] - x0).clamp_max(width)
        return torch.where(per_example(fresh_margin(problem, x0) > 0, x0), x0, found[0])


class Nearest(CandidatePool):
    """The nearest adversarial points, and the one of highest margin."""

    def __init__(self, problem: Problem, geometry: Geometry) -> None:
        super().__init__(problem, geometry)
        x0 = problem.x0
        self.everyone = torch.arange(len(x0), device=x0.device)
        self.points = x0.expand(KEPT, *x0.shape).clone()
        self.lengths = x0.new_full((KEPT, len(x0)), math.inf)
        self.strongest, self.highest = x0, x0.new_full((len(x0),), -math.inf)

    def offer(self, k: int, x: Tensor, against: Float[Tensor, " b"], beyond: Tensor) -> None:
        view, y, lengths = self.problem.view, self.problem.y, self.lengths
        higher = against > self.highest
        self.strongest = torch.where(per_example(higher, x), x, self.strongest)
        self.highest = torch.where(higher, against, self.highest)
        if view.fresh:  # the incumbent has to hold before the models that judge its challenger
            incumbent = lengths.argmin(0), self.everyone
            holds = margin(view.logits(k, self.points[incumbent]), y) > 0
            lengths[incumbent] = torch.where(holds, lengths[incumbent], math.inf)
        new, farthest = self.geometry.norm(x - self.problem.x0), lengths.argmax(0)
        chosen = (against > 0) & (new < lengths[farthest, self.everyone])
        slot = farthest[chosen], self.everyone[chosen]
        self.points[slot], lengths[slot] = x[chosen], new[chosen]

    def choice(self, *others: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        """The nearest of the points that fool fresh models inside the ball; if none does, the one of highest margin."""
        x0, epsilon = self.problem.x0, self.problem.epsilon
        made = (self.lengths < math.inf).reshape(*self.lengths.shape, *(1,) * (x0.dim() - 1))
        met = [*others, *torch.where(made, self.points, self.strongest), self.strongest]
        lengths = torch.stack([self.geometry.norm(x - x0) for x in met])
        clipped = torch.stack(
            [
                torch.where(per_example(length <= epsilon, x), x, self.geometry.project(x, x0, epsilon))
                for x, length in zip(met, lengths, strict=True)
            ]
        )
        margins = torch.stack([fresh_margin(self.problem, x) for x in clipped])
        fooling = torch.where((margins > 0) & (lengths <= epsilon), lengths, math.inf)
        best = torch.where(fooling.amin(0) < math.inf, fooling.argmin(0), margins.argmax(0))
        return clipped[best, self.everyone]


class Strongest(CandidatePool):
    """The points of highest margin in the directions met, each as far as ball and box reach."""

    def __init__(self, problem: Problem, geometry: Geometry) -> None:
        super().__init__(problem, geometry)
        x0 = problem.x0
        self.everyone = torch.arange(len(x0), device=x0.device)
        self.points = x0.expand(KEPT, *x0.shape).clone()
        self.margins = x0.new_full((KEPT, len(x0)), -math.inf)

    def offer(self, k: int, x: Tensor, against: Float[Tensor, " b"], beyond: Tensor) -> None:
        """The incumbent stands before the models that judge its challenger: once lucky is not for ever."""
        x0, epsilon = self.problem.x0, self.problem.epsilon
        incumbent = self.margins.argmax(0), self.everyone
        again = self._margin(k, self.points[incumbent])
        self.margins[incumbent] = torch.where(self.margins[incumbent] > -math.inf, again, -math.inf)

        stretch = (epsilon / self.geometry.norm(beyond).clamp_min(torch.finfo(x.dtype).tiny)).clamp_min(1.0)
        challenger = self.geometry.project(x0 + per_example(stretch, x) * beyond, x0, epsilon)
        new, weakest = self._margin(k, challenger), self.margins.argmin(0)
        chosen = new > self.margins[weakest, self.everyone]
        slot = weakest[chosen], self.everyone[chosen]
        self.points[slot], self.margins[slot] = challenger[chosen], new[chosen]

    def choice(self) -> Float[Tensor, "b ..."]:
        margins = torch.stack([fresh_margin(self.problem, x) for x in self.points])
        return self.points[torch.where(self.margins > -math.inf, margins, -math.inf).argmax(0), self.everyone]

    def _margin(self, k: int, x: Float[Tensor, "b ..."]) -> Float[Tensor, " b"]:
        return margin(self.problem.view.logits(k, x), self.problem.y)


def fresh_margin(problem: Problem, x: Float[Tensor, "b ..."]) -> Float[Tensor, " b"]:
    """The margin of the mean logits over models that neither the iterations nor the choice of a restart look at."""
    count = FRESH if problem.view.fresh else 1
    total = sum(problem.view.logits(RESCORE - 1 - i, x) for i in range(count))
    return margin(torch.as_tensor(total) / count, problem.y)
