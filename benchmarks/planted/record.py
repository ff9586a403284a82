"""A planted model: a network with a known fault, or without one, and the truth about its robustness."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from graddiv.geometry import NORMS
from graddiv.seeding import fold, isolated

ENSEMBLE = 20
"""The draws whose mean softmax answers."""
ELSEWHERE = 2**40
"""Where the seeds of the judge begin: no attack draws there."""
Make = Callable[[], nn.Module]


class Truth(NamedTuple):
    """What is known about the accuracy of an ensemble of 20 draws, and of one draw, on the plant's images."""

    accuracy: float
    """An upper bound: what the images below leave right on fresh draws."""
    per_draw: float
    x_adv: Tensor
    how: str
    """closed form, or attack."""
    lower: float = 0.0
    """A lower bound, if one is proved."""
    proof: str = "no better attack known"


@dataclass(frozen=True)
class Planted:
    """One model of the collection.

    `make` returns a module in eval mode that maps images with pixels in [0, 1] to logits; if `random`, it draws from
    the global generators of torch, Python or NumPy, or from one of its own.
    `partial` says that the gradient is wrong only in part, which checks of presence do not see.
    `sound` says that its gradient is right and that it is an honest network, which must not be accused.
    """

    name: str
    family: str
    fault: str
    make: Make
    images: Callable[[], tuple[Tensor, Tensor]]
    epsilon: float
    find: "Callable[[Planted], Tensor]" = field(repr=False)
    """The hand-made attack, or the closed form."""
    how: str = "attack"
    norm: str = "linf"
    random: bool = False
    partial: bool = False
    sound: bool = False
    proved: "Callable[[Planted], float] | None" = field(default=None, repr=False)
    """A lower bound of the accuracy."""
    proof: str = ""

    @cached_property
    def truth(self) -> Truth:
        y, x_adv = self.images()[1], self.find(self)
        right = draws(self.make(), x_adv, ENSEMBLE if self.random else 1, ELSEWHERE)
        accuracy = float((right.softmax(2).mean(0).argmax(1) == y).double().mean())
        per_draw = float((right.argmax(2) == y).double().mean())
        known = Truth(accuracy, per_draw, x_adv, self.how)
        return known if self.proved is None else known._replace(lower=self.proved(self), proof=self.proof)

    def distance(self, x_adv: Tensor) -> Tensor:
        """How far each of these images lies from its original, in the plant's norm."""
        return NORMS[self.norm].norm(x_adv.double() - self.images()[0].double())


def draws(model: nn.Module, x: Tensor, n: int, seed: int) -> Tensor:
    """The logits of n calls, n b c, each under random states of its own."""
    answers = []
    for i in range(n):
        with isolated(fold(seed, i)), torch.no_grad():
            answers.append(model(x))
    return torch.stack(answers)


PLANTED: dict[str, Planted] = {}
"""The collection, by name."""


def plant(name: str, **about: object) -> None:
    """Add a model to the collection."""
    assert name not in PLANTED, name
    PLANTED[name] = Planted(name, **about)  # type: ignore[arg-type]
