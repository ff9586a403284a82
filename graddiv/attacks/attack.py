"""What all attacks have in common: checks, restarts, the result inside ball and box."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.attacks.views import View, as_view
from graddiv.errors import GradDivError
from graddiv.geometry import Geometry, Linf, per_example
from graddiv.seeding import fold, uniform

IterationListener = Callable[[int, int], None]
"""Called with the number of iterations done and of all there are."""

RESCORE = -1
"""The iteration whose models choose between restarts: fresh ones, which no iteration of the attack has seen."""


@dataclass(frozen=True)
class Problem:
    """One batch to attack: what a single run of an attack is given."""

    view: View
    x0: Tensor
    y: Tensor
    epsilon: Tensor
    ids: Tensor
    seed: int
    tick: Callable[[], None]

    def uniform(self, *role: int | str) -> Tensor:
        """Numbers in [0, 1) for each pixel of each example, whatever batch it is in."""
        return uniform(fold(self.seed, *role), self.ids, self.x0[0].numel() if len(self.x0) else 1)


@dataclass(frozen=True)
class Attack(ABC):
    """attack(view, x0, y, epsilon) -> x_adv, inside the ball of radius epsilon and the box.

    An attack never sees F, never switches modes and never decides whether it has won: success is judged afterwards, on
    models it has not seen.  Of several restarts the one with the highest loss on fresh models is returned.
    """

    geometry: Geometry = Linf()  # noqa: RUF009 -- frozen, so safely shared
    objective: str = "ce"
    restarts: int = 1
    seed: int = 0

    name: ClassVar[str]
    passes_per_iteration: ClassVar[float] = 2.0
    """What an iteration costs on each model, in forward passes, for time estimates: a forward and an input backward."""

    @property
    @abstractmethod
    def iterations(self) -> int:
        """How many iterations one run takes."""

    @abstractmethod
    def run(self, problem: Problem, restart: int) -> Float[Tensor, "b ..."]:
        """One run, without bookkeeping."""

    def __call__(
        self,
        view: View | nn.Module,
        x0: Float[Tensor, "b ..."],
        y: Int64[Tensor, " b"],
        epsilon: float | Float[Tensor, " b"],
        *,
        ids: Int64[Tensor, " b"] | None = None,
        progress: IterationListener | None = None,
    ) -> Float[Tensor, "b ..."]:
        """Return x_adv; `ids`, by default 0 .. b-1, address the randomness of each example."""
        view, x0 = as_view(view), x0.detach()
        radius = self._checked(x0, y, epsilon)
        ids = torch.arange(len(x0), device=x0.device) if ids is None else ids
        if len(x0) == 0:
            return x0.clone()
        done, total = 0, self.restarts * self.iterations

        def tick() -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, total)

        problem = Problem(view, x0, y, radius, ids, self.seed, tick)
        best, best_loss = self.run(problem, 0), None
        for restart in range(1, self.restarts):
            x = self.run(problem, restart)
            if best_loss is None:
                best_loss = view.loss(RESCORE, best, y, self.objective)
            loss = view.loss(RESCORE, x, y, self.objective)
            better = loss > best_loss
            best, best_loss = torch.where(per_example(better, x), x, best), torch.where(better, loss, best_loss)
        return self.geometry.project(best, x0, radius)

    def _checked(self, x0: Tensor, y: Tensor, epsilon: float | Tensor) -> Float[Tensor, " b"]:
        """The radius, one per example, once everything is as it should be."""
        low, high = self.geometry.bounds
        if self.restarts < 1:
            raise GradDivError(f"restarts is {self.restarts}, expected at least one")
        if y.shape != x0.shape[:1] or y.dtype != torch.int64:
            raise GradDivError(
                f"y has shape {tuple(y.shape)} and type {y.dtype}, "
                f"expected one int64 label for each of the {len(x0)} examples"
            )
        if len(x0) and not (x0.min() >= low and x0.max() <= high):
            raise GradDivError(
                f"x lies in [{x0.min():.4g}, {x0.max():.4g}], expected within the bounds [{low}, {high}]"
            )
        radius = torch.as_tensor(epsilon, dtype=x0.dtype, device=x0.device)
        if radius.dim() > 1 or (radius.dim() == 1 and len(radius) != len(x0)):
            raise GradDivError(
                f"epsilon has shape {tuple(radius.shape)}, expected a number or one for each of {len(x0)}"
            )
        bad = radius[~((radius >= 0) & (radius < math.inf))]
        if len(bad):
            raise GradDivError(f"epsilon is {bad[0]:.4g}, expected a finite radius >= 0")
        return radius.expand(len(x0))


def keep_best(
    best: Float[Tensor, "k b ..."],
    best_loss: Float[Tensor, "k b"],
    x: Float[Tensor, "b ..."],
    loss: Float[Tensor, " b"],
    kept: int,
) -> tuple[Tensor, Tensor]:
    """The `kept` best of the points so far and x, per example, in order; at equal loss the older one first."""
    points, losses = torch.cat([best, x[None]]), torch.cat([best_loss, loss[None]])
    order = losses.argsort(stable=True, dim=0, descending=True)[:kept]
    return points[order, torch.arange(len(x), device=x.device)], losses.gather(0, order)
