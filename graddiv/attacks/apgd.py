"""Auto-PGD (Croce and Hein 2020): projected gradient ascent with momentum that halves its own steps."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from graddiv.attacks.attack import RESCORE, Attack, Problem, ReturnRule, keep_best
from graddiv.attacks.view import View
from graddiv.directions.objectives import attack_objective
from graddiv.errors import GradDivError, unknown
from graddiv.geometry import Linf, per_example
from graddiv.networks import SampleModel

KEPT = 3
"""How many of the best iterates are scored again on fresh models.

The highest of many noisy losses is partly luck, so the iterate that had it need not be the best one.
"""


class Ascent(NamedTuple):
    """The points that one run has found."""

    best: Float[Tensor, "k b ..."]
    """The iterates of highest loss, at most KEPT of them, the highest first."""
    last: Float[Tensor, "b ..."]
    """The last iterate."""
    fooling: Float[Tensor, "b ..."]
    """The last iterate that the last model of its iteration got wrong; the start where there is none."""
    fooled: Bool[Tensor, " b"]
    """Whether there is such an iterate."""
    eta: Float[Tensor, " b"]
    """The step size at the end."""


@dataclass(frozen=True)
class APGD(Attack):
    """x_{k+1} = P(x_k + a (z-x_k) + (1-a) (x_k-x_{k-1})), z = P(x_k + argmax_{|g|_p <= eta} <g, E grad L(F(x_k), y)>).

    P projects to the ball, a is the momentum.  m iterations from a random point of the sphere.  eta starts at
    2 epsilon; at checkpoints it is halved, and the best point so far is gone back to, where the loss rose in no more
    than a share rho of the steps, or the best loss did not move although eta had been left alone.  Gradient and loss
    are means over the same models.

    return_rule "strong": of the best iterates and the last, the one with the highest loss on fresh models.
    "reference": as AutoAttack, the last iterate that a single model got wrong; the clean image where there is none,
    or where a first model was wrong about it already.  Weak on randomized networks, but what is published.
    """

    m: int = 100
    """Iterations; 100 as in AutoAttack."""
    momentum: float = 0.75
    """a above, in (0, 1]; the default is AutoAttack's."""
    rho: float = 0.75
    """Share of rising steps, in [0, 1], up to which eta is halved at a checkpoint; the default is AutoAttack's."""
    return_rule: ReturnRule = "strong"
    """Which point is returned, as described above."""

    def __post_init__(self) -> None:
        attack_objective(self.objective)
        if self.m < 1:
            raise GradDivError(f"m is {self.m}, expected at least one iteration")
        if not (0 < self.momentum <= 1 and 0 <= self.rho <= 1):
            raise GradDivError(f"momentum is {self.momentum} and rho {self.rho}, expected shares between 0 and 1")
        if self.return_rule not in get_args(ReturnRule):
            raise unknown("return_rule", self.return_rule, get_args(ReturnRule))
        if self.return_rule == "reference" and self.restarts > 1:
            raise GradDivError(f"restarts is {self.restarts}, expected 1 with return_rule='reference'")

    @property
    def name(self) -> str:  # type: ignore[override]
        """APGD-CE or APGD-DLR, as in the paper's tables."""
        return f"APGD-{self.objective.upper()}"

    @property
    def iterations(self) -> int:
        return self.m

    def run(self, problem: Problem, restart: int) -> Float[Tensor, "b ..."]:
        view, x0, y = problem.view, problem.x0, problem.y
        found = self.ascend(problem, self.start(problem, restart), first=restart * (self.m + 1))
        fresh = RESCORE - 1 - restart
        if self.return_rule == "reference":
            attacked = _RecordingView(view).first_prediction(fresh, x0) == y
            return torch.where(per_example(attacked & found.fooled, x0), found.fooling, x0)
        candidates = torch.cat([found.best, found.last[None]])
        losses = view.losses(fresh, candidates.unbind(), y, self.objective)
        return candidates[losses.argmax(0), torch.arange(len(x0), device=x0.device)]

    def start(self, problem: Problem, restart: int) -> Float[Tensor, "b ..."]:
        """x0 + epsilon t / |t|_p with t uniform in the cube for Linf, normal for L2; clipped to the box."""
        x0, u = problem.x0, problem.uniform("start", restart)
        t = 2 * u - 1 if isinstance(self.geometry, Linf) else torch.special.ndtri(u.clamp(2**-54, 1 - 2**-53))
        t = (t / per_example(self.geometry.norm(t), t)).to(x0.dtype).reshape(x0.shape)
        return self.geometry.project(x0 + per_example(problem.epsilon, x0) * t, x0, problem.epsilon)

    def ascend(self, problem: Problem, start: Float[Tensor, "b ..."], first: int = 0) -> Ascent:
        """Take m steps from `start`, looking at the models of the iterations first .. first + m."""
        view, y = _RecordingView(problem.view), problem.y
        project = partial(self.geometry.project, x0=problem.x0, epsilon=problem.epsilon)
        x = previous = fooling = start
        g, _, loss = view.gradient(first, x, y, self.objective)
        fooled = view.last_prediction != y
        best, best_loss, best_g = x[None], loss[None], g
        eta = 2 * problem.epsilon

        # The reference compares its first step with a loss of 0, not with that of the start, and treats eta as halved
        # before the first checkpoint.
        loss, rises, checked_loss = torch.zeros_like(loss), torch.zeros_like(y), loss
        halved = torch.ones_like(fooled)
        checkpoints = self.checkpoints()
        for k in range(self.m):
            a = self.momentum if k else 1.0
            z = project(x + self.geometry.steepest(g, eta))
            x, previous = project(x + a * (z - x) + (1 - a) * (x - previous)), x

            loss_before = loss
            g, _, loss = view.gradient(first + k + 1, x, y, self.objective)
            rises = rises + (loss > loss_before)
            best_g = torch.where(per_example(loss > best_loss[0], g), g, best_g)
            best, best_loss = keep_best(best, best_loss, x, loss, KEPT)
            wrong = view.last_prediction != y
            fooling, fooled = torch.where(per_example(wrong, x), x, fooling), fooled | wrong

            if window := checkpoints.get(k):
                halved = (rises <= self.rho * window) | (~halved & (best_loss[0] <= checked_loss))
                eta = torch.where(halved, eta / 2, eta)
                x, g = torch.where(per_example(halved, x), best[0], x), torch.where(per_example(halved, g), best_g, g)
                checked_loss, rises = best_loss[0], torch.zeros_like(rises)
            problem.tick()
        return Ascent(best, x, fooling, fooled, eta)

    def checkpoints(self) -> dict[int, int]:
        """Return {k: w}, where w is how many steps are judged after step k: from 0.22 m, by 0.03 m less, to 0.06 m."""
        longest, shrinkage, shortest = (max(int(share * self.m), 1) for share in (0.22, 0.03, 0.06))
        windows, k, window = {}, longest - 1, longest
        while k < self.m:
            windows[k] = window
            window = max(window - shrinkage, shortest)
            k += window
        return windows


class _RecordingView(View):
    """Another view as it is, which also remembers what the last model that was called predicted."""

    last_prediction: Int64[Tensor, " b"]

    def __init__(self, view: View) -> None:
        self.view, self.cost = view, view.cost
        self.fresh, self.prefix = view.fresh, view.prefix
        self.probabilities, self.n = view.probabilities, view.n

    @property
    def random(self) -> bool:
        return self.view.random

    def __call__(self, k: int) -> Iterator[SampleModel]:
        return (partial(self._record, f) for f in self.view(k))

    def first_prediction(self, k: int, x: Float[Tensor, "b ..."]) -> Int64[Tensor, " b"]:
        """Return the classes that the first model of iteration k predicts."""
        with torch.no_grad(), self.context():
            return next(self._counted(k))(x).argmax(1)

    def _record(self, f: SampleModel, x: Tensor) -> Tensor:
        logits = f(x)
        self.last_prediction = logits.detach().argmax(1)
        return logits

    def context(self) -> AbstractContextManager[None]:
        return self.view.context()
