"""The list of defenses, and the settings of those that the paper compares; literature.py has those of the others.

A defense is a section of the recipe.  Torch is imported when a network is built, not when a recipe is read.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from graddiv.experiment.defense import Defense
from graddiv.experiment.fields import Count, NotNegative, Positive, Real
from graddiv.experiment.literature import (
    ActivationPNISection,
    CompressionSection,
    CropsSection,
    DropoutSection,
    EnsembleSection,
    PixelDPSection,
    ResizeSection,
    SAPSection,
    SmoothingSection,
    TotalVariationSection,
    WCASection,
)
from graddiv.registries import Registry
from graddiv.rules import WithKL

if TYPE_CHECKING:
    from torch import Tensor, nn

    from graddiv.data import Dataset
    from graddiv.networks import RandomizedNetwork

    Examples = Callable[[], Dataset]


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
        return WithKL(self.alpha_kl).penalties(F, examples)


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

    def trained(self, F: "RandomizedNetwork") -> "RandomizedNetwork":
        """The network without partners: mixup inference is no part of training."""
        from graddiv.networks import Dirac

        return Dirac(F.module)


DEFENSES: Registry[type[Defense]] = Registry(
    "defense",
    {
        "gaussian": GaussianSection,
        "pni": PNISection,
        "rse": RSESection,
        "mixup": MixupSection,
        "ensemble": EnsembleSection,
        "dropout": DropoutSection,
        "sap": SAPSection,
        "resize": ResizeSection,
        "crops": CropsSection,
        "smoothing": SmoothingSection,
        "pixeldp": PixelDPSection,
        "wca": WCASection,
        "pni_activations": ActivationPNISection,
        "compression": CompressionSection,
        "total_variation": TotalVariationSection,
    },
)
"""By the name of their section in a recipe."""
