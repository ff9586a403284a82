"""What a defense is: a section of the recipe, from which a network is built and trained.

Torch is imported when a network is built, not when a recipe is read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from graddiv.experiment.fields import Section

if TYPE_CHECKING:
    from torch import Tensor, nn

    from graddiv.data import Dataset
    from graddiv.networks import RandomizedNetwork

    Examples = Callable[[], Dataset]


class Minibatch(NamedTuple):
    """What a step of training learns from."""

    x: "Tensor"
    """The images, attacked ones too where training has an adversary."""
    y: "Tensor"
    ids: "Tensor"
    """The data-set index of each image, which addresses its randomness."""
    seed: int
    """Addresses all other randomness of the step."""
    progress: float
    """The share of all steps that is behind, in [0, 1)."""


class Defense(Section, ABC):
    """Settings of a defense, from which a network is built and trained."""

    interpolated: ClassVar[bool] = False
    """Whether training is on interpolated examples."""
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

    def trained(self, F: "RandomizedNetwork") -> "RandomizedNetwork":
        """The network that the loss and the inner adversary see: F, unless its noise is no part of training."""
        return F

    def losses(self, F: "RandomizedNetwork", batch: Minibatch) -> "Tensor":
        """CE(f(x), y) for each example, with f drawn for this step; F is what `trained` returns."""
        from graddiv.losses import ce

        return ce(F.bind(F.draw(batch.seed, batch.ids))(batch.x), batch.y)

    def penalties(self, F: "RandomizedNetwork", examples: int) -> "dict[str, Tensor]":
        """What training adds to the loss, by its name in the log; `examples` is the size of the training set."""
        return {}


class Deterministic(Defense):
    """No noise: what an experiment without any section of a defense trains."""

    random: ClassVar[bool] = False

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import Dirac

        return Dirac(module)
