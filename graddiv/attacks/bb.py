"""The Brendel & Bethge attack (2019), Linf: along the boundary, inside trust regions, to its point nearest to x0."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graddiv.attacks.attack import Problem, highest
from graddiv.attacks.minimal import MinimalAttack, Unconfirmed, first_reach, margins_at, to_hyperplane
from graddiv.geometry import Images, Linf, PerExample, per_example
from graddiv.losses import margin
from graddiv.registries import Count, Positive, PositiveShare, Range

Pixels = Float[Tensor, "b d"]
Column = Float[Tensor, "b 1"]
TRIALS = 10  #: how many noise images are tried, and gradient steps taken, to find an adversarial starting point
BISECTIONS = 10  #: how often the way from x0 to that point is halved to find the boundary
NEWTON = 30  #: most Newton iterations; enough for the hardest of many random problems, most are solved in ten
TOLERANCE = 1e-4  #: the share of the squared radius by which a step may leave the trust region


@dataclass(frozen=True)
class BB(MinimalAttack):
    """x_{k+1} = x_k + argmin_d |x_k + d - x0|_inf subject to <w_k, d> = c_k, |d|_2 <= r_k and the box.

    w_k is the gradient of the margin of the mean logits, averaged with those before it (`momentum`), c_k leads a little
    further than where the margin is 0 (`overshoot`), always to the adversarial side.  The trust region shrinks by
    `decay` at `decays` times: r_k = decay^j lr d (high - low) after j of them, d pixels.  Mean logits are those of the
    models of an iteration; x_{k+1} is judged by the models of the next, which did not make it.
    """

    m: Count = 1000  #: iterations; at least 1.  The defaults of all six are foolbox's
    lr: Positive = 1e-3  #: the first radius of the trust region, as a share of pixels times the width of the box
    decay: PositiveShare = 0.5  #: the factor by which the trust region shrinks
    decays: Count = 20  #: how many times it shrinks, spread evenly over the m iterations
    momentum: Annotated[float, Range(ge=0, lt=1)] = 0.8  #: the weight of the earlier gradients in w_k
    overshoot: Annotated[float, Range(ge=1, lt=2)] = 1.1  #: how far steps lead beyond the boundary; 1 leads to it
    name = "B&B"
    passes_per_iteration = 4.0
    norms = (Linf,)

    def search(self, problem: Problem, restart: int, radius: PerExample, pool: Unconfirmed) -> None:
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

    def start(self, problem: Problem, restart: int, k: int) -> Images:
        """Return a point just beyond the boundary, between x0 and a far point: noise, or where the gradient leads.

        The first run takes the nearer of the two, later runs take noise, to begin elsewhere.  Networks often assign all
        noise to one class: examples of that class start where the gradient leads in every run.
        """
        share, fooled, x = self._boundary(problem, k, self._noise(problem, restart, k))
        other_share, other_fooled, other = self._boundary(problem, k, self._climb(problem, k))
        better = other_fooled & ((other_share < share) & (restart == 0) | ~fooled)
        return torch.where(per_example(better, x), other, x)

    def _noise(self, problem: Problem, restart: int, k: int) -> Images:
        """Return the noise image of highest margin among TRIALS."""
        low, high = self.geometry.bounds
        draws = (problem.uniform("noise", restart, trial).to(problem.x0.dtype) for trial in range(TRIALS))
        images = [low + (high - low) * u.reshape(problem.x0.shape) for u in draws]
        return highest(torch.stack(images), margins_at(problem, images, [k]))

    def _climb(self, problem: Problem, k: int) -> Images:
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

    def _boundary(self, problem: Problem, k: int, far_point: Images) -> tuple[PerExample, Bool[Tensor, " b"], Images]:
        """Find by bisection the least ball around x0 for which far_point, clipped to it, is adversarial.

        Returns the ball's radius, whether the clipped point is adversarial at all, and that point.
        """
        low, high = self.geometry.bounds

        def clipped(radius: PerExample) -> tuple[Bool[Tensor, " b"], Images]:
            x = self.geometry.project(far_point, problem.x0, radius)
            return margin(problem.view.logits(k, x), problem.y) > 0, x

        inner, outer = torch.zeros_like(problem.epsilon), torch.full_like(problem.epsilon, high - low)
        for _ in range(BISECTIONS):
            middle = (inner + outer) / 2
            fooled, _ = clipped(middle)
            inner, outer = torch.where(fooled, inner, middle), torch.where(fooled, middle, outer)
        return outer, *clipped(outer)

    def _step(self, problem: Problem, x: Images, margins: PerExample, w: Images, k: int) -> Images:
        low, high = self.geometry.bounds
        passed = (k + 2) // max(1, self.m // self.decays)  # foolbox, the reference, counts from 2
        r = torch.full_like(margins, self.lr * self.decay**passed * x[0].numel() * (high - low))
        c = -margins * torch.where(margins < 0, self.overshoot, 2 - self.overshoot)
        d = along_hyperplane(Linf(self.geometry.bounds), problem.x0.flatten(1), x.flatten(1), w.flatten(1), c, r)
        return (x + d.view_as(x)).clamp(low, high)


def along_hyperplane(geometry: Linf, x0: Pixels, x: Pixels, w: Pixels, c: PerExample, r: PerExample) -> Pixels:
    """argmin |x + d - x0|_inf subject to <w, d> = c, |d|_2 <= r and low <= x + d <= high.

    Where the trust region ends before the hyperplane, d is the step inside it that comes closest to the hyperplane.
    """
    low, high = geometry.bounds
    largest = w.abs().amax(1, keepdim=True)  # the hyperplane stays the same when w and c are scaled
    largest = torch.where(largest > 0, largest, 1.0)
    w, c, r = w / largest, c[:, None] / largest, r[:, None]
    nearest = to_hyperplane(geometry, x0, w, (w * x).sum(1) + c.squeeze(1))
    epsilon = nearest.abs().amax(1, keepdim=True)
    nearest = x0 + nearest - x
    inside = torch.linalg.vector_norm(nearest, dim=1, keepdim=True) <= r
    towards = torch.where(c < 0, -w, w)
    farthest = _longest_step(towards, torch.where(towards > 0, high - x, x - low), r)
    reached = (towards * farthest).sum(1, keepdim=True) >= c.abs()

    d = torch.where(reached, nearest, farthest)
    hard = (reached & ~inside).squeeze(1)
    if hard.any():
        d[hard] = _on_region_edge(*(values[hard] for values in (low - x, high - x, x0 - x, w, c, r, epsilon)))
    return d


def _longest_step(w: Pixels, room: Pixels, r: Column) -> Pixels:
    """d = min(t |w|, room) sign(w) with the t at which |d|_2 = r; d takes all the room if that is shorter."""
    square = w**2
    stop = torch.where(square > 0, room**2 / square, 0.0).clamp_max(torch.finfo(w.dtype).max)
    t = first_reach(square, stop, square * stop, r**2).sqrt()
    return w.sign() * torch.minimum(t * w.abs(), room)


def _on_region_edge(
    below: Pixels, above: Pixels, to_x0: Pixels, w: Pixels, c: Column, r: Column, epsilon: Column
) -> Pixels:
    """d = clip(t w) to ball and box, with the least epsilon and the t at which <w, d> = c and |d|_2 = r.

    g(t, epsilon) = |d|^2 / 2 - t (<w, d> - c) is the dual of the shortest d on the hyperplane: concave in t, convex and
    falling in epsilon.  So with g = r^2 / 2 a Newton step in epsilon never goes beyond the solution, which is the
    highest epsilon that any t demands; and once epsilon is what t demands, the sign of <w, d> - c tells on which side
    of t the solution is.

    below, above, to_x0: low - x, high - x and x0 - x, the box and the middle of the ball as seen from x.
    epsilon: a lower bound of the ball's radius: the one that would do without a trust region.
    """
    epsilon = torch.maximum(epsilon, to_x0.abs().amax(1, keepdim=True) - r)
    unit = r / torch.linalg.vector_norm(w, dim=1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
    t = torch.zeros_like(c)
    left, right = torch.full_like(c, -math.inf), torch.full_like(c, math.inf)
    found, rows = torch.empty_like(w), torch.arange(len(w), device=w.device)
    for _ in range(NEWTON):
        free = t * w
        in_ball = free.clamp(to_x0 - epsilon, to_x0 + epsilon)
        d = in_ball.clamp(below, above)
        unboxed = 1 - (d - in_ball).sign().abs()
        pull = in_ball - free
        at_ball = pull.sign() * unboxed
        miss = (w * d).sum(1, keepdim=True) - c
        excess = (d * d).sum(1, keepdim=True) / 2 - t * miss - r**2 / 2
        settled = excess < TOLERANCE * r**2
        solved = settled & (miss.abs() < TOLERANCE * r**2 / unit)

        growth = (excess.clamp_min(0) / (pull * at_ball).sum(1, keepdim=True)).nan_to_num(0.0, 0.0)
        left = torch.where(settled & (miss < 0), t.maximum(left), left)
        right = torch.where(settled & (miss > 0), t.minimum(right), right)
        drift = growth * (w * at_ball).sum(1, keepdim=True)
        newton = t - (miss - drift) / (w**2 * (unboxed - at_ball.abs())).sum(1, keepdim=True)
        middle = unit * (((left / unit).atan() + (right / unit).atan()) / 2).tan()
        proposal = torch.where((newton > left) & (newton < right), newton, middle)
        t = torch.where(settled, proposal, t)
        epsilon = epsilon + growth

        if solved.any():  # few problems take long, and the others need not wait for them
            found[rows] = d
            hard = ~solved.squeeze(1)
            if not hard.any():
                return found
            rows, t, epsilon, left, right, unit, below, above, to_x0, w, c, r, d = (
                values[hard] for values in (rows, t, epsilon, left, right, unit, below, above, to_x0, w, c, r, d)
            )
    found[rows] = d
    return found
