"""What a defense is: a section of the recipe, from which a network is built and trained.

Torch is imported when a network is built, not when a recipe is read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from graddiv.experiment.fields import Section
from graddiv.rules import Rules

if TYPE_CHECKING:
    from torch import nn

    from graddiv.data import Dataset
    from graddiv.networks import RandomizedNetwork

    Examples = Callable[[], Dataset]


class Defense(Rules, Section, ABC):
    """Settings of a defense, from which a network is built, and its rules, by which it is trained."""

    random: ClassVar[bool] = True
    """Whether the network has noise."""

    @property
    def members(self) -> int:
        """Of how many networks of the architecture it is made."""
        return 1

    @property
    def in_pairs(self) -> bool:
        """Whether training looks at each example together with its neighbour in the batch."""
        return self.interpolated

    @property
    def passes(self) -> float:
        """What the loss of an example costs, about, in forward passes of the architecture."""
        return 3.0

    @abstractmethod
    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        """F of this architecture as it is before training.

        module: a network of the architecture; an `nn.ModuleList` of them where there are several `members`.
        shape: that of an image.
        examples: reads the training set, which few networks need.
        """


class Deterministic(Defense):
    """No noise: what an experiment without any section of a defense trains."""

    random: ClassVar[bool] = False

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import Dirac

        return Dirac(module)
