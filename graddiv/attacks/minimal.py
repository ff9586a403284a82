"""The fast adaptive boundary attack (Croce & Hein 2020), and what minimal-norm attacks (FAB, B&B) share."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graddiv.attacks.attack import RESCORE, Attack, Problem, ReturnRule, explaining, highest, keep_best
from graddiv.attacks.view import View
from graddiv.geometry import Geometry, Images, Labels, PerExample, filled, per_example
from graddiv.losses import margin
from graddiv.registries import Count, PositiveShare, Range, Share

KEPT = 5  #: how many of the best points are kept for each example until fresh models choose among them
FRESH = 10  #: how many iterations' models choose: with one model an iteration, a single one would decide by chance


class Unconfirmed:
    """Keeps the nearest points that the models of their own iteration misclassify, whatever other models say."""

    def __init__(self, problem: Problem, geometry: Geometry, clips: bool = False) -> None:
        self.problem, self.geometry, self.clips = problem, geometry, clips
        self.points, self.scores = problem.x0[None], problem.x0.new_full((1, len(problem.x0)), -math.inf)

    def keep(self, x: Images, score: PerExample) -> None:
        """Keep x if its score is among the KEPT highest; x0 has the score -inf and stands for no point at all."""
        self.points, self.scores = keep_best(self.points, self.scores, x, score, KEPT)

    def offer(self, k: int, x: Images, margins: PerExample, direction: Images) -> None:
        """Keep x if it is among the nearest adversarial points so far.

        k, margins: the iteration whose models judged x, and the margin of their mean logits at x.
        direction: the way from x0 that raises the margin, of any length.
        """
        self.keep(x, torch.where(margins > 0, -self.geometry.norm(x - self.problem.x0), -math.inf))

    def choice(self) -> Images:
        """Return the nearest point; x0 where none lies inside, or where the first models that see x0 get it wrong."""
        x0, epsilon = self.problem.x0, self.problem.epsilon
        attacked = margin(self.problem.view.logits(RESCORE - 1, x0), self.problem.y) <= 0
        inside = self.scores[0] > -math.inf if self.clips else -self.scores[0] <= epsilon
        clipped = self.geometry.project(self.points[0], x0, epsilon)
        return torch.where(per_example(attacked & inside, x0), clipped, x0)


@dataclass(frozen=True)
class MinimalAttack(Attack):
    """An attack that returns the nearest adversarial point found, if that lies inside the radius.

    Where each iteration has models of its own, these disagree about x0 and about all points near the boundary, and
    "nearest" means little: there it returns the point of highest margin inside the radius.

    return_rule "reference" is what the libraries of 2021 do: the nearest point that the models of a single iteration
    got wrong, which no other model has to confirm.  Weak on randomized networks, but what is published.
    """

    return_rule: ReturnRule = "strong"  #: which point is returned, as described above
    aims_by = "margin"
    reference_clips: ClassVar[bool] = True  #: whether the reference clips a point outside the radius, not returns x0

    @abstractmethod
    def search(self, problem: Problem, restart: int, radius: PerExample, pool: Unconfirmed) -> None:
        """Run once and offer every point to `pool`; adversarial points farther than `radius` are of no use."""

    def beginning(self, problem: Problem, restart: int, radius: PerExample) -> Images:
        """x0; in later restarts x0 + (radius / 2) t / |t|_p for a random t, clipped to the box."""
        if not restart:
            return problem.x0
        unbounded: Geometry = replace(self.geometry, bounds=(-math.inf, math.inf))
        t = unbounded.random(problem.uniform("start", restart), torch.zeros_like(problem.x0), torch.ones_like(radius))
        t = t * per_example(radius / (2 * unbounded.norm(t).clamp_min(1e-12)), t)
        return (problem.x0 + t).clamp(*self.geometry.bounds)

    def run(self, problem: Problem, restart: int) -> Images:
        pool: Unconfirmed = (Strongest if problem.view.fresh else Nearest)(problem, self.geometry)
        if self.return_rule == "reference":
            pool = Unconfirmed(problem, self.geometry, self.reference_clips)
        self.search(problem, restart, problem.epsilon, pool)
        return pool.choice()

    def nearest(
        self,
        view: View | nn.Module,
        x0: Images,
        y: Labels,
        *,
        target: int | Labels | None = None,
        ids: Labels | None = None,
    ) -> Images:
        """argmin |x - x0|_p over the adversarial points found, without any radius; arguments as for a call.

        Returns x0 itself where it is misclassified already, and the point of highest margin where none is adversarial.
        """
        problem = self._problem(view, x0, y, 0.0, ids)
        x0, radius = problem.x0, torch.full_like(problem.epsilon, math.inf)
        if len(x0) == 0:
            return x0.clone()
        low, high = self.geometry.bounds
        found: list[Tensor] = []
        with explaining(problem):
            judge, _, aims = self._aims(replace(problem, epsilon=radius), target)
            for restart in range(self.restarts):
                pools = [Nearest(aim, self.geometry) for _, aim in aims]
                for pool in pools:
                    self.search(pool.problem, restart, radius, pool)
                if len(pools) > 1:  # what is nearest to any target is judged as an error of any kind
                    found, pools = found + [pool.choice() for pool in pools], [Nearest(judge, self.geometry)]
                found = [pools[0].choice(*found)]
                radius = self.geometry.norm(found[0] - x0).clamp_max(high - low)
        return torch.where(per_example(fresh_margins(judge, x0[None])[0] > 0, x0), x0, found[0])


class Nearest(Unconfirmed):
    """Keeps the nearest adversarial points, and the point of highest margin in case there are none."""

    def __init__(self, problem: Problem, geometry: Geometry) -> None:
        super().__init__(problem, geometry)
        self.strongest, self.highest = self.points, self.scores

    def offer(self, k: int, x: Images, margins: PerExample, direction: Images) -> None:
        self.strongest, self.highest = keep_best(self.strongest, self.highest, x, margins, 1)
        if self.problem.view.fresh:  # the nearest point must be adversarial for its challenger's models, too
            holds = margin(self.problem.view.logits(k, self.points[0]), self.problem.y) > 0
            self.scores[0] = torch.where(holds, self.scores[0], -math.inf)
        super().offer(k, x, margins, direction)

    def choice(self, *others: Images) -> Images:
        """Return the nearest point that fools fresh models inside the ball; if none does, the one of highest margin."""
        x0, epsilon = self.problem.x0, self.problem.epsilon
        found = [
            torch.where(per_example(s > -math.inf, x), x, self.strongest[0])
            for x, s in zip(self.points, self.scores, strict=True)
        ]
        candidates = [*others, *found, self.strongest[0]]
        lengths = torch.stack([self.geometry.norm(x - x0) for x in candidates])
        inside = [per_example(length <= epsilon, x0) for length in lengths]
        projected = [self.geometry.project(x, x0, epsilon) for x in candidates]
        clipped = torch.stack(list(map(torch.where, inside, candidates, projected)))
        margins = fresh_margins(self.problem, clipped)
        fooling = torch.where((margins > 0) & (lengths <= epsilon), lengths, math.inf)
        nearest, strongest = highest(clipped, -fooling), highest(clipped, margins)
        return torch.where(per_example(fooling.amin(0) < math.inf, x0), nearest, strongest)


class Strongest(Unconfirmed):
    """Keeps the points of highest margin, in the directions offered, as far from x0 as ball and box allow."""

    def offer(self, k: int, x: Images, margins: PerExample, direction: Images) -> None:
        """Judge the best point so far by the models that judge its challenger, too: its old margin may be luck."""
        x0, epsilon = self.problem.x0, self.problem.epsilon
        stretch = (epsilon / self.geometry.norm(direction).clamp_min(torch.finfo(x.dtype).tiny)).clamp_min(1.0)
        challenger = self.geometry.project(x0 + per_example(stretch, x) * direction, x0, epsilon)
        new, again = margins_at(self.problem, [challenger, self.points[0]], [k])
        self.scores[0] = torch.where(self.scores[0] > -math.inf, again, -math.inf)
        self.keep(challenger, new)

    def choice(self) -> Images:
        margins = fresh_margins(self.problem, self.points)
        return highest(self.points, torch.where(self.scores > -math.inf, margins, -math.inf))


def fresh_margins(problem: Problem, points: Float[Tensor, "k b ..."]) -> Float[Tensor, "k b"]:
    """Return margins over models that neither the run nor the choice of a restart has seen."""
    count = FRESH if problem.view.fresh else 1
    return margins_at(problem, points.unbind(), [RESCORE - 1 - i for i in range(count)])


def margins_at(problem: Problem, points: Sequence[Images], iterations: Sequence[int]) -> Float[Tensor, "k b"]:
    """Return the margin of the mean logits over the models of these iterations, at each of the points."""
    total = torch.stack([problem.view.logits_at(k, points) for k in iterations]).sum(0)
    return torch.stack([margin(z / len(iterations), problem.y) for z in total])


def nearest_boundary(
    geometry: Geometry, gaps: Float[Tensor, "b l"], gradients: Float[Tensor, "b l ..."], x: Images
) -> tuple[Float[Tensor, "b d"], PerExample]:
    """Return the hyperplane <w, .> = b of the nearest boundary, of the least |z_l - z_y| / |grad (z_l - z_y)|_q."""
    steepness: Tensor = torch.linalg.vector_norm(gradients.flatten(2), ord=geometry.q, dim=2)
    boundary = torch.arange(len(x), device=x.device), (gaps.abs() / (steepness + 1e-12)).argmin(1)
    w = gradients[boundary].flatten(1)
    return w, (w * x.flatten(1)).sum(1) - gaps[boundary]


def to_hyperplane(
    geometry: Geometry, x: Float[Tensor, "b d"], w: Float[Tensor, "b d"], b: PerExample
) -> Float[Tensor, "b d"]:
    """argmin |d|_p subject to <w, x + d> = b and low <= x + d <= high.

    Where the box ends before the hyperplane, d leads to the corner of the box nearest to it.

    Each pixel moves towards the hyperplane, d_i = min(t |w_i|^(q-1), room_i) with one t for all, until the box stops
    it.  So sum_i |w_i| |d_i| grows with t, in straight pieces between the t at which one pixel after the other stops.
    In l_1 they move one after the other instead, the steepest first.
    """
    low, high = geometry.bounds
    # the hyperplane stays the same when w and b are scaled; without this, squares of tiny gradients underflow
    largest = w.abs().amax(1, keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    gap = (b[:, None] - (w * x).sum(1, keepdim=True)) / largest
    towards = w.sign() * torch.where(gap < 0, -1.0, 1.0).to(w.dtype)
    size = (w / largest).abs()
    room = torch.where(towards > 0, high - x, x - low)
    if math.isinf(geometry.q):  # l_1: the steepest pixels alone move
        return towards * filled(size, room, size, gap.abs())
    speed = size ** (geometry.q - 1)
    stop = torch.where(speed > 0, room / speed, 0.0).clamp_max(torch.finfo(x.dtype).max)
    t = first_reach(size * speed, stop, size * room, gap.abs())
    return towards * torch.minimum(t * speed, room)


def first_reach(
    rate: Float[Tensor, "b d"], stop: Float[Tensor, "b d"], limit: Float[Tensor, "b d"], goal: Float[Tensor, "b 1"]
) -> Float[Tensor, "b 1"]:
    """Return the t at which sum_i min(rate_i t, limit_i) = goal, and the last stop if the sum never gets there.

    stop: the t at which each summand reaches its limit.
    """
    stop, order = stop.sort(1)
    rate, limit = rate.gather(1, order), limit.gather(1, order)
    stopped = limit.cumsum(1) - limit  # the sum of the summands that stopped before
    moving = rate.flip(1).cumsum(1).flip(1)  # the rate of this summand and all that stop after it
    piece = (stopped + moving * stop < goal).sum(1, keepdim=True)
    last = piece.clamp_max(stop.shape[1] - 1)
    stopped, moving, stop = (values.gather(1, last) for values in (stopped, moving, stop))
    # No further than the stop: where nothing moves any more the quotient is 0/0 or infinite.
    return torch.where(moving > 0, (goal - stopped) / moving, stop).clamp(min=0).minimum(stop)


@dataclass(frozen=True)
class FAB(MinimalAttack):
    """x_{k+1} = (1 - a) (x_k + eta d_k) + a (x0 + eta d_0), a = min(|d_k| / (|d_k| + |d_0|), alpha_max).

    d_k and d_0 lead from x_k and from x0 to the nearest of the hyperplanes z_l = z_y, the mean logits linearized at
    x_k, inside the box; where x_{k+1} is adversarial the next step starts from x0 + beta (x_{k+1} - x0).  Mean logits
    are those of the models of an iteration; x_{k+1} is judged by the models of the next, which did not make it.
    """

    m: Count = 100  #: iterations; at least 1.  The defaults of all four are AutoAttack's
    alpha_max: Share = 0.1  #: the greatest weight of the point that is reached from x0
    eta: Annotated[float, Range(ge=1)] = 1.05  #: how far steps go, in lengths of the way to the hyperplane
    beta: PositiveShare = 0.9  #: the share of an adversarial point's distance from x0 that the next step starts at
    name = "FAB"
    passes_per_iteration = 12.0
    reference_clips = False

    def search(self, problem: Problem, restart: int, radius: PerExample, pool: Unconfirmed) -> None:
        view, x0, y = problem.view, problem.x0, problem.y
        x = self.beginning(problem, restart, radius)
        for k in range(restart * (self.m + 1), restart * (self.m + 1) + self.m):
            x = self._step(*view.differences(k, x, y), x, x0)
            margins = margin(view.logits(k + 1, x), y)
            pool.offer(k + 1, x, margins, x - x0)
            x = torch.where(per_example(margins > 0, x), x0 + self.beta * (x - x0), x)
            problem.tick()

    def _step(self, gaps: Float[Tensor, "b l"], gradients: Float[Tensor, "b l ..."], x: Images, x0: Images) -> Images:
        """The step of the class docstring."""
        w, b = nearest_boundary(self.geometry, gaps, gradients, x)
        d, d0 = (to_hyperplane(self.geometry, point.flatten(1), w, b).view_as(x) for point in (x, x0))
        length, length0 = (self.geometry.norm(step).clamp_min(1e-8) for step in (d, d0))
        a = per_example((length / (length + length0)).clamp_max(self.alpha_max), x)
        return ((1 - a) * (x + self.eta * d) + a * (x0 + self.eta * d0)).clamp(*self.geometry.bounds)
