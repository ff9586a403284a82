"""The defenses that make a network random: the settings of each and what it does with them.

A defense is a section of the recipe.  Torch is imported when a network is built, not when a recipe is read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from graddiv.experiment.fields import Count, NotNegative, Positive, Real, Section
from graddiv.registries import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

    from graddiv.data import Dataset
    from graddiv.networks import RandomizedNetwork

    Examples = Callable[[], Dataset]


class Defense(Section, ABC):
    """Settings of a defense, from which a network is built and trained."""

    interpolated: ClassVar[bool] = False
    """Whether training sees the network without its noise, on interpolated examples."""

    @abstractmethod
    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        """F of this architecture as it is before training.

        `shape` is that of an image; `examples` reads the training set, which few networks need.
        """

    def penalties(self, F: "RandomizedNetwork", examples: int) -> "dict[str, Tensor]":
        """What training adds to the loss, by its name in the log; `examples` is the size of the training set."""
        return {}


class Deterministic(Defense):
    """No noise: what an experiment without any section of a defense trains."""

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import Dirac

        return Dirac(module)


class GaussianSection(Defense):
    """Adv-BNN: a Gaussian posterior over the weights."""

    prior_sigma: Positive
    init_sigma: Positive | None = Field(None, description="prior_sigma if absent")
    alpha_kl: NotNegative = 0.02
    kl_scope: Literal["all", "last"] = "all"
    batch_norm: bool = Field(True, description="whether batch norm's scale and shift are random too")

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import bayesian

        return bayesian(module, **self.model_dump(exclude={"alpha_kl"}))

    def penalties(self, F: "RandomizedNetwork", examples: int) -> "dict[str, Tensor]":
        """alpha_kl / N KL(q || p), with N the number of training examples."""
        from graddiv.networks import GaussianNetwork

        assert isinstance(F, GaussianNetwork)
        return {"kl": self.alpha_kl / examples * F.kl()}


class PNISection(Defense):
    """Parametric noise injection."""

    alpha: Positive = 0.25
    granularity: Literal["layerwise", "channelwise", "elementwise"] = "layerwise"

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import pni

        return pni(module, self.alpha, granularity=self.granularity)


class RSESection(Defense):
    """Random self-ensemble: noise before the convolutions."""

    sigma_init: NotNegative = 0.2
    sigma_inner: NotNegative = 0.1

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import rse

        return rse(module, shape, **self.model_dump())


class MixupSection(Defense):
    """Mixup inference, on a network trained with interpolated examples."""

    interpolated: ClassVar[bool] = True

    lam: Annotated[Real, Field(gt=0, le=1)] = 0.6
    partners: Literal["OL", "PL"] = "OL"
    pool: Count = Field(5000, description="partners are among the first so many training examples")

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import mixup_inference

        return mixup_inference(module, examples().batch(slice(0, self.pool)), lam=self.lam, partners=self.partners)


DEFENSES: Registry[type[Defense]] = Registry(
    "defense", {"gaussian": GaussianSection, "pni": PNISection, "rse": RSESection, "mixup": MixupSection}
)
"""By the name of their section in a recipe."""
