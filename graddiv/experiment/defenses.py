"""The defenses that make a network random: the settings of each and what it does with them.

A defense is a section of the recipe.  Torch is imported when a network is built, not when a recipe is read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from graddiv.experiment.fields import Count, NotNegative, Positive, Real, Section, Share
from graddiv.registries import Registry

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

    def trained(self, F: "RandomizedNetwork") -> "RandomizedNetwork":
        """The network without partners: mixup inference is no part of training."""
        from graddiv.networks import Dirac

        return Dirac(F.module)


class EnsembleSection(Defense):
    """A random ensemble; with GAL, ADP or DVERGE where the settings say so."""

    k: Annotated[int, Field(ge=2)] = 3
    input_noise: NotNegative = Field(
        0.0, description="sigma of Gaussian noise on half of the images in training; GAL needs 0.045"
    )
    adp_alpha: NotNegative = Field(0.0, description="weight of the ensemble's entropy; 2 in ADP")
    adp_beta: NotNegative = Field(0.0, description="weight of the log volume of wrong classes; 0.5 in ADP")
    dverge: bool = Field(False, description="whether members train on each other's distilled images")
    dverge_epsilon: NotNegative = Field(0.07, description="how far a distilled image may be from its source")
    dverge_m: Count = 10
    baseline: Share = Field(0.5, description="share of training that DVERGE's members spend on clean images before")

    @property
    def members(self) -> int:
        return self.k

    @property
    def in_pairs(self) -> bool:
        return self.dverge

    @property
    def passes(self) -> float:
        plain = 3.0 * self.k
        dverge = self.k * (2.0 * self.dverge_m + 3.0 * (self.k - 1))
        return self.baseline * plain + (1 - self.baseline) * dverge if self.dverge else plain

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from torch import nn

        from graddiv.networks import ensemble

        assert isinstance(module, nn.ModuleList)
        return ensemble(list(module))

    def losses(self, F: "RandomizedNetwork", batch: Minibatch) -> "Tensor":
        """1/k sum_i CE(f_i(x), y): every member learns at every step; less ADP's diversity / k, or else DVERGE's loss.

        ADP's paper has the sum over members where the mean is here, which Adam does not see.
        """
        import torch

        from graddiv.directions.distillation import Distillation, dverge_losses
        from graddiv.losses import ce
        from graddiv.networks import EnsembleNetwork, adp_diversity
        from graddiv.networks.randomized import neighbours

        assert isinstance(F, EnsembleNetwork)
        x, y = self._with_input_noise(batch), batch.y
        if self.dverge and batch.progress >= self.baseline:
            distil = Distillation(self.dverge_epsilon, self.dverge_m)
            return dverge_losses(F, x, y, x[neighbours(len(x), x.device)], seed=batch.seed, distil=distil)
        logits = torch.stack([F.bind(noise)(x) for noise in F.support().noises])
        losses = torch.stack([ce(z, y) for z in logits]).mean(0)
        if self.adp_alpha or self.adp_beta:
            losses = losses - adp_diversity(logits, y, self.adp_alpha, self.adp_beta) / self.k
        return losses

    def _with_input_noise(self, batch: Minibatch) -> "Tensor":
        """x + sigma noise for half of the examples, chosen anew at each step; R is taken at x itself."""
        if self.input_noise == 0:
            return batch.x
        from graddiv.geometry import per_example
        from graddiv.seeding import fold, normal, uniform

        noise = normal(fold(batch.seed, "input noise"), batch.ids, batch.x[0].numel(), batch.x)
        chosen = uniform(fold(batch.seed, "noisy"), batch.ids, 1)[:, 0] < 0.5
        return batch.x + self.input_noise * per_example(chosen, batch.x) * noise.reshape(batch.x.shape)


DEFENSES: Registry[type[Defense]] = Registry(
    "defense",
    {
        "gaussian": GaussianSection,
        "pni": PNISection,
        "rse": RSESection,
        "mixup": MixupSection,
        "ensemble": EnsembleSection,
    },
)
"""By the name of their section in a recipe."""
