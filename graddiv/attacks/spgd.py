"""PGD for noisy gradients: many small steps that shrink, with or without a memory of the steps before."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from graddiv.attacks.attack import RESCORE, Attack, Problem, keep_best
from graddiv.errors import GradDivError, unknown
from graddiv.geometry import per_example

Schedule = Literal["constant", "cosine", "halving"]
Memory = Literal["none", "momentum", "aggmo", "average"]
Start = Literal["clean", "mean", "random"]

SCHEDULES: dict[Schedule, Callable[[float], float]] = {
    "constant": lambda t: 1.0,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "halving": lambda t: 0.5 ** int(4 * t),
}
"""Share of the run that is over, in [0, 1) -> share of the first step's length."""

MOMENTA: dict[Memory, tuple[float, ...]] = {"momentum": (0.9,), "aggmo": (0.0, 0.9, 0.99)}

MEAN_STEPS = 20
"""Steps on the mean network before the run itself, where it is the start."""

SCORERS = 20
"""So many models choose among points."""

BEFORE = -500
"""The iteration whose models choose where to begin; no other step sees them."""


@dataclass(frozen=True)
class StochasticPGD(Attack):
    """x_{k+1} = the projection of x_k + a_k d_k, d_k the steepest step of length 1 along a mean of noisy gradients.

    With few models an iteration the gradient is noisy, and a step of constant length never settles.  A step that
    shrinks averages the noise of many iterations away, and the same passes then buy more iterations instead of more
    models: at 400 passes an image this is worth far more than any weighting of the models (docs/adversaries.md).

    memory "momentum" adds 0.9 of the direction before; "aggmo" is signed AggMo (Sitawarin et al. 2022): three momenta,
    each made a step of its own, then averaged; "average" is g <- t^-1/2 g_t + (1 - t^-1/2) g.
    """

    objective: str = "margin"
    m: int = 100
    """Iterations; at least 1."""
    alpha: float = 0.5
    """Length of the first step as a share of epsilon."""
    schedule: Schedule = "cosine"
    """How the steps shrink."""
    memory: Memory = "none"
    """What a step remembers of the gradients before."""
    start: Start = "clean"
    """Where the first run begins: at x0, where 20 steps on the mean network lead, or at a random point of the ball."""
    kept: int = 1
    """How many points fresh models choose among: the last iterate and those of highest loss before it."""

    takes_starts = True

    def __post_init__(self) -> None:
        if self.m < 1 or self.kept < 1 or not self.alpha > 0:
            raise GradDivError(
                f"m is {self.m}, kept {self.kept} and alpha {self.alpha}, expected at least 1, 1 and a positive number"
            )
        choices = {"schedule": Schedule, "memory": Memory, "start": Start}
        for name, allowed in choices.items():
            if getattr(self, name) not in get_args(allowed):
                raise unknown(name, getattr(self, name), get_args(allowed))

    @property
    def name(self) -> str:  # type: ignore[override]
        """SPGD, and whatever about it is not as by default: SPGD-ensemble-aggmo."""
        odd = [self.objective] if self.objective != "margin" else []
        odd += [value for value in (self.memory,) if value != "none"]
        odd += [f"from {self.start}"] if self.start != "clean" else []
        return "-".join(["SPGD", *odd])

    @property
    def iterations(self) -> int:
        return self.m

    def run(self, problem: Problem, restart: int) -> Float[Tensor, "b ..."]:
        view, x0, y, epsilon = problem.view, problem.x0, problem.y, problem.epsilon
        x, memory = self._first_point(problem, restart), _GradientMemory(self, x0)
        best, best_loss = x0.new_empty(0, *x0.shape), x0.new_empty(0, len(x0))
        for k in range(self.m):
            found = view.gradient(restart * self.m + k, x, y, self.objective)
            if self.kept > 1:
                best, best_loss = keep_best(best, best_loss, x, found.value, self.kept - 1)
            length = self.alpha * SCHEDULES[self.schedule](k / self.m) * epsilon
            x = self.geometry.project(x + memory.step(found.direction, length), x0, epsilon)
            problem.tick()
        return self._best(problem, [x, *best], RESCORE - 1 - restart)

    def _best(self, problem: Problem, points: Sequence[Tensor], fresh: int) -> Float[Tensor, "b ..."]:
        """Return the point of highest loss on the fresh models of that iteration, for each example."""
        if len(points) == 1:
            return points[0]
        scorers, everyone = problem.view.sized(SCORERS), torch.arange(len(problem.x0), device=problem.x0.device)
        losses = scorers.losses(fresh, points, problem.y, self.objective)
        return torch.stack(list(points))[losses.argmax(0), everyone]

    def _first_point(self, problem: Problem, restart: int) -> Float[Tensor, "b ..."]:
        if restart:
            return self._own_start(problem, restart)
        return self._best(problem, [self._own_start(problem, restart), *problem.starts], BEFORE)

    def _own_start(self, problem: Problem, restart: int) -> Float[Tensor, "b ..."]:
        x0, epsilon = problem.x0, problem.epsilon
        if restart or self.start == "random":
            return self.geometry.random(problem.uniform("start", restart), x0, epsilon)
        if self.start == "clean":
            return x0
        mean = problem.view.mean_model()
        if mean is None:
            raise GradDivError("start is 'mean', but this view has no mean network: expected 'clean' or 'random'")
        x = x0
        for k in range(MEAN_STEPS):
            g = mean.gradient(k, x, problem.y, self.objective).direction
            length = self.alpha * SCHEDULES["cosine"](k / MEAN_STEPS) * epsilon
            x = self.geometry.project(x + self.geometry.steepest(g, length), x0, epsilon)
        return x


class _GradientMemory:
    """The directions of an attack's earlier steps, as far as its memory goes."""

    def __init__(self, attack: StochasticPGD, like: Float[Tensor, "b ..."]) -> None:
        self.attack = attack
        self.momenta = MOMENTA.get(attack.memory, ())
        self.buffers = [torch.zeros_like(like) for _ in self.momenta]
        self.average, self.steps = torch.zeros_like(like), 0

    def step(self, g: Float[Tensor, "b ..."], length: Float[Tensor, " b"]) -> Float[Tensor, "b ..."]:
        """Return the next step of the given length, and remember g."""
        steepest = self.attack.geometry.steepest
        if self.attack.memory == "none":
            return steepest(g, length)
        g = _scaled(g)
        if self.attack.memory == "average":
            self.steps += 1
            weight = self.steps**-0.5
            self.average = weight * g + (1 - weight) * self.average
            return steepest(self.average, length)
        self.buffers = [beta * buffer + g for beta, buffer in zip(self.momenta, self.buffers, strict=True)]
        return torch.stack([steepest(buffer, length) for buffer in self.buffers]).mean(0)


def _scaled(g: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
    """g / mean |g_j|, with no entry beyond 1: a single steep iteration must not fill the memory."""
    size = g.flatten(1).abs().mean(1)
    return (g / per_example(size.clamp_min(torch.finfo(g.dtype).tiny), g)).clamp(-1, 1)
