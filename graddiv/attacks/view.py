"""What the adversary sees: `view(k)` yields the sample models of iteration k, one at a time.

[Attack] looks through `Fixed(F)`, EOT^1-[Attack] through `EOT(F, 1)`, EOT-[Attack] through `EOT(F, n)`, a transfer
attack through `Given(models)`; `Exact(F)` shows all models, where there are finitely many.  A view is pure in k, so
that a candidate and an incumbent can be compared on the same models.  See docs/equations.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graddiv.diversity import MeanGradient, input_gradient, mean_gradient
from graddiv.diversity.gradients import OBJECTIVES, check_finite, derivative, leaf
from graddiv.errors import GradDivError
from graddiv.geometry import Images, Labels, PerExample
from graddiv.losses import Weights, margin
from graddiv.networks import Dirac, Noise, RandomizedNetwork, SampleModel, running_statistics
from graddiv.networks.inputs import logits_of
from graddiv.seeding import fold


@dataclass
class Cost:
    """The cost of an attack: passes of one model over one batch, forward and backward, and draws of noise."""

    forwards: int = 0
    backwards: int = 0
    draws: int = 0


class View(ABC):
    """The models of each iteration, and what an attack may ask of them; one graph is alive at a time, whatever n."""

    prefix = ""  #: what stands before the attack's name in tables: PGD, EOT^1-PGD, EOT-PGD
    fresh = True  #: whether each iteration has models of its own, so that losses of two iterations cannot be compared
    n = 1  #: how many models an iteration has
    declared = True  #: whether the caller said what is random, so that no model draws by itself
    probabilities: Weights = None  #: of these models

    def __init__(self) -> None:
        self.cost = Cost()

    @abstractmethod
    def __call__(self, k: int) -> Iterator[SampleModel]:
        """Yield the models of iteration k; the same k gives the same models."""

    def context(self) -> AbstractContextManager[None]:
        """Return the context in which models are called; views of a network switch batch norm to running statistics."""
        return nullcontext()

    def renewed(self, k: int) -> bool:
        """Whether the models of iteration k are others than those of the one before."""
        return self.fresh

    def label(self, attack: str) -> str:
        """Return the attack's name as the paper writes it for this view."""
        return f"{self.prefix}{attack}"

    def gradient(
        self, k: int, x: Images, y: Labels, objective: str = "ce", logits: list[Tensor] | None = None
    ) -> MeanGradient:
        """Return the objective's gradient and value over the models of iteration k; append their logits to `logits`."""
        with self.context():
            return mean_gradient(self._counted(k, backwards=1), x, y, objective, self.probabilities, logits)

    def gradients(self, k: int, x: Images, y: Labels, objective: str = "margin") -> Iterator[Images]:
        """Yield grad_x s of each model of iteration k, s the score of the objective."""
        with self.context():
            for f in self._counted(k, backwards=1):
                yield input_gradient(f, x, y, s_of=OBJECTIVES[objective].s)[1]

    def loss(self, k: int, x: Images, y: Labels, objective: str = "ce") -> PerExample:
        """Return the value of the objective over the models of iteration k, for each example."""
        return self.losses(k, [x], y, objective)[0]

    def losses(self, k: int, points: Sequence[Images], y: Labels, objective: str = "ce") -> Float[Tensor, "points b"]:
        """Return the loss at each of several points: the models are drawn once for all of them."""
        goal = OBJECTIVES[objective]
        p = None if self.probabilities is None else self.probabilities.to(points[0])
        answers = self._asked(k, points)
        losses = torch.stack([goal.value(torch.stack([goal.s(f, y) for f in z]), p) for z in answers])
        if (is_nan := losses.isnan().any(0)).any():
            which = f"the loss of {int(is_nan.sum())} of {len(y)} examples"
            raise GradDivError(f"{which} is NaN: look at the network's weights and at the input")
        return losses

    def member_logits(self, k: int, x: Images) -> Float[Tensor, "n b c"]:
        """Return the logits of each model of iteration k."""
        return self._asked(k, [x])[0]

    def logits(self, k: int, x: Images) -> Float[Tensor, "b c"]:
        """Return the mean logits z over the models of iteration k."""
        return self.logits_at(k, [x])[0]

    def logits_at(self, k: int, points: Sequence[Images]) -> Float[Tensor, "points b c"]:
        """Return the mean logits at each of several points: the models are drawn once for all of them."""
        z = torch.stack(self._asked(k, points))
        return z.mean(1) if self.probabilities is None else torch.einsum("n,pnbc->pbc", self.probabilities.to(z), z)

    def differences(
        self, k: int, x: Images, y: Labels, only: Labels | None = None
    ) -> tuple[Float[Tensor, "b l"], Float[Tensor, "b l ..."]]:
        """z_l - z_y and its gradient, z the mean logits, for l = y + 1, y + 2, ... (mod c), or the one in `only`."""
        gaps, gradients = torch.zeros(()), torch.zeros(())
        with torch.enable_grad(), self.context():
            for f, weight in self._weighted(k):
                z = f(point := leaf(x))
                margin(z.detach(), y)  # raises an error for labels that are no class, which the modulo would hide
                turned = z.gather(1, (y[:, None] + torch.arange(z.shape[1], device=y.device)) % z.shape[1])
                gap = turned[:, 1:] - turned[:, :1]
                gap = gap if only is None else gap.gather(1, only[:, None])
                columns = [derivative(column.sum(), point, retain_graph=True) for column in gap.unbind(1)]
                gaps, gradients = gaps + weight * gap.detach(), gradients + weight * torch.stack(columns, 1)
                self.cost.backwards += len(columns)
        check_finite(gradients.flatten(1).abs().sum(1))
        return gaps / self.n, gradients / self.n

    def margin(self, k: int, x: Images, y: Labels) -> tuple[PerExample, Images]:
        """max_{j != y} z_j - z_y of the mean logits z over the models of iteration k, and its gradient.

        The rival class j is known only after a pass of all models.  The graph of the last model is still alive then;
        the others are evaluated a second time, so that only one graph is alive at a time.
        """
        own = y[:, None]
        with torch.enable_grad(), self.context():
            total = torch.zeros(())
            for f, weight in self._weighted(k, backwards=1):
                z = total  # frees the graph of the previous model
                z = f(point := leaf(x))
                total = total + weight * z.detach()
            margins = margin(total / self.n, y)
            rival = total.scatter(1, own, -torch.inf).argmax(1, keepdim=True)
            gradient = derivative(weight * (z.gather(1, rival) - z.gather(1, own)).sum(), point)
            for f, weight in islice(self._weighted(k), self.n - 1):
                z = f(point := leaf(x))
                gradient = gradient + derivative(weight * (z.gather(1, rival) - z.gather(1, own)).sum(), point)
        check_finite(gradient.flatten(1).abs().sum(1))
        return margins, gradient / self.n

    def held(self, k: int, count: int | None = None) -> "Given":
        """Return a view of only the first `count` models of iteration k, or of all; its passes count as this view's."""
        return Given(list(islice(self(k), count)), self, self.probabilities if count is None else None)

    def _asked(self, k: int, points: Sequence[Tensor]) -> list[Float[Tensor, "n b c"]]:
        """Return the logits of each model of iteration k at each point."""
        with torch.no_grad(), self.context():
            answers = [[f(x) for x in points] for f in self._counted(k, forwards=len(points))]
        return [torch.stack(of_point) for of_point in zip(*answers, strict=True)]

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


