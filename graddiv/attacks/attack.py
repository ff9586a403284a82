"""The base class of all attacks: it checks the input, runs restarts, and keeps the result inside ball and box."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graddiv.attacks.aim import ON_TWO_CLASSES, at_class, at_likeliest
from graddiv.attacks.view import View, as_view
from graddiv.diversity.gradients import OBJECTIVES
from graddiv.errors import GradDivError, GradDivWarning
from graddiv.geometry import (
    L1,
    L2,
    Geometry,
    Images,
    Labels,
    Linf,
    PerExample,
    geometry_named,
    in_bytes,
    per_example,
)  # fmt: skip
from graddiv.networks import SampleModel
from graddiv.networks.foreign import draws_by_itself
from graddiv.networks.inputs import HALF, NO_ARRAY, check_labels, check_takes, naming_the_shape, numbers
from graddiv.registries import MOST, Count, Range, check_fields
from graddiv.seeding import fold, uniform

ReturnRule = Literal["strong", "reference"]  #: what is best on randomized networks, or what libraries return
RESCORE = -1  #: the iteration whose models choose between restarts; runs see only iterations >= 0


@dataclass(frozen=True)
class Problem:
    """One batch to attack: all inputs of a single run."""

    view: View  #: what the adversary sees of the network
    x0: Tensor  #: the clean images, b ..., inside the geometry's bounds
    y: Tensor  #: their true labels, b
    epsilon: Tensor  #: the radius of the ball around each image, b
    ids: Tensor  #: the data-set index of each image, b, which addresses its randomness
    seed: int  #: the attack's seed
    tick: Callable[[], None] = lambda: None  #: to be called once after each iteration, so that progress can be shown
    start: Tensor | None = None  #: points of the balls from which attacks that go on from others begin; x0 if None

    def uniform(self, *role: int | str) -> Tensor:
        """Draw a number in [0, 1) for each pixel of each example: a function of seed, role and id, not of the batch."""
        return uniform(fold(self.seed, *role), self.ids, self.x0[0].numel() if len(self.x0) else 1)


@dataclass(frozen=True)
class Attack(ABC):
    """attack(view, x0, y, epsilon) -> x_adv, inside the ball of radius epsilon and the box.

    An attack never sees F, never switches modes and never judges its success: models it has not seen do that.
    It returns the run with the highest loss on fresh models: of all restarts, and of all `targets` by the margin.
    """

    geometry: Geometry = Linf()  # noqa: RUF009 -- frozen, so safely shared
    """The norm of the ball, and the box of valid pixels; the name of a norm stands for the box [0, 1]."""
    objective: str = "ce"  #: the loss to maximize, one of `diversity.gradients.OBJECTIVES`; the paper's EOT uses ce
    restarts: Count = 1  #: how many runs are made, each from another start and on other models; at least 1
    seed: int = 0  #: addresses the attack's own random choices; those of the network are the view's
    targets: Annotated[int, Range(ge=0, le=MOST)] = field(default=0, kw_only=True)
    """How many of the likeliest other classes are attacked in turn, 9 in AutoAttack; 0: all of them at once."""

    name: ClassVar[str]
    norms: ClassVar[tuple[type[Geometry], ...]] = (Linf, L2, L1)  #: in which the attack is defined
    aims_by: ClassVar[str | None] = None  #: the objective whose score says how far a target is; None: its own
    passes_per_iteration: ClassVar[float] = 2.0  #: per model, in forward passes; a backward pass counts as one
    former_settings: ClassVar[Mapping[str, Any]] = {}  #: settings of older records that the attack no longer has

    def __post_init__(self) -> None:
        given: object = self.geometry
        if isinstance(given, str):
            object.__setattr__(self, "geometry", geometry_named(given))
        elif not isinstance(given, Geometry):
            hint = f"iterations have a name, {type(self).__name__}(m={given!r})"
            raise GradDivError(f"the geometry is {given!r}, expected a norm such as L2() or 'l2': {hint}")
        if not isinstance(self.geometry, self.norms):
            known = " or ".join(norm.name for norm in self.norms)
            raise GradDivError(f"the geometry is {self.geometry.name}, expected {known}, for which {self.name} is made")
        check_fields(self)
        _ = OBJECTIVES[self.objective]  # an unknown one is an error

    @property
    def iterations(self) -> int:
        """The number of iterations of one run: its field m."""
        return int(vars(self)["m"])

    def label(self, view: View) -> str:
        """Return the name of the attack through this view in tables, such as EOT-PGD."""
        return view.label(self.name + "-T" * (self.targets > 0))

    @property
    def runs(self) -> int:
        """How many runs are made: one for each restart and target."""
        return self.restarts * max(1, self.targets)

    @abstractmethod
    def run(self, problem: Problem, restart: int) -> Images:
        """Attack the batch once; `restart` counts the runs from 0, so that each can begin differently."""

    def __call__(
        self,
        view: View | nn.Module,
        x0: Images,
        y: Labels,
        epsilon: float | PerExample,
        *,
        target: int | Labels | None = None,
        ids: Labels | None = None,
        start: Images | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Images:
        """Return the adversarial images x_adv.

        view: what the adversary sees: Fixed(F), EOT(F, n), Given(models), or a deterministic module as it is.
        x0, y: the clean images, inside the geometry's bounds, and their true labels.
        epsilon: the radius of the ball, one number or one for each example, in pixel units.
        target: the class that the images should be taken for, one for all or one for each; None: any but the label.
        ids: the data-set indices of the examples, which address their randomness; 0 .. b-1 by default.
        start: points of the balls, from which an attack that goes on from another one begins.
        progress: callback (iterations done, iterations of all restarts), after each iteration.
        """
        done, problem = count(1), self._problem(view, x0, y, epsilon, ids)
        x0, radius = problem.x0, problem.epsilon
        if len(x0) == 0:
            return x0.clone()

        def tick() -> None:
            if progress is not None:
                progress(next(done), self.restarts * len(aims) * self.iterations)

        with explaining(problem):
            judge, objective, aims = self._aims(replace(problem, start=start, tick=tick), target)
            runs = (attack.run(aim, restart) for restart in range(self.restarts) for attack, aim in aims)
            best, best_loss = next(runs), None
        loss_of = partial(judge.view.loss, RESCORE, y=judge.y, objective=objective)
        for x in runs:
            best_loss = loss_of(best) if best_loss is None else best_loss
            loss = loss_of(x)
            better = loss > best_loss
            best, best_loss = torch.where(per_example(better, x), x, best), torch.where(better, loss, best_loss)
        exact = torch.as_tensor(epsilon, dtype=torch.float64, device=x0.device).expand(len(x0))
        return self.geometry.shrink(self.geometry.project(best, x0, radius), x0, exact)

    def _aims(
        self, problem: Problem, target: int | Tensor | None
    ) -> tuple[Problem, str, list[tuple["Attack", Problem]]]:
        """Return the problem and the loss by which runs are judged, and attack and problem of each run of a restart."""
        view, x0, y = problem.view, problem.x0, problem.y
        if target is None and not self.targets:
            return problem, self.objective, [(self, problem)]
        score = self.aims_by or self.objective
        aimed = at_likeliest(view, x0, y, score, self.targets) if target is None else [at_class(view, y, target, score)]
        attack = replace(self, objective=ON_TWO_CLASSES.get(score, "margin"))
        aims = [(attack, replace(problem, view=each, y=torch.zeros_like(y))) for each in aimed]
        if target is None:  # the margin tells whether any of them is reached
            return problem, "margin", aims
        return aims[0][1], attack.objective, aims

    def _problem(
        self, shown: View | nn.Module, x0: Tensor, y: Tensor, epsilon: float | Tensor, ids: Tensor | None
    ) -> Problem:
        """Check all arguments, and return them in the form in which attacks use them."""
        view, x0, y = as_view(shown), numbers("x", x0), numbers("y", y)
        if not x0.is_floating_point() or x0.dtype in HALF:
            how = "convert it with x.float(), or bytes with x.float() / 255"
            raise GradDivError(f"x is of {x0.dtype}, expected float32 or float64: {how}")
        if x0.device != y.device:
            raise GradDivError(f"x lies on {x0.device} and y on {y.device}: move one of them")
        if isinstance(F := getattr(view, "F", None), nn.Module):
            check_takes(F, x0)
            if len(x0) and not (shown is view and view.declared):
                _warn_if_it_draws(F, next(iter(view(0))), x0[:2])
        check_labels(y, len(x0))
        _check_pixels(x0, *self.geometry.bounds)
        ids = torch.arange(len(x0), device=x0.device) if ids is None else numbers("ids", ids).to(x0.device)
        radius = _radii(epsilon, x0, self.geometry)
        self._hint(radius)
        return Problem(view, x0, y, radius, ids, self.seed)

    def _hint(self, radius: PerExample) -> None:
        """Warn of a step size that somebody has set as if it were in pixel units."""
        alpha, usual = vars(self).get("alpha"), getattr(type(self), "alpha", None)
        if alpha is None or alpha == usual or self.iterations == 1 or not len(radius):
            return
        if alpha <= radius.max() and alpha * self.iterations < 1:
            reach = f"{self.iterations} steps of {alpha:.4g} epsilon do not reach the radius {radius.max():.4g}"
            share = f"for steps of {alpha:.4g} in pixel units take alpha={alpha:.4g} / {radius.max():.4g}"
            warnings.warn(f"alpha is a share of epsilon: {reach}; {share}", GradDivWarning, stacklevel=4)


def _warn_if_it_draws(module: nn.Module, f: SampleModel, x: Images) -> None:
    """Warn where a module, which is attacked as one function, is another one at each call."""
    with naming_the_shape(x):
        draws = draws_by_itself(f, module, x, calls=2)
    if draws:
        said = "the network draws noise when it is called, and is attacked as if all calls were of one function"
        warnings.warn(f"{said}: attack EOT(randomize(module), n=10) instead", GradDivWarning, stacklevel=4)


def _check_pixels(x0: Tensor, low: float, high: float) -> None:
    if len(x0) and not (x0.min() >= low and x0.max() <= high):
        raise GradDivError(
            f"x lies in [{x0.min():.4g}, {x0.max():.4g}], expected within the bounds [{low}, {high}]: "
            "divide bytes by 255, and make normalization a layer of the network"
        )


def _radii(epsilon: float | Tensor, x0: Tensor, geometry: Geometry) -> PerExample:
    """Return the radius of each example."""
    try:
        radius = torch.as_tensor(epsilon, dtype=x0.dtype, device=x0.device)
    except (TypeError, ValueError):
        raise GradDivError(f"epsilon is {epsilon!r}, expected a number or one for each of {len(x0)}") from None
    if radius.shape not in ((), (len(x0),)):
        raise GradDivError(f"epsilon has shape {tuple(radius.shape)}, expected a number or one for each of {len(x0)}")
    if len(bad := radius[~((radius >= 0) & (radius < math.inf))]):
        raise GradDivError(f"epsilon is {bad[0]:.4g}, expected a finite radius >= 0")
    most = geometry.diameter(x0[0].numel()) if len(x0) else math.inf
    if len(bad := radius[radius > most * (1 + 1e-6)]):
        admits = f"the radius that admits every image{in_bytes(float(bad[0]))}"
        raise GradDivError(f"epsilon is {bad[0]:.4g}, expected at most {most:.4g}, {admits}")
    return radius.expand(len(x0))


@contextmanager
def explaining(problem: Problem) -> Iterator[None]:
    """If the network cannot take such images at all, raise an error that says so instead of torch's."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        if NO_ARRAY in str(error):
            raise GradDivError(
                "the network makes arrays of tensors, where its gradient ends: attack it with Square, which needs no "
                "gradient, or call .detach() before .numpy() to attack what is left of it"
            ) from error
        if not isinstance(error, GradDivError):
            with naming_the_shape(problem.x0), torch.no_grad():
                next(iter(problem.view(0)))(problem.x0[:1])
        raise


def keep_best(
    best: Float[Tensor, "k b ..."], best_loss: Float[Tensor, "k b"], x: Images, loss: PerExample, count: int
) -> tuple[Tensor, Tensor]:
    """Return the `count` points of highest loss among `best` and x, and their losses: highest first, ties by age."""
    points, losses = torch.cat([best, x[None]]), torch.cat([best_loss, loss[None]])
    order = losses.argsort(stable=True, dim=0, descending=True)[:count]
    return points[order, torch.arange(len(x), device=x.device)], losses.gather(0, order)


def highest(points: Float[Tensor, "k b ..."], losses: Float[Tensor, "k b"]) -> Images:
    """Return the point of highest loss for each example."""
    return points[losses.argmax(0), torch.arange(points.shape[1], device=points.device)]
