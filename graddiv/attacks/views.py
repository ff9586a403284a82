"""What the adversary sees of a network: `view(k)` yields the sample models of iteration k, one at a time.

[Attack] looks through `Fixed(F)`, EOT^1-[Attack] through `EOT(F, 1)`, EOT-[Attack] through `EOT(F, n)`, a transfer
attack through `Given(models)`.  A view is pure in k: the models of an iteration can be looked at again, so that a
candidate and an incumbent are compared on the same ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.directions.gradients import MeanGradient, attack_objective, check_finite, check_mode, mean_gradient
from graddiv.errors import GradDivError
from graddiv.losses import margin
from graddiv.networks import Dirac, RandomizedNetwork, SampleModel, running_statistics
from graddiv.seeding import fold


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
        with self._running_statistics():
            return mean_gradient(self._counted(k, backwards=1), x, y, objective)

    def loss(
        self, k: int, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"], objective: str = "ce"
    ) -> Float[Tensor, " b"]:
        """Return the value of the objective over the models of iteration k, for each example."""
        goal = attack_objective(objective)
        with torch.no_grad(), self._running_statistics():
            loss = goal.value(torch.stack([goal.s(f(x), y) for f in self._counted(k)]))
        if (is_nan := loss.isnan()).any():
            raise GradDivError(
                f"the loss of {int(is_nan.sum())} of {len(loss)} examples is NaN: "
                "look at the network's weights and at the input"
            )
        return loss

    def logits(self, k: int, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
        """Return the mean logits z over the models of iteration k."""
        with torch.no_grad(), self._running_statistics():
            return torch.stack([f(x) for f in self._counted(k)]).mean(0)

    def differences(
        self, k: int, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b l"], Float[Tensor, "b l ..."]]:
        """z_l - z_y and grad_x (z_l - z_y) of the mean logits z, for the classes l = y + 1, y + 2, ... (modulo c)."""
        check_mode()
        gaps, gradients, n = torch.zeros(()), torch.zeros(()), 0
        with torch.enable_grad(), self._running_statistics():
            for f in self._counted(k):
                point = x.detach().requires_grad_()
                z = f(point)
                margin(z.detach(), y)  # raises an error for labels that are no class, which the modulo would hide
                turned = z.gather(1, (y[:, None] + torch.arange(z.shape[1], device=y.device)) % z.shape[1])
                gap = turned[:, 1:] - turned[:, :1]
                columns = [torch.autograd.grad(column.sum(), point, retain_graph=True)[0] for column in gap.unbind(1)]
                gaps, gradients, n = gaps + gap.detach(), gradients + torch.stack(columns, 1), n + 1
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
        with torch.enable_grad(), self._running_statistics():
            total, n = torch.zeros(()), 0
            for f in self._counted(k, backwards=1):
                z = total  # frees the graph of the previous model
                point = x.detach().requires_grad_()
                z = f(point)
                total, n = total + z.detach(), n + 1
            margins = margin(total / n, y)
            rival = total.scatter(1, own, -torch.inf).argmax(1, keepdim=True)
            (gradient,) = torch.autograd.grad((z.gather(1, rival) - z.gather(1, own)).sum(), point)
            for f in islice(self._counted(k), n - 1):
                point = x.detach().requires_grad_()
                z = f(point)
                gradient = gradient + torch.autograd.grad((z.gather(1, rival) - z.gather(1, own)).sum(), point)[0]
        check_finite(gradient.flatten(1).abs().sum(1))
        return margins, gradient / n

    def first(self, k: int) -> "View":
        """Return the view of a single model, the first of iteration k; what it spends is added to this view's cost."""
        single = _SingleModelView(next(iter(self(k))), self)
        single.cost = self.cost
        return single

    def _counted(self, k: int, backwards: int = 0) -> Iterator[SampleModel]:
        for f in self(k):
            self.cost.forwards += 1
            self.cost.backwards += backwards
            yield f

    def _running_statistics(self) -> AbstractContextManager[None]:
        """Return the context in which models are called; views of a network switch batch norm to running statistics."""
        return nullcontext()


class _NetworkView(View):
    """A view of a randomized network.

    theta is read once, as constants: attacks build no graph of the parameters and leave `requires_grad` alone.
    """

    def __init__(self, F: RandomizedNetwork | nn.Module, seed: int) -> None:
        super().__init__()
        self.F = F if isinstance(F, RandomizedNetwork) else Dirac(F)
        self.seed = seed
        with torch.no_grad():
            self._theta = self.F.theta()

    @property
    def random(self) -> bool:
        return self.F.random

    def _model(self, *address: int | str) -> SampleModel:
        self.cost.draws += self.random
        with torch.no_grad():
            return self.F.bind(self.F.draw(fold(self.seed, "view", *address)), self._theta)

    def _running_statistics(self) -> AbstractContextManager[None]:
        return running_statistics(self.F)


class Fixed(_NetworkView):
    """[Attack]: one sample model, drawn once and the same in every iteration."""

    fresh = False

    def __init__(self, F: RandomizedNetwork | nn.Module, seed: int = 0) -> None:
        super().__init__(F, seed)
        self._fixed = self._model("fixed")

    def __call__(self, k: int) -> Iterator[SampleModel]:
        yield self._fixed


class EOT(_NetworkView):
    """EOT-[Attack]: n fresh sample models at each iteration; a deterministic network has one model, whatever n."""

    def __init__(self, F: RandomizedNetwork | nn.Module, n: int = 1, seed: int = 0) -> None:
        super().__init__(F, seed)
        if n < 1:
            raise GradDivError(f"n is {n}, expected at least one sample model")
        self.n = n if self.random else 1
        self.fresh = self.random
        self.prefix = "" if not self.random else "EOT^1-" if n == 1 else "EOT-"

    def __call__(self, k: int) -> Iterator[SampleModel]:
        return (self._model(k, i) for i in range(self.n))


class Given(View):
    """A transfer attack: all of the given models at each iteration."""

    fresh = False

    def __init__(self, models: Sequence[SampleModel]) -> None:
        super().__init__()
        if not models:
            raise GradDivError("there are 0 models, expected at least one to attack")
        self.models = list(models)

    @property
    def random(self) -> bool:
        return True

    def __call__(self, k: int) -> Iterator[SampleModel]:
        return iter(self.models)


class _SingleModelView(Given):
    """A single model of another view, called in that view's context."""

    def __init__(self, f: SampleModel, parent: View) -> None:
        super().__init__([f])
        self.parent = parent

    def _running_statistics(self) -> AbstractContextManager[None]:
        return self.parent._running_statistics()


def as_view(target: View | nn.Module) -> View:
    """Return a view unchanged, and make one of a deterministic module; a random network needs an explicit view."""
    if isinstance(target, View):
        return target
    if isinstance(target, RandomizedNetwork) and target.random:
        raise GradDivError(
            f"{type(target).__name__} is random: say how the adversary sees it, "
            "with Fixed(F), EOT(F, n) or Given(models)"
        )
    return Fixed(target)