class Given(View):
    """A transfer attack: all of the given models at each iteration.

    parent: the view that the models come from, which counts their passes and switches their batch norm.
    """

    fresh = False

    def __init__(
        self, models: Sequence[SampleModel], parent: View | None = None, probabilities: Weights = None
    ) -> None:
        super().__init__()
        if not models:
            raise GradDivError("there are 0 models, expected at least one to attack")
        self.n, self.probabilities = len(models), probabilities
        self.models: list[SampleModel] = [partial(_logits, f) for f in models]
        if parent is not None:
            self.cost, self.context = parent.cost, parent.context  # type: ignore[method-assign]

    def __call__(self, k: int) -> Iterator[SampleModel]:
        return iter(self.models)


def _logits(f: SampleModel, x: Tensor) -> Tensor:
    """f(x), checked to be logits: given models may be any function."""
    return logits_of(f(x), getattr(f, "__name__", type(f).__name__), len(x))


class NetworkView(View):
    """A view of a randomized network; theta is read once, as constants: attacks build no graph of the parameters."""

    def __init__(self, F: RandomizedNetwork | nn.Module, seed: int) -> None:
        super().__init__()
        self.declared = isinstance(F, RandomizedNetwork)
        self.F = F if isinstance(F, RandomizedNetwork) else Dirac(F)
        self.seed = seed
        with torch.no_grad():
            self._theta = self.F.theta()

    def _draw(self, *address: int | str) -> Noise:
        self.cost.draws += self.F.random
        return self.F.draw(fold(self.seed, "view", *address))

    def _bind(self, noise: Noise) -> SampleModel:
        with torch.no_grad():
            return self.F.bind(noise, self._theta)

    def context(self) -> AbstractContextManager[None]:
        return running_statistics(self.F)


