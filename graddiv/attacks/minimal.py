"""What minimal-norm attacks (FAB, B&B) share: which of the points they find they keep, and which one they return."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.attacks.attack import RESCORE, Attack, Problem, ReturnRule, explaining
from graddiv.attacks.view import View
from graddiv.geometry import Geometry, per_example
from graddiv.losses import margin

KEPT = 5
"""How many of the best points are kept for each example until fresh models choose among them."""

FRESH = 10
"""How many iterations' models choose among them: with one model an iteration, a single one would decide by chance."""


class CandidatePool(ABC):
    """The best of the points that an attack finds, and the final choice among them."""

    def __init__(self, problem: Problem, geometry: Geometry) -> None:
        self.problem, self.geometry = problem, geometry

    @abstractmethod
    def offer(self, k: int, x: Tensor, x_margins: Float[Tensor, " b"], direction: Tensor) -> None:
        """Keep x if it is among the best so far.

        k: the iteration whose models judged x.
        x: one point for each example.
        x_margins: the margin of the mean logits of those models at x; above 0 where x is adversarial.
        direction: the way from x0 that raises the margin, of any length.
        """

    @abstractmethod
    def choice(self) -> Float[Tensor, "b ..."]:
        """Return the point that does best on fresh models; it is never x0."""


@dataclass(frozen=True)
class MinimalAttack(Attack):
    """An attack that looks for the nearest adversarial point.

    Called with a radius it returns the nearest adversarial point found, if that lies inside.  Where each iteration has
    models of its own, these disagree about x0 and about all points near the boundary, and "nearest" means little: there
    it returns the point of highest margin inside the radius.

    return_rule "reference" is what the libraries of 2021 do: the nearest point that the models of a single iteration
    got wrong, which no other model has to confirm.  Weak on randomized networks, but what is published.
    """

    return_rule: ReturnRule = "strong"
    """Which point is returned, as described above."""

    reference_clips: ClassVar[bool]
    """Whether the reference clips a point that lies outside the radius to it; otherwise it returns the clean image."""

    @abstractmethod
    def search(self, problem: Problem, restart: int, radius: Float[Tensor, " b"], pool: CandidatePool) -> None:
        """Run once and offer every point to `pool`; adversarial points farther than `radius` are of no use."""

    def run(self, problem: Problem, restart: int) -> Float[Tensor, "b ..."]:
        pool: CandidatePool
        if self.return_rule == "reference":
            pool = Unconfirmed(problem, self.geometry, self.reference_clips)
        else:
            pool = (Strongest if problem.view.fresh else Nearest)(problem, self.geometry)
        self.search(problem, restart, problem.epsilon, pool)
        return pool.choice()

    def nearest(
        self,
        view: View | nn.Module,
        x0: Float[Tensor, "b ..."],
        y: Int64[Tensor, " b"],
        *,
        ids: Int64[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b ..."]:
        """argmin |x - x0|_p over the adversarial points found, without any radius.

        view, x0, y, ids: as for a call of the attack.

        Returns x0 itself where it is misclassified already, and the point of highest margin where none is adversarial.
        """
        view, x0, y = self._taken(view, x0, y)
        radius = torch.full_like(self._checked(x0, y, 0.0), math.inf)
        if len(x0) == 0:
            return x0.clone()
        ids = torch.arange(len(x0), device=x0.device) if ids is None else ids.to(x0.device)
        problem = Problem(view, x0, y, radius, ids, self.seed, lambda: None)
        width = self.geometry.bounds[1] - self.geometry.bounds[0]
        found: list[Tensor] = []
        for restart in range(self.restarts):
            pool = Nearest(problem, self.geometry)
            with explaining(view, x0):
                self.search(problem, restart, radius, pool)
            found = [pool.choice(*found)]
            radius = self.geometry.norm(found[0] - x0).clamp_max(width)
        return torch.where(per_example(fresh_margins(problem, x0[None])[0] > 0, x0), x0, found[0])


class Nearest(CandidatePool):
    """Keeps the nearest adversarial points, and the point of highest margin in case there are none."""

    def __init__(self, problem: Problem, geometry: Geometry) -> None:
        super().__init__(problem, geometry)
        x0 = problem.x0
        self.rows = torch.arange(len(x0), device=x0.device)
        self.points = x0.expand(KEPT, *x0.shape).clone()
        self.lengths = x0.new_full((KEPT, len(x0)), math.inf)
        self.strongest, self.highest = x0, x0.new_full((len(x0),), -math.inf)

    def offer(self, k: int, x: Tensor, x_margins: Float[Tensor, " b"], direction: Tensor) -> None:
        view, y, lengths = self.problem.view, self.problem.y, self.lengths
        higher = x_margins > self.highest
        self.strongest = torch.where(per_example(higher, x), x, self.strongest)
        self.highest = torch.where(higher, x_margins, self.highest)
        if view.fresh:  # the nearest point so far must be adversarial for the models that judge its challenger, too
            incumbent = lengths.argmin(0), self.rows
            holds = margin(view.logits(k, self.points[incumbent]), y) > 0
            lengths[incumbent] = torch.where(holds, lengths[incumbent], math.inf)
        new, farthest = self.geometry.norm(x - self.problem.x0), lengths.argmax(0)
        chosen = (x_margins > 0) & (new < lengths[farthest, self.rows])
        slot = farthest[chosen], self.rows[chosen]
        self.points[slot], lengths[slot] = x[chosen], new[chosen]

    def choice(self, *others: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        """Return the nearest point that fools fresh models inside the ball; if none does, the one of highest margin."""
        x0, epsilon = self.problem.x0, self.problem.epsilon
        filled = (self.lengths < math.inf).reshape(*self.lengths.shape, *(1,) * (x0.dim() - 1))
        candidates = [*others, *torch.where(filled, self.points, self.strongest), self.strongest]
        lengths = torch.stack([self.geometry.norm(x - x0) for x in candidates])
        clipped = torch.stack(
            [
                torch.where(per_example(length <= epsilon, x), x, self.geometry.project(x, x0, epsilon))
                for x, length in zip(candidates, lengths, strict=True)
            ]
        )
        margins = fresh_margins(self.problem, clipped)
        fooling = torch.where((margins > 0) & (lengths <= epsilon), lengths, math.inf)
        best = torch.where(fooling.amin(0) < math.inf, fooling.argmin(0), margins.argmax(0))
        return clipped[best, self.rows]


class Unconfirmed(CandidatePool):
    """Keeps the nearest point that the models of its own iteration got wrong, whatever others say."""

    def __init__(self, problem: Problem, geometry: Geometry, clips: bool) -> None:
        super().__init__(problem, geometry)
        self.clips = clips
        self.point = problem.x0
        self.length = problem.x0.new_full((len(problem.x0),), math.inf)

    def offer(self, k: int, x: Tensor, x_margins: Float[Tensor, " b"], direction: Tensor) -> None:
        length = self.geometry.norm(x - self.problem.x0)
        better = (x_margins > 0) & (length < self.length)
        self.point = torch.where(per_example(better, x), x, self.point)
        self.length = torch.where(better, length, self.length)

    def choice(self) -> Float[Tensor, "b ..."]:
        """Return the point found; x0 where there is none, where it lies outside and is not clipped, or where the first
        models that see x0 get it wrong already.
        """
        x0, epsilon = self.problem.x0, self.problem.epsilon
        attacked = margin(self.problem.view.logits(RESCORE - 1, x0), self.problem.y) <= 0
        inside = self.length < math.inf if self.clips else self.length <= epsilon
        clipped = self.geometry.project(self.point, x0, epsilon)
        return torch.where(per_example(attacked & inside, x0), clipped, x0)


class Strongest(CandidatePool):
    """Keeps the points of highest margin, which lie in the directions offered, as far from x0 as ball and box allow.

    For views in which each iteration has models of its own.
    """

    def __init__(self, problem: Problem, geometry: Geometry) -> None:
        super().__init__(problem, geometry)
        x0 = problem.x0
        self.rows = torch.arange(len(x0), device=x0.device)
        self.points = x0.expand(KEPT, *x0.shape).clone()
        self.margins = x0.new_full((KEPT, len(x0)), -math.inf)

    def offer(self, k: int, x: Tensor, x_margins: Float[Tensor, " b"], direction: Tensor) -> None:
        """Judge the best point so far by the models that judge its challenger, too: its old margin may be luck."""
        x0, epsilon = self.problem.x0, self.problem.epsilon
        stretch = (epsilon / self.geometry.norm(direction).clamp_min(torch.finfo(x.dtype).tiny)).clamp_min(1.0)
        challenger = self.geometry.project(x0 + per_example(stretch, x) * direction, x0, epsilon)
        incumbent = self.margins.argmax(0), self.rows
        new, again = margins_at(self.problem, [challenger, self.points[incumbent]], [k])
        self.margins[incumbent] = torch.where(self.margins[incumbent] > -math.inf, again, -math.inf)
        weakest = self.margins.argmin(0)
        chosen = new > self.margins[weakest, self.rows]
        slot = weakest[chosen], self.rows[chosen]
        self.points[slot], self.margins[slot] = challenger[chosen], new[chosen]

    def choice(self) -> Float[Tensor, "b ..."]:
        margins = fresh_margins(self.problem, self.points)
        return self.points[torch.where(self.margins > -math.inf, margins, -math.inf).argmax(0), self.rows]


def fresh_margins(problem: Problem, points: Float[Tensor, "k b ..."]) -> Float[Tensor, "k b"]:
    """Return margins over models that neither the run nor the choice of a restart has seen."""
    count = FRESH if problem.view.fresh else 1
    return margins_at(problem, points.unbind(), [RESCORE - 1 - i for i in range(count)])


def margins_at(
    problem: Problem, points: Sequence[Float[Tensor, "b ..."]], iterations: Sequence[int]
) -> Float[Tensor, "k b"]:
    """Return the margin of the mean logits over the models of these iterations, at each of the points."""
    total = torch.stack([problem.view.logits_at(k, points) for k in iterations]).sum(0)
    return torch.stack([margin(z / len(iterations), problem.y) for z in total])
