"""ARC-R: an attack that takes the members of a randomized network one after the other (Dbouk & Shanbhag 2022, 2023)."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from graddiv.attacks.attack import Attack, Problem
from graddiv.attacks.view import Given, View
from graddiv.directions.objectives import Members, log_margin
from graddiv.errors import GradDivError, unknown
from graddiv.geometry import per_example
from graddiv.seeding import fold

Rule = Literal["softmax", "votes", "draw"]

OVERSHOOT = 0.05
"""How far beyond a member's boundary a step is aimed, as a share of epsilon; the paper's rho."""


@dataclass(frozen=True)
class ARC(Attack):
    """For each member in turn: d <- eta (d + beta u) / |d + beta u|_p, kept if the members together are fooled no less.

    u is the steepest step against that member, and beta so long that the member is fooled: its distance to the boundary
    is zeta = h / |w|_q, h its margin and w the gradient of it.  The mean gradient of members that point in opposite
    directions vanishes; this attack never averages.  Members that are fooled already are left alone.

    The members are the view's models, held for `redraw` steps, since greedy steps fit the models they see, and taken in
    a random order at each step.  The tests by which steps are kept cost a pass of every member each, and are counted.
    """

    m: int = 20
    """Steps over all members; 20 as in the paper."""
    eta: float = 1.0
    """The radius within which one step fools the members, as a share of epsilon; 1 as in the paper for l_inf."""
    redraw: int = 4
    """Steps that the same models serve; a deterministic or exact view has no others."""
    rule: Rule = "softmax"
    """What is pushed: the margin of the mean softmax, the share of votes beyond one half, or the accuracy of a draw."""

    name = "ARC"
    passes_per_iteration = 12.0

    def __post_init__(self) -> None:
        if self.m < 1 or self.redraw < 1 or not self.eta > 0:
            raise GradDivError(
                f"m is {self.m}, redraw {self.redraw} and eta {self.eta}, expected at least 1, 1 and a positive number"
            )
        if self.rule not in get_args(Rule):
            raise unknown("rule", self.rule, get_args(Rule))

    @property
    def iterations(self) -> int:
        return self.m

    def run(self, problem: Problem, restart: int) -> Float[Tensor, "b ..."]:
        x, view, y = problem.x0, problem.view, problem.y
        for step in range(self.m):
            if step % self.redraw == 0:
                members = view.held(restart * self.m + step)
                score = self.score(members, x, y)
            order = np.random.default_rng(fold(problem.seed, "order", restart, step)).permutation(len(members.models))
            x, score = self._over_members(problem, members, order.tolist(), x, score)
            problem.tick()
        return x

    def _over_members(
        self, problem: Problem, members: Given, order: list[int], x: Float[Tensor, "b ..."], score: Float[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b ..."], Float[Tensor, " b"]]:
        """Return the point after one step over all members, and its score; what lowers the score is undone."""
        x0, y, epsilon = problem.x0, problem.y, problem.epsilon
        eta = self.eta * epsilon
        local = torch.zeros_like(x)
        best, best_score = x, score
        for position, i in enumerate(order):
            towards, distance, along = self._boundary(members.only(i), best, y, local)
            beta = eta / (eta - distance).clamp_min(torch.finfo(x.dtype).tiny) * (along + distance).abs()
            beta = beta + OVERSHOOT * epsilon
            beta = torch.where((distance >= eta) | (position == 0), eta, beta)
            candidate = local + per_example(beta, x) * towards
            length = self.geometry.norm(candidate)
            candidate = candidate * per_example(eta / torch.where(length > 0, length, 1.0), x)
            point = self.geometry.project(x + candidate, x0, epsilon)
            reached = self.score(members, point, y)
            kept = (distance > 0) & (reached >= best_score)
            local = torch.where(per_example(kept, x), candidate, local)
            best = torch.where(per_example(kept, x), point, best)
            best_score = torch.where(kept, reached, best_score)
        return best, best_score

    def _boundary(
        self, member: View, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"], local: Float[Tensor, "b ..."]
    ) -> tuple[Float[Tensor, "b ..."], Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Return the steepest step of length 1 against one member, zeta, and how far `local` leads away from it.

        zeta is 0 where the member is fooled already or has no gradient.
        """
        found = member.gradient(0, x, y, "margin")
        g = found.direction
        size = torch.linalg.vector_norm(g.flatten(1), ord=self.geometry.q, dim=1)
        usable = size > 0
        size = torch.where(usable, size, 1.0)
        distance = torch.where(usable, -found.value / size, 0.0).clamp_min(0)
        along = -(g * local).flatten(1).sum(1) / size
        return self.geometry.steepest(g, torch.ones_like(size)), distance, along

    def score(self, members: View, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"]) -> Float[Tensor, " b"]:
        """Return what the rule pushes, for each example: the higher, the worse the members answer together."""
        z, p = members.member_logits(0, x), members.probabilities
        said = Members(z, y, z.new_empty(len(z), 0), p=None if p is None else p.to(z))
        if self.rule == "softmax":
            return log_margin(said)
        share = said.mean((z.argmax(2) == y).to(z.dtype))
        return -share if self.rule == "draw" else -(share - 0.5).clamp_min(0)
