"""The base class of all attacks: it checks the input, runs restarts, and keeps the result inside ball and box."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.attacks.view import View
from graddiv.attacks.views import as_view
from graddiv.errors import GradDivError
from graddiv.geometry import Geometry, Linf, per_example
from graddiv.networks.inputs import HALF, check_labels, check_takes, naming_the_shape, plain
from graddiv.seeding import fold, uniform

IterationListener = Callable[[int, int], None]
"""Called after each iteration with the number of iterations done and the number there are in all restarts."""

ReturnRule = Literal["strong", "reference"]
"""How an attack chooses the point it returns: as is best on randomized networks, or as the published libraries do."""

RESCORE = -1
"""The number of the iteration whose models choose between restarts.

Iterations of a run are numbered from 0, so the models of a negative one are fresh: the attack has not seen them.
"""


@dataclass(frozen=True)
class Problem:
    """One batch to attack: everything a single run of an attack is given."""

    view: View
    """What the adversary sees of the network."""
    x0: Tensor
    """The clean images, b ...; they lie inside the geometry's bounds."""
    y: Tensor
    """Their true labels, b."""
    epsilon: Tensor
    """The radius of the ball around each image, b."""
    ids: Tensor
    """The data-set index of each image, b, which addresses its randomness."""
    seed: int
    """The attack's seed."""
    tick: Callable[[], None]
    """To be called once after each iteration, so that progress can be shown."""
    starts: tuple[Tensor, ...] = ()
    """Points to begin at, besides the attack's own, each b ...; they lie in the ball."""

    def uniform(self, *role: int | str) -> Tensor:
        """Draw a number in [0, 1) for each pixel of each example: a function of seed, role and id, not of the batch."""
        return uniform(fold(self.seed, *role), self.ids, self.x0[0].numel() if len(self.x0) else 1)


