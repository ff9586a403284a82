"""The fast adaptive boundary attack (Croce & Hein 2020): to the nearest linearised boundary, and back towards x0."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.attacks.attack import RESCORE, Attack, Problem
from graddiv.attacks.hyperplane import to_hyperplane
from graddiv.attacks.views import View, as_view
from graddiv.errors import GradDivError
from graddiv.geometry import Geometry, rows
from graddiv.losses import margin

KEPT = 5
"""How many of the nearest points are kept until fresh models choose among them."""

FRESH = 10
"""How many iterations' worth of fresh models choose: with one model each, a single one would decide by chance."""


@dataclass(frozen=True)
class FAB(Attack):
    """x_{k+1} = (1 - a) (x_k + eta d_k) + a (x0 + eta d_0), a = min(|d_k| / (|d_k| + |d_0|), alpha_max).

    d_k and d_0 lead from x_k and from x0 to the nearest of the hyperplanes z_l = z_y, the mean logits linearised at
    x_k, inside the box; where x_{k+1} is adversarial the next step starts from x0 + beta (x_{k+1} - x0).  Mean logits
    are those of the models of an iteration; x_{k+1} is judged by the models of the next, which did not make it.
    """

    m: int = 100
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9

    name = "FAB"

    def __post_init__(self) -> None:
        if self.m < 1:
            raise GradDivError(f"m is {self.m}, expected at least one iteration")
        if not (0 <= self.alpha_max <= 1 and self.eta >= 1 and 0 < self.beta <= 1):
            raise GradDivError(
                f"alpha_max is {self.alpha_max}, eta {self.eta} and beta {self.beta}, "
                "expected alpha_max in [0, 1], eta at least 1 and beta in (0, 1]"
            )

    @property
    def iterations(self) -> int:
        return self.m

    def run(self, problem: Problem, restart: int) -> Float[Tensor, "b ..."]:
        """The nearest adversarial point if it is in the ball; otherwise the one that, clipped to it, is the worst."""
        return self._choice(problem, self._search(problem, restart, problem.epsilon), problem.epsilon)

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
        unbounded = torch.full_like(self._checked(x0, y, 0.0), math.inf)
        if len(x0) == 0:
            return x0.clone()
        ids = torch.arange(len(x0), device=x0.device) if ids is None else ids
        problem = Problem(view, x0, y, unbounded, ids, self.seed, lambda: None)
        width = self.geometry.bounds[1] - self.geometry.bounds[0]
        x = self._choice(problem, self._search(problem, 0, unbounded), unbounded)
        for restart in range(1, self.restarts):
            best = self.geometry.norm(x - x0).clamp_max(width)
            x = self._choice(problem, torch.cat([x[None], self._search(problem, restart, best)]), unbounded)
        return torch.where(rows(_fresh_margin(problem, x0) > 0, x0), x0, x)

    def _search(self, problem: Problem, restart: int, radius: Float[Tensor, " b"]) -> Float[Tensor, "kept b ..."]:
        """The nearest adversarial points met, and the one of highest margin: all of them made, none of them x0."""
        view, x0, y = problem.view, problem.x0, problem.y
        x = self._start(problem, restart, radius) if restart else x0
        everyone = torch.arange(len(x0), device=x0.device)
        kept = x0.expand(KEPT, *x0.shape).clone()
        length = x0.new_full((KEPT, len(x0)), math.inf)
        strongest, highest = x0, x0.new_full((len(x0),), -math.inf)
        for k in range(restart * (self.m + 1), restart * (self.m + 1) + self.m):
            x = self._step(*view.differences(k, x, y), x, x0)
            against = margin(view.logits(k + 1, x), y)
            higher = against > highest
            strongest, highest = torch.where(rows(higher, x), x, strongest), torch.where(higher, against, highest)
            if view.fresh:  # the incumbent has to hold before the models that judge its challenger
                incumbent = length.argmin(0), everyone
                holds = margin(view.logits(k + 1, kept[incumbent]), y) > 0
                length[incumbent] = torch.where(holds, length[incumbent], math.inf)
            new, farthest = self.geometry.norm(x - x0), length.argmax(0)
            chosen = (against > 0) & (new < length[farthest, everyone])
            slot = farthest[chosen], everyone[chosen]
            kept[slot], length[slot] = x[chosen], new[chosen]
            x = torch.where(rows(against > 0, x), x0 + self.beta * (x - x0), x)
            problem.tick()
        made = (length < math.inf).reshape(*length.shape, *(1,) * (x0.dim() - 1))
        return torch.cat([torch.where(made, kept, strongest), strongest[None]])

    def _start(self, problem: Problem, restart: int, radius: Float[Tensor, " b"]) -> Float[Tensor, "b ..."]:
        """x0 + (radius / 2) t / |t|_p for a random t, clipped to the box."""
        unbounded: Geometry = replace(self.geometry, bounds=(-math.inf, math.inf))
        t = unbounded.random(problem.uniform("start", restart), torch.zeros_like(problem.x0), torch.ones_like(radius))
        t = t * rows(radius / (2 * unbounded.norm(t).clamp_min(1e-12)), t)
        return (problem.x0 + t).clamp(*self.geometry.bounds)

    def _step(
        self,
        gaps: Float[Tensor, "b l"],
        gradients: Float[Tensor, "b l ..."],
        x: Float[Tensor, "b ..."],
        x0: Float[Tensor, "b ..."],
    ) -> Float[Tensor, "b ..."]:
        """The step of the class docstring, to the nearest boundary: the least |z_l - z_y| / |grad (z_l - z_y)|_q."""
        steepness: Tensor = torch.linalg.vector_norm(gradients.flatten(2), ord=self.geometry.q, dim=2)
        boundary = torch.arange(len(x), device=x.device), (gaps.abs() / (steepness + 1e-12)).argmin(1)
        w = gradients[boundary].flatten(1)
        b = (w * x.flatten(1)).sum(1) - gaps[boundary]
        d, d0 = (to_hyperplane(self.geometry, point.flatten(1), w, b).view_as(x) for point in (x, x0))
        length, length0 = (self.geometry.norm(way).clamp_min(1e-8) for way in (d, d0))
        a = rows((length / (length + length0)).clamp_max(self.alpha_max), x)
        return ((1 - a) * (x + self.eta * d) + a * (x0 + self.eta * d0)).clamp(*self.geometry.bounds)

    def _choice(
        self, problem: Problem, met: Float[Tensor, "kept b ..."], epsilon: Float[Tensor, " b"]
    ) -> Float[Tensor, "b ..."]:
        """The nearest of the points that fool fresh models inside the ball; if none does, the one of highest margin."""
        lengths = torch.stack([self.geometry.norm(x - problem.x0) for x in met])
        clipped = torch.stack(
            [
                torch.where(rows(length <= epsilon, x), x, self.geometry.project(x, problem.x0, epsilon))
                for x, length in zip(met, lengths, strict=True)
            ]
        )
        margins = torch.stack([_fresh_margin(problem, x) for x in clipped])
        fooling = torch.where((margins > 0) & (lengths <= epsilon), lengths, math.inf)
        choice = torch.where(fooling.amin(0) < math.inf, fooling.argmin(0), margins.argmax(0))
        return clipped[choice, torch.arange(len(choice), device=choice.device)]


def _fresh_margin(problem: Problem, x: Float[Tensor, "b ..."]) -> Float[Tensor, " b"]:
    """The margin of the mean logits over models that neither the iterations nor the choice of a restart look at."""
    count = FRESH if problem.view.fresh else 1
    total = sum(problem.view.logits(RESCORE - 1 - i, x) for i in range(count))
    return margin(torch.as_tensor(total) / count, problem.y)
