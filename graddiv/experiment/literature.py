"""Defenses of the paper's literature beside those it compares: the settings of each; see docs/zoo.md."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from graddiv.experiment.defense import Defense
from graddiv.experiment.fields import Count, NotNegative, Positive, Real, Share
from graddiv.rules import Minibatch, neighbours

if TYPE_CHECKING:
    from torch import Tensor, nn

    from graddiv.data import Dataset
    from graddiv.networks import RandomizedNetwork

    Examples = Callable[[], Dataset]

Rate = Annotated[Real, Field(ge=0, lt=1)]


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
        from graddiv.seeding import fold, numbers, uniform

        noise = numbers("normal", fold(batch.seed, "input noise"), batch.ids, batch.x[0].numel(), batch.x)
        chosen = uniform(fold(batch.seed, "noisy"), batch.ids, 1)[:, 0] < 0.5
        return batch.x + self.input_noise * per_example(chosen, batch.x) * noise.reshape(batch.x.shape)


class DropoutSection(Defense):
    """MC dropout."""

    conv_rate: Rate = 0.2
    dense_rate: Rate = 0.5

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import mc_dropout

        return mc_dropout(module, shape, **self.model_dump())


class SAPSection(Defense):
    """Stochastic activation pruning, of a network trained without."""

    fraction: Positive = 1.0
    gradient: Literal["pruned", "identity", "exact"] = "pruned"

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import sap

        return sap(module, shape, **self.model_dump())

    def trained(self, F: "RandomizedNetwork") -> "RandomizedNetwork":
        """The network as it is without pruning: SAP is no part of training."""
        from graddiv.networks import Noiseless

        return Noiseless(F)


class ResizeSection(Defense):
    """Random resizing and padding, of a network trained without."""

    margin: Count = 4
    shrink: bool = Field(False, description="for networks with a fixed input size: no image larger than the original")
    padding: Share = 0.5

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import resize_and_pad

        return resize_and_pad(module, shape, **self.model_dump())

    def trained(self, F: "RandomizedNetwork") -> "RandomizedNetwork":
        """The network as it is without the transformation, which is no part of training."""
        from graddiv.networks import Dirac

        return Dirac(F.module)


class CropsSection(Defense):
    """Random crops, in training too."""

    margin: Count = 2

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import random_crops

        return random_crops(module, shape, **self.model_dump())


class SmoothingSection(Defense):
    """Randomized smoothing: trained on noisy images."""

    sigma: Positive = 0.25

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import smoothing

        return smoothing(module, shape, **self.model_dump())


class PixelDPSection(Defense):
    """Noise after a first convolution that is 1-Lipschitz."""

    sigma: Positive = 0.25

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import pixeldp

        return pixeldp(module, shape, **self.model_dump())


class WCASection(Defense):
    """WCA-Net: noise with a learned covariance before the classifier."""

    features: Count = 32
    weight: NotNegative = Field(1.0, description="of the log variances of the logits in training")
    variances: Literal["sum of logs", "log of sum"] = Field(
        "sum of logs", description="over classes; the released code has the log of the sum"
    )
    decay: NotNegative = Field(1e-4, description="of L and W, as weight decay of Adam has it")

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import wca

        return wca(module, shape, features=self.features)

    def penalties(self, F: "RandomizedNetwork", examples: int) -> "dict[str, Tensor]":
        """-sum_c ln(w_c^T S w_c), S = L L^T, and the decay that keeps it bounded.

        The released code has -ln sum_c w_c^T S w_c.
        """
        from graddiv.networks import WCANetwork

        assert isinstance(F, WCANetwork)
        logs = F.log_variances()
        variances = logs.sum() if self.variances == "sum of logs" else logs.logsumexp(0)
        return {"variances": -self.weight * variances, "decay": self.decay * F.decay()}


class ActivationPNISection(Defense):
    """Parametric noise injection on the image or on activations."""

    alpha: Positive = 0.25
    at: Literal["image", "outputs", "inputs"] = "outputs"

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import pni_activations

        return pni_activations(module, shape, self.alpha, at=self.at)


class CompressionSection(Defense):
    """Bit depth or JPEG before the network, in training too; nothing is random."""

    random: ClassVar[bool] = False

    bits: Annotated[int, Field(ge=1, le=8)] | None = None
    quality: Annotated[int, Field(ge=1, le=100)] | None = None

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import compressed

        return compressed(module, **self.model_dump())


class TotalVariationSection(Defense):
    """Images rebuilt from half of their pixels, in training too."""

    lam: Positive = 0.03
    iterations: Count = 50
    gradient: Literal["identity", "unrolled"] = "identity"

    def build(self, module: "nn.Module", shape: tuple[int, ...], examples: "Examples") -> "RandomizedNetwork":
        from graddiv.networks import total_variation

        return total_variation(module, shape, **self.model_dump())