@dataclass(frozen=True)
class Attack(ABC):
    """attack(view, x0, y, epsilon) -> x_adv, inside the ball of radius epsilon and the box.

    An attack never sees F, never switches modes and never decides whether it has won: success is judged afterwards, on
    models it has not seen.  Of several restarts the one with the highest loss on fresh models is returned.
    """

    geometry: Geometry = Linf()  # noqa: RUF009 -- frozen, so safely shared
    """The norm of the ball, and the box of valid pixels."""
    objective: str = "ce"
    """The loss that is raised, one of `directions.objectives.OBJECTIVES`; the paper's EOT uses cross-entropy."""
    restarts: int = 1
    """How many runs are made, each from another start and on other models; at least 1."""
    seed: int = 0
    """Addresses the attack's own random choices; those of the network are the view's."""

    name: ClassVar[str]
    passes_per_iteration: ClassVar[float] = 2.0
    """What an iteration costs on each model, in forward passes, for time estimates: a forward and an input backward."""
    takes_starts: ClassVar[bool] = False
    """Whether it can begin at points that it is given."""

    @property
    @abstractmethod
    def iterations(self) -> int:
        """How many iterations one run takes, for the display of progress and for estimates of cost."""

    def label(self, view: View) -> str:
        """Return the row of a table that the attack makes through this view, such as EOT-PGD."""
        return view.label(self.name)

    @abstractmethod
    def run(self, problem: Problem, restart: int) -> Float[Tensor, "b ..."]:
        """Attack the batch once; `restart` counts the runs from 0, so that each can begin differently."""

    def __call__(
        self,
        view: View | nn.Module,
        x0: Float[Tensor, "b ..."],
        y: Int64[Tensor, " b"],
        epsilon: float | Float[Tensor, " b"],
        *,
        ids: Int64[Tensor, " b"] | None = None,
        starts: Sequence[Float[Tensor, "b ..."]] = (),
        progress: IterationListener | None = None,
    ) -> Float[Tensor, "b ..."]:
        """Return the adversarial images x_adv.

        view: what the adversary sees: Fixed(F), EOT(F, n), Given(models), or a deterministic module as it is.
        x0, y: the clean images, inside the geometry's bounds, and their true labels.
        epsilon: the radius of the ball, one number or one for each example, in pixel units.
        ids: the data-set indices of the examples, which address their randomness; 0 .. b-1 by default.
        starts: images to begin at, such as those of a transfer attack; fresh models choose among them and the attack's
            own start.
        progress: called after each iteration.
        """
        if len(starts) and not self.takes_starts:
            raise GradDivError(f"{self.name} was given {len(starts)} starts, but begins where it likes: use SPGD")
        view, x0, y = self._taken(view, x0, y)
        radius = self._checked(x0, y, epsilon)
        ids = torch.arange(len(x0), device=x0.device) if ids is None else ids.to(x0.device)
        if len(x0) == 0:
            return x0.clone()
        done, total = 0, self.restarts * self.iterations

        def tick() -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, total)

        inside = tuple(self.geometry.project(plain("start", each), x0, radius) for each in starts)
        problem = Problem(view, x0, y, radius, ids, self.seed, tick, inside)
        with explaining(view, x0):
            best, best_loss = self.run(problem, 0), None
        for restart in range(1, self.restarts):
            x = self.run(problem, restart)
            if best_loss is None:
                best_loss = view.loss(RESCORE, best, y, self.objective)
            loss = view.loss(RESCORE, x, y, self.objective)
            better = loss > best_loss
            best, best_loss = torch.where(per_example(better, x), x, best), torch.where(better, loss, best_loss)
        exact = torch.as_tensor(epsilon, dtype=torch.float64, device=x0.device).expand(len(x0))
        return self.geometry.shrink(self.geometry.project(best, x0, radius), x0, exact)

    def _taken(self, view: View | nn.Module, x0: Tensor, y: Tensor) -> tuple[View, Tensor, Tensor]:
        """Return view, images and labels in the form in which attacks use them, once they fit together."""
        view, x0, y = as_view(view), plain("x", x0), plain("y", y)
        if not x0.is_floating_point() or x0.dtype in HALF:
            raise GradDivError(
                f"x is of {x0.dtype}, expected float32 or float64: "
                "convert it with x.float(), or bytes with x.float() / 255"
            )
        if x0.device != y.device:
            raise GradDivError(f"x lies on {x0.device} and y on {y.device}: move one of them")
        if isinstance(F := getattr(view, "F", None), nn.Module):
            check_takes(F, x0)
        return view, x0, y

    def _checked(self, x0: Tensor, y: Tensor, epsilon: float | Tensor) -> Float[Tensor, " b"]:
        """Check all arguments, and return the radius of each example."""
        low, high = self.geometry.bounds
        if self.restarts < 1:
            raise GradDivError(f"restarts is {self.restarts}, expected at least one")
        check_labels(y, len(x0))
        if len(x0) and not (x0.min() >= low and x0.max() <= high):
            raise GradDivError(
                f"x lies in [{x0.min():.4g}, {x0.max():.4g}], expected within the bounds [{low}, {high}]: "
                "divide bytes by 255, and make normalization a layer of the network"
            )
        try:
            radius = torch.as_tensor(epsilon, dtype=x0.dtype, device=x0.device)
        except (TypeError, ValueError):
            raise GradDivError(f"epsilon is {epsilon!r}, expected a number or one for each of {len(x0)}") from None
        if radius.dim() > 1 or (radius.dim() == 1 and len(radius) != len(x0)):
            raise GradDivError(
                f"epsilon has shape {tuple(radius.shape)}, expected a number or one for each of {len(x0)}"
            )
        bad = radius[~((radius >= 0) & (radius < math.inf))]
        if len(bad):
            raise GradDivError(f"epsilon is {bad[0]:.4g}, expected a finite radius >= 0")
        return radius.expand(len(x0))


@contextmanager
def explaining(view: View, x0: Float[Tensor, "b ..."]) -> Iterator[None]:
    """Where an error is that the network cannot take such images at all, say so in place of torch's words."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        if not isinstance(error, GradDivError):
            with naming_the_shape(x0), torch.no_grad():
                next(iter(view(0)))(x0[:1])
        raise


def keep_best(
    best: Float[Tensor, "k b ..."],
    best_loss: Float[Tensor, "k b"],
    x: Float[Tensor, "b ..."],
    loss: Float[Tensor, " b"],
    count: int,
) -> tuple[Tensor, Tensor]:
    """Return the `count` points of highest loss among `best` and x, for each example, and their losses.

    best, best_loss: the points kept so far and their losses, for each example the highest first.
    x, loss: one new point for each example and its loss.
    count: how many are kept at most.

    At equal loss the older point goes first.
    """
    points, losses = torch.cat([best, x[None]]), torch.cat([best_loss, loss[None]])
    order = losses.argsort(stable=True, dim=0, descending=True)[:count]
    return points[order, torch.arange(len(x), device=x.device)], losses.gather(0, order)
