"""Auto-PGD (Croce and Hein 2020): projected gradient ascent with momentum that halves its own steps."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graddiv.attacks.attack import RESCORE, Attack, Problem, ReturnRule, highest, keep_best
from graddiv.errors import GradDivError
from graddiv.geometry import Images, Linf, PerExample, per_example
from graddiv.registries import Count, PositiveShare, Share

KEPT = 3  #: how many of the best iterates are scored again on fresh models: the highest of noisy losses is partly luck


class Ascent(NamedTuple):
    """The points that one run has found."""

    best: Float[Tensor, "k b ..."]  #: the iterates of highest loss, at most KEPT of them, the highest first
    last: Images  #: the last iterate
    fooling: Images  #: the last iterate that the last model of its iteration got wrong; the start where there is none
    fooled: Bool[Tensor, " b"]  #: whether there is such an iterate
    eta: PerExample  #: the step size at the end


@dataclass(frozen=True)
class APGD(Attack):
    """x_{k+1} = P(x_k + a (z-x_k) + (1-a) (x_k-x_{k-1})), z = P(x_k + argmax_{|g|_p <= eta} <g, E grad L(F(x_k), y)>).

    P projects to the ball, a is the momentum.  The m iterations start from a random point of the sphere, with
    eta = 2 epsilon.  A checkpoint halves eta and returns to the best point if the loss rose in at most a share rho of
    the steps, or if the best loss did not improve although the last checkpoint kept eta.

    return_rule "strong": returns the iterate, among the best and the last, with the highest loss on fresh models.
    "reference": like AutoAttack, returns the last iterate that a single model misclassified; the clean image if there
    is none or a first model already misclassifies it.  Weak on randomized networks, but what papers report.
    """

    m: Count = 100  #: iterations; 100 as in AutoAttack
    momentum: PositiveShare = 0.75  #: a above; the default is AutoAttack's
    rho: Share = 0.75  #: share of rising steps up to which eta is halved; the default is AutoAttack's
    return_rule: ReturnRule = "strong"  #: which point is returned, see above

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.return_rule == "reference" and self.restarts > 1:
            raise GradDivError(f"restarts is {self.restarts}, expected 1 with return_rule='reference'")

    @property
    def name(self) -> str:  # type: ignore[override]
        """APGD-CE or APGD-DLR, as in the paper's tables."""
        return f"APGD-{self.objective.upper()}"

    def run(self, problem: Problem, restart: int) -> Images:
        view, x0, y = problem.view, problem.x0, problem.y
        found = self.ascend(problem, self.start(problem, restart), first=restart * (self.m + 1))
        fresh = RESCORE - 1 - restart
        if self.return_rule == "reference":
            attacked = view.held(fresh, 1).logits(0, x0).argmax(1) == y
            return torch.where(per_example(attacked & found.fooled, x0), found.fooling, x0)
        candidates = torch.cat([found.best, found.last[None]])
        return highest(candidates, view.losses(fresh, candidates.unbind(), y, self.objective))

    def start(self, problem: Problem, restart: int) -> Images:
        """x0 + epsilon t / |t|_p with t uniform in the cube for Linf, normal otherwise; projected to the box."""
        x0, u = problem.x0, problem.uniform("start", restart)
        t = 2 * u - 1 if isinstance(self.geometry, Linf) else torch.special.ndtri(u.clamp(2**-54, 1 - 2**-53))
        t = (t / per_example(self.geometry.norm(t), t)).to(x0.dtype).reshape(x0.shape)
        return self.geometry.project(x0 + per_example(problem.epsilon, x0) * t, x0, problem.epsilon)

    def ascend(self, problem: Problem, start: Images, first: int = 0) -> Ascent:
        """Take m steps from `start`, looking at the models of the iterations first .. first + m."""
        y, said = problem.y, list[Tensor]()
        gradient = partial(problem.view.gradient, y=y, objective=self.objective, logits=said)
        project = partial(self.geometry.project, x0=problem.x0, epsilon=problem.epsilon)

        def wrong() -> Bool[Tensor, " b"]:
            """Whether the last model is wrong."""
            answer = said[-1].argmax(1) != y
            said.clear()
            return answer

        x = previous = fooling = start
        g, _, loss = gradient(first, x)
        fooled, eta, checkpoints = wrong(), 2 * problem.epsilon, self.checkpoints()
        best, best_loss, best_g = x[None], loss[None], g
        # The reference compares its first step with a loss of 0, not with that of the start, and treats eta as halved
        # before the first checkpoint.
        halved, rises = torch.ones_like(fooled), torch.zeros_like(y)
        loss, checked_loss = torch.zeros_like(loss), loss
        for k in range(self.m):
            a = self.momentum if k else 1.0
            z = project(self.geometry.step(x, g, eta))
            x, previous = project(x + a * (z - x) + (1 - a) * (x - previous)), x
            loss_before, (g, _, loss) = loss, gradient(first + k + 1, x)
            rises = rises + (loss > loss_before)
            best_g = torch.where(per_example(loss > best_loss[0], g), g, best_g)
            best, best_loss = keep_best(best, best_loss, x, loss, KEPT)
            now = wrong()
            fooling, fooled = torch.where(per_example(now, x), x, fooling), fooled | now

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
