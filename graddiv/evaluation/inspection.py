"""Checks, which are functions registered by `@check`, and the inspection that checks of a network look at."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from graddiv.diversity.gradients import input_gradient
from graddiv.errors import GradDivError
from graddiv.losses import soft_margin
from graddiv.networks import RandomizedNetwork, SampleModel, running_statistics
from graddiv.networks.foreign import CALLS, draws_by_itself
from graddiv.networks.prediction import models_of
from graddiv.registries import Registry
from graddiv.seeding import fold, generator, isolated

DRAWS = 8  #: Sample models that are checked.
EXAMPLES = 16  #: The number of first examples whose gradients are checked.

Outcome = Literal["pass", "warn", "fail", "not enough evidence"]
Answer = tuple[Outcome, str, dict[str, Any]]  #: Verdict, sentence and numbers.


class Item(NamedTuple):
    """One thing that was checked."""

    name: str  #: What should be the case.
    verdict: Outcome  #: Whether it is.
    sentence: str  #: The finding in words.
    evidence: dict[str, Any]  #: The numbers behind it, as JSON values.

    def remedied(self, how: str) -> "Item":
        """The item with what was done about it."""
        return self._replace(sentence=f"{self.sentence}; {how}")


class Check(NamedTuple):
    """One entry of a registry of checks."""

    title: str  #: What should be the case.
    run: Callable[[Any], Answer]
    decisive: tuple[Outcome, ...] = ()  #: Verdicts with which the evidence of an audit is not sufficient.
    needs: str = ""  #: The names of the evidence without which the check does not apply.

    def __call__(self, subject: Any) -> Item:
        return Item(self.title, *self.run(subject))

    @property
    def explanation(self) -> dict[str, str]:
        """What the docstring of its function says, of the form `Raised if .. Means: .. Do: ..`, by these words."""
        said = " ".join((getattr(self.run, "func", self.run).__doc__ or "").split())
        raised, _, rest = said.partition(" Means: ")
        means, _, remedy = rest.partition(" Do: ")
        return {"Raised if": raised.removeprefix("Raised if "), "What it means": means, "What to do": remedy}


#: Checks of a network, each a function of an `Inspection`, in the order in which they are made before any attack.
CHECKS: Registry[Check] = Registry("check")
#: Checks of how attacks behaved, each a function of an `Evidence`, in the order in which they are shown.
BEHAVIOURS: Registry[Check] = Registry("behaviour")
C = TypeVar("C", bound=Callable[..., Answer])


def check(title: str, *, of: Registry[Check] = CHECKS, **options: Any) -> Callable[[C], C]:
    """Register the function below as a check, by its name; the options are the fields of `Check`."""

    def register(function: C) -> C:
        of[function.__name__] = Check(title, function, **options)
        return function

    return register


@dataclass(frozen=True, eq=False)
class Inspection:
    """A network and examples with pixels in [0, 1], and the values that checks share."""

    F: RandomizedNetwork
    x: Float[Tensor, "b ..."]
    y: Int64[Tensor, " b"]
    seed: int = 0
    declared: bool | None = None  #: Whether the caller declared the network random; None if we find out.

    @cached_property
    def models(self) -> list[SampleModel]:
        """Some sample models, only such as answer with numbers if there are any; one of a deterministic network."""
        drawn = list(models_of(self.F, DRAWS, fold(self.seed, "look")))
        if len(drawn) == 1:
            return drawn
        return [f for f in drawn if not self.answer(f, self.near[0]).isnan().any()] or drawn

    @cached_property
    def logits(self) -> Float[Tensor, "n b c"]:
        return torch.stack([self.answer(f, self.x) for f in self.models])

    @cached_property
    def draws(self) -> bool:
        """Whether calls of one sample model differ: it draws beside its noise."""
        return draws_by_itself(self.models[0], self.F, self.x[:2])

    @cached_property
    def logits_of_draws(self) -> Float[Tensor, "n b c"]:
        """The logits on images and on noise, since draws may agree on easy images; of more draws while all agree."""
        x = self.near[0]
        noise = torch.rand(x.shape, generator=generator(fold(self.seed, "look", "elsewhere"))).to(x)
        found, differ = list[Tensor](), False
        for f in models_of(self.F, CALLS, fold(self.seed, "look")):
            found.append(self.answer(f, torch.cat([x, noise])).nan_to_num())
            differ = differ or not torch.equal(found[0], found[-1])
            if differ and len(found) >= DRAWS:
                break
        return torch.stack(found)

    @cached_property
    def near(self) -> tuple[Float[Tensor, "k ..."], Int64[Tensor, " k"]]:
        """The examples whose gradients are checked."""
        return self.x[:EXAMPLES], self.y[:EXAMPLES]

    @cached_property
    def gradients(self) -> Float[Tensor, "n k ..."] | None:
        """grad s of each sample model there; None where autograd finds no way from the output to the input."""
        try:
            return torch.stack([self.gradient(f, *self.near) for f in self.models])
        except GradDivError as error:
            if "no gradient with respect to its input" in str(error):
                return None
            raise

    @property
    def usable_gradients(self) -> Float[Tensor, "n k ..."] | None:
        """These gradients, if all of them are numbers and some of them are not 0."""
        g = self.gradients
        return None if g is None or not g.isfinite().all() or not (g != 0).any() else g

    def answer(self, f: SampleModel, x: Tensor, seed: int = 0) -> Float[Tensor, "b c"]:
        """f(x); the seed is that of the global generators, which a sample model has no business to ask."""
        with torch.no_grad(), running_statistics(self.F), isolated(seed):
            return f(x)

    def gradient(self, f: SampleModel, x: Tensor, y: Tensor) -> Tensor:
        with running_statistics(self.F):
            return input_gradient(f, x, y)[1]

    def margins(self, f: SampleModel, x: Tensor) -> Float[Tensor, " k"]:
        """Return s of one sample model at points near the examples."""
        return soft_margin(self.answer(f, x), self.near[1])

    def offset(self, *role: int | str) -> Tensor:
        """Return numbers in [-1, 1) in the shape of `near`."""
        x = self.near[0]
        return 2 * torch.rand(x.shape, generator=generator(fold(self.seed, "look", *role)), dtype=x.dtype).to(x) - 1
