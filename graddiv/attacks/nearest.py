"""Three more minimal-norm attacks: DeepFool (2016), Carlini & Wagner (2017), fast minimum-norm (Pintor et al. 2021)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from graddiv.attacks.attack import Problem
from graddiv.attacks.minimal import MinimalAttack, Unconfirmed, nearest_boundary, to_hyperplane
from graddiv.geometry import L2, Geometry, PerExample, per_example
from graddiv.losses import margin
from graddiv.registries import Count, NotNegative, Positive, PositiveShare


@dataclass(frozen=True)
class DeepFool(MinimalAttack):
    """x_{k+1} = x_k + (1 + overshoot) d_k, d_k the way to the nearest of the hyperplanes z_l = z_y linearized at x_k.

    Mean logits are those of the models of an iteration; x_{k+1} is judged by the models of the next.  Where all
    iterations have the same models, an adversarial point is the last; others go on, across the boundary and back.
    """

    m: Count = 50  #: iterations at most; both defaults are those of the paper and of foolbox
    overshoot: NotNegative = 0.02  #: how far beyond the boundary steps lead, as a share of the way to it
    name = "DeepFool"
    passes_per_iteration = 11.0

    def search(self, problem: Problem, restart: int, radius: PerExample, pool: Unconfirmed) -> None:
        view, x0, y, first = problem.view, problem.x0, problem.y, restart * (self.m + 1)
        x = self.beginning(problem, restart, radius)
        there = torch.zeros_like(y, dtype=torch.bool)
        for k in range(first, first + self.m):
            w, b = nearest_boundary(self.geometry, *view.differences(k, x, y), x)
            d = to_hyperplane(self.geometry, x.flatten(1), w, b).view_as(x)
            step = torch.where(per_example(there, x), x, x + (1 + self.overshoot) * d)
            x = step.clamp(*self.geometry.bounds)
            margins = margin(view.logits(k + 1, x), y)
            pool.offer(k + 1, x, margins, x - x0)
            there = (margins > 0) & (not view.fresh)
            problem.tick()


@dataclass(frozen=True)
class FMN(MinimalAttack):
    """x_{k+1} = x_k + a_k g/|g|_2, projected to the ball of radius e_k and to the box; g is the gradient of the margin.

    The radius follows the boundary: e_{k+1} = (1 - c_k) e_k, and at most the least distance of an adversarial point,
    where x_k is adversarial; (1 + c_k) e_k where an earlier point was; until then (1 + c_k) times |x_k - x0|_p plus
    the distance to the boundary linearized at x_k.  As a cosine, a_k falls from step to step / 100 and c_k from gamma
    to 0.001.  Where each iteration has models of its own, the latest adversarial point stands for the nearest one.
    """

    m: Count = 100  #: iterations; the three defaults are foolbox's
    step: Positive = 1.0  #: the length of the first step in the l_2 norm, in pixel units
    gamma: PositiveShare = 0.05  #: the first relative change of the radius
    name = "FMN"
    passes_per_iteration = 3.0

    def search(self, problem: Problem, restart: int, radius: PerExample, pool: Unconfirmed) -> None:
        view, x0, y, first = problem.view, problem.x0, problem.y, restart * (self.m + 1)
        low, high = self.geometry.bounds
        farthest = self.geometry.norm(torch.maximum(x0 - low, high - x0))
        x, nearest = self.beginning(problem, restart, radius), farthest
        ball, found = torch.full_like(farthest, math.inf), torch.zeros_like(y, dtype=torch.bool)
        for k in range(self.m):
            margins, g = view.margin(first + k, x, y)
            length, fooled = self.geometry.norm(x - x0), margins > 0
            pool.offer(first + k, x, margins, x - x0)
            nearest = torch.where(fooled, length if view.fresh else nearest.minimum(length), nearest)
            found = found | fooled
            slope: Tensor = torch.linalg.vector_norm(g.flatten(1), ord=self.geometry.q, dim=1)
            share = (1 + math.cos(math.pi * k / self.m)) / 2
            a, c = self.step * (0.01 + 0.99 * share), 0.001 + (self.gamma - 0.001) * share
            to_boundary = length + margins.abs() / slope.clamp_min(torch.finfo(x.dtype).tiny)
            wider = (1 + c) * torch.where(found & (ball > 0), ball, to_boundary)
            ball = torch.where(fooled, ((1 - c) * ball).minimum(nearest), wider).minimum(farthest)
            x = self.geometry.project(x + L2().steepest(g, torch.full_like(ball, a)), x0, ball)
            problem.tick()
        pool.offer(first + self.m, x, margin(view.logits(first + self.m, x), y), x - x0)


@dataclass(frozen=True)
class CW(MinimalAttack):
    """argmin_w |x(w) - x0|_2^2 + c max(confidence - margin(x(w)), 0) by Adam; x(w) = tanh(w), stretched to the box.

    c is searched for each example: it grows tenfold until some x(w) is adversarial, and halves the interval afterwards.
    The margin is that of the mean logits of the models of an iteration, which also judge x(w).
    """

    geometry: Geometry = L2()  # noqa: RUF009 -- frozen, so safely shared
    m: Count = 9000  #: iterations of Adam, shared among the values of c
    searches: Count = 9  #: how many values of c are tried; 9 as in the authors' code, and so are the next three
    c: Positive = 1e-3  #: the first of them
    lr: Positive = 0.01  #: step size of Adam
    confidence: NotNegative = 0.0  #: the margin that is asked for
    name = "CW"
    norms = (L2,)
    passes_per_iteration = 3.0

    def search(self, problem: Problem, restart: int, radius: PerExample, pool: Unconfirmed) -> None:
        view, x0, y, first = problem.view, problem.x0, problem.y, restart * (self.m + 1)
        low, high = self.geometry.bounds
        middle, half = (high + low) / 2, (high - low) / 2
        begin = ((self.beginning(problem, restart, radius) - middle) / half * 0.999999).atanh()
        c = torch.full_like(radius, self.c)
        least, most = torch.zeros_like(c), torch.full_like(c, math.inf)
        found = torch.zeros_like(y, dtype=torch.bool)
        for k in range(self.m):
            if k == 0 or k * self.searches // self.m > (k - 1) * self.searches // self.m:
                if k:
                    least, most = torch.where(found, least, c), torch.where(found, c, most)
                    c = torch.where(most < math.inf, (least + most) / 2, 10 * c)
                w, found = begin.clone(), torch.zeros_like(found)
                optimizer = torch.optim.Adam([w], lr=self.lr)
            x = middle + half * w.tanh()
            margins, g = view.margin(first + k, x, y)
            pool.offer(first + k, x, margins - self.confidence, x - x0)
            found |= margins > self.confidence
            pull = per_example(torch.where(margins < self.confidence, c, 0.0), x)
            w.grad = (2 * (x - x0) - pull * g) * half * (1 - w.tanh() ** 2)
            optimizer.step()
            problem.tick()