class Fixed(NetworkView):
    """[Attack]: one sample model, drawn once and the same in every iteration."""

    fresh = False

    def __init__(self, F: RandomizedNetwork | nn.Module, seed: int = 0) -> None:
        super().__init__(F, seed)
        self._fixed = self._bind(self._draw("fixed"))

    def __call__(self, k: int) -> Iterator[SampleModel]:
        yield self._fixed


class EOT(NetworkView):
    """EOT-[Attack]: n fresh sample models at each iteration; a deterministic network has one model, whatever n."""

    def __init__(self, F: RandomizedNetwork | nn.Module, n: int = 1, seed: int = 0) -> None:
        super().__init__(F, seed)
        if n < 1:
            raise GradDivError(f"n is {n}, expected at least one sample model")
        self.n, self.fresh, self.prefix = (n, True, "EOT-" if n > 1 else "EOT^1-") if self.F.random else (1, False, "")

    def __call__(self, k: int) -> Iterator[SampleModel]:
        return (self._bind(self._draw(k, i)) for i in range(self.n))


class Held(EOT):
    """EOT whose models stay the same for several iterations: an attack by queries asks its incumbent once for each."""

    def __init__(self, F: RandomizedNetwork | nn.Module, n: int = 1, seed: int = 0, iterations: int = 20) -> None:
        super().__init__(F, n, seed)
        self.iterations = iterations
        self._block, self._models = -1, list[SampleModel]()

    def __call__(self, k: int) -> Iterator[SampleModel]:
        if (block := k // self.iterations) != self._block:
            self._block, self._models = block, list(super().__call__(block))
        return iter(self._models)

    def renewed(self, k: int) -> bool:
        return super().renewed(k) and k % self.iterations == 0


class Exact(NetworkView):
    """EOT as an exact sum: all the models there are, with their probabilities, at each iteration."""

    fresh = False

    def __init__(self, F: RandomizedNetwork | nn.Module) -> None:
        super().__init__(F, seed=0)
        support = self.F.support()
        if support is None:
            kind = type(self.F).__name__
            raise GradDivError(f"the noise of {kind} has no finite support: look through EOT(F, n) instead")
        self.noises, self.n = support.noises, len(support.noises)
        self.probabilities = None if support.is_uniform else support.probabilities
        self.prefix = "EOT-" if self.n > 1 else ""

    def __call__(self, k: int) -> Iterator[SampleModel]:
        return (self._bind(noise) for noise in self.noises)


def as_view(target: View | nn.Module) -> View:
    """Return a view unchanged, and make one of a deterministic module; a random network needs an explicit view."""
    if isinstance(target, View):
        return target
    if isinstance(target, RandomizedNetwork) and target.random:
        how = "say how the adversary sees it, with Fixed(F), EOT(F, n) or Given(models)"
        raise GradDivError(f"{type(target).__name__} is random: {how}")
    return Fixed(target)
