"""The Brendel & Bethge attack (2019), Linf: along the boundary, inside trust regions, to its point nearest to x0."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graddiv.attacks.attack import Problem
from graddiv.attacks.hyperplane import to_hyperplane
from graddiv.attacks.minimal import CandidatePool, MinimalAttack, margins_at
from graddiv.attacks.trust_region import along_hyperplane
from graddiv.errors import GradDivError
from graddiv.geometry import Linf, per_example
from graddiv.losses import margin

TRIALS = 10
"""How many noise images are tried, and how many gradient steps are taken, to find an adversarial starting point."""

BISECTIONS = 10
"""How often the way from x0 to that point is halved to find the boundary."""


@dataclass(frozen=True)
class BB(MinimalAttack):
    """x_{k+1} = x_k + argmin_d |x_k + d - x0|_inf subject to <w_k, d> = c_k, |d|_2 <= r_k and the box.

    w_k is the gradient of the margin of the mean logits, averaged with those before it (`momentum`), c_k leads a little
    further than where the margin is 0 (`overshoot`, 1 for no further), always to the adversarial side.  The trust
    region shrinks by `decay` at `decays` times: r_k = decay^j lr d (high - low) after j of them, d pixels.

    Mean logits are those of the models of an iteration; x_{k+1} is judged by the models of the next, which did not make
    it.
    """

    m: int = 1000
    """Iterations; at least 1.  The defaults of all six are foolbox's."""
    lr: float = 1e-3
    """The first radius of the trust region, as a share of the number of pixels times the width of the box."""
    decay: float = 0.5
    """The factor, in (0, 1], by which the trust region shrinks."""
    decays: int = 20
    """How many times it shrinks, spread evenly over the m iterations."""
    momentum: float = 0.8
    """The weight, in [0, 1), of the earlier gradients in w_k."""
    overshoot: float = 1.1
    """How far steps lead beyond the boundary, in [1, 2); 1 leads exactly to it."""

    name = "B&B"
    passes_per_iteration = 4.0
    reference_clips = True

    def __post_init__(self) -> None:
        if not isinstance(self.geometry, Linf):
            raise GradDivError(
                f"the geometry is {self.geometry.name}, expected Linf: the only norm B&B is made for here"
            )
        if self.m < 1 or self.decays < 1:
            raise GradDivError(f"m is {self.m} and decays {self.decays}, expected at least one of each")
        if not (self.lr > 0 and 0 < self.decay <= 1 and 0 <= self.momentum < 1 and 1 <= self.overshoot < 2):
            raise GradDivError(
                f"lr is {self.lr}, decay {self.decay}, momentum {self.momentum} and overshoot {self.overshoot}, "
                "expected lr above 0, decay in (0, 1], momentum in [0, 1) and overshoot in [1, 2)"
            )

    @property
    def iterations(self) -> int:
        return self.m

    def search(self, problem: Problem, restart: int, radius: Float[Tensor, " b"], pool: CandidatePool) -> None:
        view, y = problem.view, problem.y
        first = restart * (self.m + 1)
        x = self.start(problem, restart, first)
        margins, w = view.margin(first, x, y)
        pool.offer(first, x, margins, w.sign())
        for k in range(self.m):
            x = self._step(problem, x, margins, w, k)
            margins, g = view.margin(first + k + 1, x, y)
            # x0 + epsilon sign(w) is the worst point of the ball if the boundary is flat
            pool.offer(first + k + 1, x, margins, w.sign())
            w = self.momentum * w + (1 - self.momentum) * g
            problem.tick()

    def start(self, problem: Problem, restart: int, k: int) -> Float[Tensor, "b ..."]:
        """Return a point just beyond the boundary, between x0 and a far point: noise, or where the gradient leads.

        The first run takes the nearer of the two, to begin in the right place; later runs take noise, to begin
        elsewhere.  Noise is often classified as one certain class, and is no adversarial point for examples of that
        class: these start where the gradient leads in every run.
        """
        (share, fooled, x), (other_share, other_fooled, other) = (
            self._boundary(problem, k, far_point)
            for far_point in (self._noise(problem, restart, k), self._climb(problem, k))
        )
        better = other_fooled & ((other_share < share) & (restart == 0) | ~fooled)
        return torch.where(per_example(better, x), other, x)

    def _noise(self, problem: Problem, restart: int, k: int) -> Float[Tensor, "b ..."]:
        """Return, of TRIALS noise images, the one of highest margin."""
        low, high = self.geometry.bounds
        draws = (problem.uniform("noise", restart, trial).to(problem.x0.dtype) for trial in range(TRIALS))
        images = [low + (high - low) * u.reshape(problem.x0.shape) for u in draws]
        best = margins_at(problem, images, [k]).argmax(0)
        return torch.stack(images)[best, torch.arange(len(best), device=best.device)]

    def _climb(self, problem: Problem, k: int) -> Float[Tensor, "b ..."]:
        """Return where TRIALS signed gradient steps lead: towards the class whose boundary looks nearest from x0."""
        view, x, y = problem.view, problem.x0, problem.y
        low, high = self.geometry.bounds
        gaps, gradients = view.differences(k, x, y)
        point, w = x.flatten(1), gradients.flatten(2)
        heights = (w * point[:, None]).sum(2) - gaps
        steps = [to_hyperplane(self.geometry, point, w[:, i], heights[:, i]) for i in range(w.shape[1])]
        nearest = torch.stack([self.geometry.norm(step) for step in steps]).argmin(0)
        g = gradients[torch.arange(len(x), device=x.device), nearest]
        for trial in range(TRIALS):
            if trial:
                g = view.differences(k, x, y, only=nearest)[1].squeeze(1)
            x = (x + (high - low) / TRIALS * g.sign()).clamp(low, high)
        return x

    def _boundary(
        self, problem: Problem, k: int, far_point: Float[Tensor, "b ..."]
    ) -> tuple[Float[Tensor, " b"], Bool[Tensor, " b"], Float[Tensor, "b ..."]]:
        """Find by bisection the least ball around x0 for which far_point, clipped to it, is adversarial.

        Returns the ball's radius, whether the clipped point is adversarial at all, and that point.
        """
        low, high = self.geometry.bounds

        def clipped(radius: Float[Tensor, " b"]) -> Float[Tensor, "b ..."]:
            return self.geometry.project(far_point, problem.x0, radius)

        def fools(x: Float[Tensor, "b ..."]) -> Bool[Tensor, " b"]:
            return margin(problem.view.logits(k, x), problem.y) > 0

        inner, outer = torch.zeros_like(problem.epsilon), torch.full_like(problem.epsilon, high - low)
        for _ in range(BISECTIONS):
            middle = (inner + outer) / 2
            fooled = fools(clipped(middle))
            inner, outer = torch.where(fooled, inner, middle), torch.where(fooled, middle, outer)
        return outer, fools(clipped(outer)), clipped(outer)

    def _step(
        self,
        problem: Problem,
        x: Float[Tensor, "b ..."],
        margins: Float[Tensor, " b"],
        w: Float[Tensor, "b ..."],
        k: int,
    ) -> Float[Tensor, "b ..."]:
        low, high = self.geometry.bounds
        passed = (k + 2) // max(1, self.m // self.decays)  # foolbox, the reference, counts from 2
        r = torch.full_like(margins, self.lr * self.decay**passed * x[0].numel() * (high - low))
        c = -margins * torch.where(margins < 0, self.overshoot, 2 - self.overshoot)
        d = along_hyperplane(Linf(self.geometry.bounds), problem.x0.flatten(1), x.flatten(1), w.flatten(1), c, r)
        return (x + d.view_as(x)).clamp(low, high)
