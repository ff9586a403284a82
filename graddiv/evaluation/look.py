"""What checks look at.

A check is a small function of a `Look` that answers with a verdict, a sentence and its numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.directions.gradients import input_gradient
from graddiv.errors import GradDivError
from graddiv.evaluation.prediction import models_of
from graddiv.evaluation.verdicts import Item, Outcome
from graddiv.losses import soft_margin
from graddiv.networks import RandomizedNetwork, SampleModel, running_statistics
from graddiv.networks.inputs import logits_of
from graddiv.seeding import fold, generator, isolated

DRAWS = 8
"""Sample models that are looked at."""
EXAMPLES = 16
"""Examples whose gradients are looked at, the first ones."""

Answer = tuple[Outcome, str, dict[str, Any]]
"""Verdict, sentence and numbers."""


@dataclass(frozen=True, eq=False)
class Look:
    """What the checks look at: a network and examples with pixels in [0, 1]."""

    F: RandomizedNetwork
    x: Float[Tensor, "b ..."]
    y: Int64[Tensor, " b"]
    seed: int = 0
    declared: bool | None = None
    """Whether the network was said to be random; None where it was for us to find out."""

    @cached_property
    def models(self) -> list[SampleModel]:
        """The sample models that are looked at; one of a deterministic network."""
        return list(models_of(self.F, DRAWS, fold(self.seed, "look")))

    @cached_property
    def logits(self) -> Float[Tensor, "n b c"]:
        """What they answer."""
        with torch.no_grad(), running_statistics(self.F):
            return torch.stack([f(self.x) for f in self.models])

    @cached_property
    def logits_elsewhere(self) -> Float[Tensor, "n k c"]:
        """What they answer on images of noise: draws may agree on all images that are easy."""
        noise = torch.rand(self.near[0].shape, generator=generator(fold(self.seed, "look", "elsewhere")))
        with torch.no_grad(), running_statistics(self.F):
            return torch.stack([f(noise.to(self.x)) for f in self.models])

    @cached_property
    def near(self) -> tuple[Float[Tensor, "k ..."], Int64[Tensor, " k"]]:
        """The examples whose gradients are looked at."""
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

    def gradient(self, f: SampleModel, x: Tensor, y: Tensor) -> Tensor:
        """grad s of one sample model."""
        with running_statistics(self.F):
            return input_gradient(f, x, y)[1]

    def margins(self, f: SampleModel, x: Tensor) -> Float[Tensor, " k"]:
        """Return s of one sample model at points near the examples."""
        with torch.no_grad(), running_statistics(self.F):
            return soft_margin(f(x), self.near[1])

    @cached_property
    def usable(self) -> bool:
        """Whether there are gradients, all of them numbers and some of them not 0."""
        g = self.gradients
        return g is not None and bool(g.isfinite().all()) and bool((g != 0).any())

    def offset(self, *role: int | str) -> Tensor:
        """Return numbers in [-1, 1) in the shape of the examples whose gradients are looked at."""
        x = self.near[0]
        u = torch.rand(x.shape, generator=generator(fold(self.seed, "look", *role)), dtype=x.dtype)
        return (2 * u - 1).to(x.device)


class Check(NamedTuple):
    """One entry of the registry."""

    title: str
    """What should be the case."""
    run: Callable[[Look], Answer]
    decisive: bool = False
    """Whether numbers mean nothing where it fails, whatever the attacks find."""

    def __call__(self, look: Look) -> Item:
        """The answer, as an item."""
        return Item(self.title, *self.run(look))


def draws_by_itself(f: SampleModel, module: nn.Module, x: Float[Tensor, "b ..."]) -> bool:
    """Whether two calls of f, which calls the module, differ: it draws from the global random state."""
    with torch.no_grad(), running_statistics(module):
        answers = []
        for seed in (1, 2, 3):
            with isolated(seed):
                output: Any = f(x)
            answers.append(logits_of(output, type(module).__name__, len(x)))
    return any(not torch.equal(answers[0], other) for other in answers[1:])
