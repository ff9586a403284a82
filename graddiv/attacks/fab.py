"""The fast adaptive boundary attack (Croce & Hein 2020): to the nearest linearised boundary, and back towards x0."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from graddiv.attacks.attack import Problem
from graddiv.attacks.hyperplane import to_hyperplane
from graddiv.attacks.minimal import CandidatePool, MinimalAttack
from graddiv.errors import GradDivError
from graddiv.geometry import Geometry, per_example
from graddiv.losses import margin


@dataclass(frozen=True)
class FAB(MinimalAttack):
    """x_{k+1} = (1 - a) (x_k + eta d_k) + a (x0 + eta d_0), a = min(|d_k| / (|d_k| + |d_0|), alpha_max).

    d_k and d_0 lead from x_k and from x0 to the nearest of the hyperplanes z_l = z_y, the mean logits linearised at
    x_k, inside the box; where x_{k+1} is adversarial the next step starts from x0 + beta (x_{k+1} - x0).  Mean logits
    are those of the models of an iteration; x_{k+1} is judged by the models of the next, which did not make it.
    """

    m: int = 100
    """Iterations; at least 1.  The defaults of all four are AutoAttack's."""
    alpha_max: float = 0.1
    """The greatest weight, in [0, 1], of the point that is reached from x0."""
    eta: float = 1.05
    """How far steps go, in lengths of the way to the hyperplane; above 1 they end beyond it."""
    beta: float = 0.9
    """How far an adversarial point is kept from x0 when the next step starts, as a share of its distance; in (0, 1]."""

    name = "FAB"
    passes_per_iteration = 12.0
    reference_clips = False

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

    def search(self, problem: Problem, restart: int, radius: Float[Tensor, " b"], pool: CandidatePool) -> None:
        view, x0, y = problem.view, problem.x0, problem.y
        x = self._start(problem, restart, radius) if restart else x0
        for k in range(restart * (self.m + 1), restart * (self.m + 1) + self.m):
            x = self._step(*view.differences(k, x, y), x, x0)
            margins = margin(view.logits(k + 1, x), y)
            pool.offer(k + 1, x, margins, x - x0)
            x = torch.where(per_example(margins > 0, x), x0 + self.beta * (x - x0), x)
            problem.tick()

    def _start(self, problem: Problem, restart: int, radius: Float[Tensor, " b"]) -> Float[Tensor, "b ..."]:
        """x0 + (radius / 2) t / |t|_p for a random t, clipped to the box."""
        unbounded: Geometry = replace(self.geometry, bounds=(-math.inf, math.inf))
        t = unbounded.random(problem.uniform("start", restart), torch.zeros_like(problem.x0), torch.ones_like(radius))
        t = t * per_example(radius / (2 * unbounded.norm(t).clamp_min(1e-12)), t)
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
        length, length0 = (self.geometry.norm(step).clamp_min(1e-8) for step in (d, d0))
        a = per_example((length / (length + length0)).clamp_max(self.alpha_max), x)
        return ((1 - a) * (x + self.eta * d) + a * (x0 + self.eta * d0)).clamp(*self.geometry.bounds)
