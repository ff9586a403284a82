"""ARC-R: an attack that takes the members of a randomized network one after the other (Dbouk & Shanbhag 2022, 2023)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from graddiv.attacks.attack import Attack, Problem
from graddiv.attacks.view import Given, View
from graddiv.geometry import Images, Labels, PerExample, per_example
from graddiv.losses import expectation, log_expectation, margin
from graddiv.registries import Count, Positive
from graddiv.seeding import fold

Rule = Literal["softmax", "draw"]

OVERSHOOT = 0.05  #: how far beyond a member's boundary a step is aimed, as a share of epsilon; the paper's rho


@dataclass(frozen=True)
class ARC(Attack):
    """For each member in turn: d <- eta (d + beta u) / |d + beta u|_p, kept if it does not lower the joint score.

    u is the steepest step against that member and beta the length that fools it: the distance to its boundary is
    zeta = h / |w|_q, with margin h and gradient w of the margin.  Opposite gradients of members cancel in a mean; this
    attack never averages.  It skips members that are already fooled.

    The members are the view's models, held for `redraw` steps, since greedy steps fit the models they see.  Each step
    visits them in a random order.
    """

    m: Count = 20  #: steps over all members; 20 as in the paper
    eta: Positive = 1.0  #: the radius within which one step fools the members, as a share of epsilon; 1 as in the paper
    redraw: Count = 4  #: steps between new draws of the models; deterministic and exact views have only one set
    rule: Rule = "softmax"  #: what is maximized: the log-margin of the mean softmax, or the error of a draw
    name = "ARC"
    passes_per_iteration = 12.0

    def run(self, problem: Problem, restart: int) -> Images:
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
        self, problem: Problem, members: Given, order: list[int], x: Images, score: PerExample
    ) -> tuple[Tensor, Tensor]:
        """Step over all members once, undo changes that lower the score; return the point and its score."""
        x0, y, epsilon, eta = problem.x0, problem.y, problem.epsilon, self.eta * problem.epsilon
        local, best, best_score = torch.zeros_like(x), x, score
        for position, i in enumerate(order):
            towards, distance, along = self._boundary(Given([members.models[i]], members), best, y, local)
            beta = eta / (eta - distance).clamp_min(torch.finfo(x.dtype).tiny) * (along + distance).abs()
            beta = torch.where((distance >= eta) | (position == 0), eta, beta + OVERSHOOT * epsilon)
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

    def _boundary(self, member: View, x: Images, y: Labels, local: Images) -> tuple[Tensor, Tensor, Tensor]:
        """Return the steepest step of length 1 against one member, zeta, and how far `local` leads away from it.

        zeta is 0 where the member is fooled already or has no gradient.
        """
        g, _, value = member.gradient(0, x, y, "margin")
        size = torch.linalg.vector_norm(g.flatten(1), ord=self.geometry.q, dim=1)
        usable = size > 0
        size = torch.where(usable, size, 1.0)
        distance = torch.where(usable, -value / size, 0.0).clamp_min(0)
        along = -(g * local).flatten(1).sum(1) / size
        return self.geometry.steepest(g, torch.ones_like(size)), distance, along

    def score(self, members: View, x: Images, y: Labels) -> PerExample:
        """Return what the rule maximizes, per example: higher means that the members do worse."""
        z = members.member_logits(0, x)
        p = None if members.probabilities is None else members.probabilities.to(z)
        if self.rule == "softmax":  # log P(c) - log P(y), P the mean softmax and c its highest class but y
            return margin(log_expectation(z.log_softmax(2), p), y)
        return -expectation((z.argmax(2) == y).to(z.dtype), p)
