"""A view: the sample models that an adversary sees at each iteration, and the questions it may ask about them.

The views of a network are in views.py; here is what they share, and the view of models that are given.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from graddiv.directions.gradients import (
    MeanGradient,
    check_finite,
    check_mode,
    derivative,
    input_gradient,
    mean_gradient,
)
from graddiv.directions.objectives import Members, attack_objective
from graddiv.errors import GradDivError
from graddiv.losses import margin
from graddiv.networks import SampleModel
from graddiv.networks.inputs import logits_of


@dataclass
class Cost:
    """What an attack has spent: passes of one model over one batch, forward and backward, and draws of noise."""

    forwards: int = 0
    backwards: int = 0
    draws: int = 0


class View(ABC):
    """The sample models of each iteration, and the questions an attack may ask about them.

    Every answer is computed model by model with one graph alive at a time, so memory does not grow with n.
    """

    prefix = ""
    """What stands before the attack's name in tables: PGD, EOT^1-PGD, EOT-PGD."""
    fresh = True
    """Whether each iteration has models of its own, so that losses of two iterations cannot be compared."""
    probabilities: Float64[Tensor, " n"] | None = None
    """Of the models of an iteration, where they are not equally likely: means over models are weighted by them."""
    n = 1
    """How many models an iteration has."""

    def __init__(self) -> None:
        self.cost = Cost()

    @property
    @abstractmethod
    def random(self) -> bool:
        """Whether the network is random, so that fooling these models says little about the next draw."""

    @abstractmethod
    def __call__(self, k: int) -> Iterator[SampleModel]:
        """Yield the models of iteration k; the same k gives the same models."""

    def label(self, attack: str) -> str:
        """Return the attack's name as the paper writes it for this view."""
        return f"{self.prefix}{attack}"

    def gradient(
        self, k: int, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"], objective: str = "ce"
    ) -> MeanGradient:
        """Return the gradient of the objective over the models of iteration k, and the objective's value."""
        with self.context():
            return mean_gradient(self._counted(k, backwards=1), x, y, objective, self.probabilities)

    def gradients(
        self, k: int, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"], objective: str = "margin"
    ) -> Iterator[Float[Tensor, "b ..."]]:
        """Yield grad_x s of each model of iteration k, s the score of the objective."""
        with self.context():
            for f in self._counted(k, backwards=1):
                yield input_gradient(f, x, y, s_of=attack_objective(objective).s)[1]

    def loss(
        self, k: int, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"], objective: str = "ce"
    ) -> Float[Tensor, " b"]:
        """Return the value of the objective over the models of iteration k, for each example."""
        return self.losses(k, [x], y, objective)[0]

    def losses(
        self, k: int, points: Sequence[Float[Tensor, "b ..."]], y: Int64[Tensor, " b"], objective: str = "ce"
    ) -> Float[Tensor, "points b"]:
        """Return the loss at each of several points: the models are drawn once for all of them."""
        goal = attack_objective(objective)
        p = None if self.probabilities is None else self.probabilities.to(points[0])
        answers = self._asked(k, points)
        losses = torch.stack([goal.value(Members(z, y, torch.stack([goal.s(f, y) for f in z]), p=p)) for z in answers])
        if (is_nan := losses.isnan().any(0)).any():
            raise GradDivError(
                f"the loss of {int(is_nan.sum())} of {len(y)} examples is NaN: "
                "look at the network's weights and at the input"
            )
        return losses

    def member_logits(self, k: int, x: Float[Tensor, "b ..."]) -> Float[Tensor, "n b c"]:
        """Return the logits of each model of iteration k."""
        return self._asked(k, [x])[0]

    def logits(self, k: int, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
        """Return the mean logits z over the models of iteration k."""
        return self.logits_at(k, [x])[0]

    def logits_at(self, k: int, points: Sequence[Float[Tensor, "b ..."]]) -> Float[Tensor, "points b c"]:
        """Return the mean logits at each of several points: the models are drawn once for all of them."""
        z = torch.stack(self._asked(k, points))
        return z.mean(1) if self.probabilities is None else torch.einsum("n,pnbc->pbc", self.probabilities.to(z), z)

    def _asked(self, k: int, points: Sequence[Tensor]) -> list[Float[Tensor, "n b c"]]:
        """Return what each model of iteration k says of each point."""
        with torch.no_grad(), self.context():
            answers = [[f(x) for x in points] for f in self._counted(k, forwards=len(points))]
        return [torch.stack(of_point) for of_point in zip(*answers, strict=True)]

    def differences(
        self, k: int, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"], only: Int64[Tensor, " b"] | None = None
    ) -> tuple[Float[Tensor, "b l"], Float[Tensor, "b l ..."]]:
        """z_l - z_y and its gradient, z the mean logits, for l = y + 1, y + 2, ... (mod c), or the one in `only`."""
        check_mode()
        gaps, gradients, n = torch.zeros(()), torch.zeros(()), 0
        with torch.enable_grad(), self.context():
            for f, weight in self._weighted(k):
                point = x.detach().requires_grad_()
                z = f(point)
                margin(z.detach(), y)  # raises an error for labels that are no class, which the modulo would hide
                turned = z.gather(1, (y[:, None] + torch.arange(z.shape[1], device=y.device)) % z.shape[1])
                gap = turned[:, 1:] - turned[:, :1]
                gap = gap if only is None else gap.gather(1, only[:, None])
                columns = [derivative(column.sum(), point, retain_graph=True) for column in gap.unbind(1)]
                gaps, gradients = gaps + weight * gap.detach(), gradients + weight * torch.stack(columns, 1)
                n += 1
                self.cost.backwards += len(columns)
        check_finite(gradients.flatten(1).abs().sum(1))
        return gaps / n, gradients / n

    def margin(
        self, k: int, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"]
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, "b ..."]]:
        """max_{j != y} z_j - z_y of the mean logits z over the models of iteration k, and its gradient.

        Which class j is the rival is known only once all models were asked.  The graph of the last model is still alive
        then; the others are evaluated a second time, so that only one graph is alive at a time.
        """
        own = y[:, None]
        check_mode()
        with torch.enable_grad(), self.context():
            total, n = torch.zeros(()), 0
            for f, weight in self._weighted(k, backwards=1):
                z = total  # frees the graph of the previous model
                point = x.detach().requires_grad_()
                z = f(point)
                total, n = total + weight * z.detach(), n + 1
            margins = margin(total / n, y)
            rival = total.scatter(1, own, -torch.inf).argmax(1, keepdim=True)
            gradient = derivative(weight * (z.gather(1, rival) - z.gather(1, own)).sum(), point)
            for f, weight in islice(self._weighted(k), n - 1):
                point = x.detach().requires_grad_()
                z = f(point)
                rise = weight * (z.gather(1, rival) - z.gather(1, own)).sum()
                gradient = gradient + derivative(rise, point)
        check_finite(gradient.flatten(1).abs().sum(1))
        return margins, gradient / n

    def first(self, k: int) -> "View":
        """Return the view of a single model, the first of iteration k; what it spends is added to this view's cost."""
        return HeldView([next(iter(self(k)))], self)

    def held(self, k: int) -> "Given":
        """Return the view that keeps to the models of iteration k; what it spends is added to this view's cost."""
        held = HeldView(list(self(k)), self)
        held.probabilities = self.probabilities
        return held

    def sized(self, n: int) -> "View":
        """Return the same view with n models at an iteration, where it can have any number; itself otherwise."""
        return self

    def mean_model(self) -> "View | None":
        """Return the view of the mean network, if there is one; what it spends is added to this view's cost."""
        return None

    def _weighted(self, k: int, backwards: int = 0) -> Iterator[tuple[SampleModel, float]]:
        """Yield the models of iteration k, counted, with weights whose mean is 1."""
        p = self.probabilities
        weights = repeat(1.0) if p is None else iter((len(p) * p).tolist())
        return zip(self._counted(k, backwards), weights, strict=False)

    def _counted(self, k: int, backwards: int = 0, forwards: int = 1) -> Iterator[SampleModel]:
        for f in self(k):
            self.cost.forwards += forwards
            self.cost.backwards += backwards
            yield f

    def context(self) -> AbstractContextManager[None]:
        """Return the context in which models are called; views of a network switch batch norm to running statistics."""
        return nullcontext()


class Given(View):
    """A transfer attack: all of the given models at each iteration."""

    fresh = False

    def __init__(self, models: Sequence[SampleModel]) -> None:
        super().__init__()
        if not models:
            raise GradDivError("there are 0 models, expected at least one to attack")
        self.n = len(models)
        self.models: list[SampleModel] = [partial(_logits, f) for f in models]

    @property
    def random(self) -> bool:
        return True

    def __call__(self, k: int) -> Iterator[SampleModel]:
        return iter(self.models)

    def only(self, i: int) -> View:
        """Return the view of the i-th model alone; what it spends is added to this view's cost."""
        return HeldView([self.models[i]], self)


class HeldView(Given):
    """Models of another view, called in that view's context."""

    def __init__(self, models: Sequence[SampleModel], parent: View) -> None:
        super().__init__(models)
        self.parent, self.cost = parent, parent.cost

    def context(self) -> AbstractContextManager[None]:
        return self.parent.context()


def _logits(f: SampleModel, x: Tensor) -> Tensor:
    """f(x), once it is sure that these are logits: models that were given may be any function."""
    return logits_of(f(x), getattr(f, "__name__", type(f).__name__), len(x))
