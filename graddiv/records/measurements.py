"""The records of measurements: what each kind stores, and the line that sums it up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from graddiv.records.record import Record


@dataclass(frozen=True, eq=False, kw_only=True)
class MeasurementRecord(Record):
    """Something measured on every example, other than an attack's success."""

    named_by: ClassVar[tuple[str, ...]] = ()
    """Settings that tell files of this kind in one directory apart; one that is not given has its default."""

    @classmethod
    def file_name(cls, settings: Mapping[str, Any]) -> str:
        """The name of its file: transfer-eps0.4.record."""
        given = [k for k in cls.named_by if k in settings]
        parts = [f"eps{settings[k]:.6g}" if k == "epsilon" else str(settings[k]).lower() for k in given]
        return "-".join([cls.kind, *parts]) + ".record"

    @property
    def summary(self) -> str:
        """What was found, in one line."""
        return f"{self.kind} of the first {self.examples} examples"


@dataclass(frozen=True, eq=False, kw_only=True)
class ConcentrationRecord(MeasurementRecord):
    """How much n gradients point the same way; NaN where not all of them have a direction."""

    kind: ClassVar[str] = "concentration"

    n: int
    """Gradients at each example."""
    p: int
    """Their dimension."""
    rho: Float[np.ndarray, " b"]
    """|1/n sum_i v_i|_2 of the unit gradients v_i: biased upward by about 1/sqrt(n)."""
    rho_1: Float[np.ndarray, " b"]
    """The same in the l_1 norm."""
    rho_debiased: Float[np.ndarray, " b"]
    """sqrt(max(0, mean cosine)): does not depend on n."""
    mean_cosine: Float[np.ndarray, " b"]
    kappa: Float[np.ndarray, " b"]
    """The paper's estimate of the concentration parameter."""
    kappa_mle: Float[np.ndarray, " b"]
    """Its exact maximum-likelihood estimate."""
    norm_ratio: Float[np.ndarray, " b"]
    """|E g| / E |g|."""
    usable: Bool[np.ndarray, " b"]
    """Whether all n gradients have a direction."""

    @property
    def summary(self) -> str:
        numbers = f"kappa {_median(self.kappa)}, rho {_median(self.rho)} (debiased {_median(self.rho_debiased)})"
        return f"concentration of {self.n} gradients, medians: {numbers}, |E g|/E|g| {_median(self.norm_ratio)}"


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientNoiseRecord(MeasurementRecord):
    """How noisy the margin's gradients are, at x0 and where a short attack leads: how many draws an adversary needs."""

    kind: ClassVar[str] = "gradient-noise"
    named_by: ClassVar[tuple[str, ...]] = ("norm", "epsilon")

    n: int
    """Gradients in each of two independent means."""
    norm: str = "Linf"
    """In which the short attack is bounded."""
    epsilon: float
    rho: Float[np.ndarray, "b 2"]
    """Debiased mean resultant length, at x0 and at the attacked point; likewise below."""
    mean_length: Float[np.ndarray, "b 2"]
    """|mu|, the length of the mean gradient."""
    trace: Float[np.ndarray, "b 2"]
    """tr Cov of the gradients."""
    q: Float[np.ndarray, "b 2"]
    """|mu|^2 / tr Cov."""
    predicted: Float[np.ndarray, "b 2"]
    """1 / (1 + 1 / (n q)): the cosine of two means of n gradients each that q predicts."""
    measured: Float[np.ndarray, "b 2"]
    """The cosine that they have."""

    @property
    def summary(self) -> str:
        places = ("at x0", "at the attacked x")
        parts = [
            f"{place}: rho {_median(self.rho[:, i])}, q {_median(self.q[:, i])}, cosine of two means of {self.n} "
            f"{_median(self.measured[:, i])} (predicted {_median(self.predicted[:, i])})"
            for i, place in enumerate(places)
        ]
        return "noise of gradients, medians, " + "; ".join(parts)


@dataclass(frozen=True, eq=False, kw_only=True)
class NearbyRecord(MeasurementRecord):
    """How concentrated the soft margin's gradients are at growing distances from each example."""

    kind: ClassVar[str] = "nearby"
    named_by: ClassVar[tuple[str, ...]] = ("epsilon",)

    n: int
    """Gradients at each point."""
    epsilon: float
    """The greatest distance."""
    distances: list[float]
    """In l_inf, the first of them 0."""
    mean_cosine: Float[np.ndarray, "b distances"]
    """Mean cosine of pairs of gradients; NaN where not all of them have a direction."""
    length: Float[np.ndarray, "b distances"]
    """Mean length of a gradient."""

    @property
    def rho(self) -> Float[np.ndarray, "b distances"]:
        """sqrt(max(0, mean cosine)), the debiased mean resultant length."""
        rho: np.ndarray = np.sqrt(np.maximum(self.mean_cosine, 0.0))
        return rho

    @property
    def summary(self) -> str:
        places = ", ".join(
            f"{_median(self.rho[:, i])} (length {_median(self.length[:, i])}) at {distance:.3g}"
            for i, distance in enumerate(self.distances)
        )
        return f"rho of {self.n} gradients at distances from x, medians: {places}"


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientsRecord(MeasurementRecord):
    """The unit gradients themselves, at the first examples."""

    kind: ClassVar[str] = "gradients"

    n: int
    p: int
    gradients: Float[np.ndarray, "b n p"]
    cosines: Float[np.ndarray, "b n n"]
    images: Float[np.ndarray, "b ..."]


@dataclass(frozen=True, eq=False, kw_only=True)
class LossIncreaseRecord(MeasurementRecord):
    """What EOT-PGD adds to the loss, beside Theorem 1's bound on the first-order part."""

    kind: ClassVar[str] = "loss-increase"
    named_by: ClassVar[tuple[str, ...]] = ("epsilon",)

    epsilon: float
    n: int
    m: int
    alpha: float
    fresh: int
    """Sample models, unseen by the attack, on which the increase is measured."""
    gradients: int
    """Gradients from which the bound is estimated."""
    increase: Float[np.ndarray, " b"]
    first_order: Float[np.ndarray, " b"]
    """epsilon |E g|_1."""
    theorem: Float[np.ndarray, " b"]
    """epsilon M_X rho_1: the bound on it."""
    tightness: Float[np.ndarray, " b"]
    holds: Bool[np.ndarray, " b"]
    excess: Float[np.ndarray, " b"]

    @property
    def summary(self) -> str:
        bound = f"bound {_median(self.theorem)}, holds for {100 * self.holds.mean():.1f} %"
        return f"loss increase at epsilon {self.epsilon:.4g}, medians: {_median(self.increase)}; Theorem 1's {bound}"


@dataclass(frozen=True, eq=False, kw_only=True)
class RotationRecord(MeasurementRecord):
    """What PGD still achieves when each gradient is turned by an angle."""

    kind: ClassVar[str] = "rotation"
    named_by: ClassVar[tuple[str, ...]] = ("norm", "epsilon")

    norm: str
    epsilon: float
    m: int
    alpha: float
    angles: list[float]
    increase: Float[np.ndarray, "b angles"]
    right: Bool[np.ndarray, "b angles"]
    loss: Float[np.ndarray, " b"]
    right_clean: Bool[np.ndarray, " b"]

    @property
    def summary(self) -> str:
        gains = ", ".join(f"{gain:.3g}" for gain in self.increase.mean(0))
        turned = f"{self.angles[0]:.0f} to {self.angles[-1]:.0f} degrees"
        return f"loss increase, {self.norm}, gradients turned by {turned}: {gains}"


class TransferSummary(NamedTuple):
    """How attacks on one sample model fare on others."""

    matrix: Float[np.ndarray, "k k"]
    """Accuracy of the target (column) on the adversarial images of the source (row)."""
    mean: float
    low: float
    high: float
    """Mean, least and greatest accuracy off the diagonal: where the target is not the source."""
    own: float
    """Mean of the diagonal: each sample model's accuracy under an attack on itself."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TransferRecord(MeasurementRecord):
    """Whether sample model j is right on the image that PGD made to fool sample model i."""

    kind: ClassVar[str] = "transfer"
    named_by: ClassVar[tuple[str, ...]] = ("epsilon",)

    k: int
    """Sample models asked for, each of them source and target; a small ensemble has fewer, and `right` with it."""
    epsilon: float
    m: int
    alpha: float
    right: Bool[np.ndarray, "b models models"]

    @property
    def accuracies(self) -> TransferSummary:
        """The matrix of accuracies, and what it says off the diagonal."""
        matrix = self.right.mean(0)
        others = matrix[~np.eye(len(matrix), dtype=bool)]
        own = float(matrix.diagonal().mean())
        return TransferSummary(matrix, float(others.mean()), float(others.min()), float(others.max()), own)

    @property
    def summary(self) -> str:
        found = self.accuracies
        others = f"{100 * found.mean:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f})"
        return f"accuracy on images made for another sample model: {others}; on its own: {100 * found.own:.1f} %"


@dataclass(frozen=True, eq=False, kw_only=True)
class BoundaryRecord(MeasurementRecord):
    """The classes that sample models, and last the ensemble, name on a plane around each of the first examples."""

    kind: ClassVar[str] = "boundary"
    named_by: ClassVar[tuple[str, ...]] = ("epsilon",)

    epsilon: float
    n: int
    m: int
    models: int
    coordinates: list[float]
    """Of the grid along both axes, in lengths of the first perturbation."""
    regions: UInt8[np.ndarray, "b answers grid grid"]
    axes: Float[np.ndarray, "b plane ..."]
    """The two perturbations that span the plane."""
    images: Float[np.ndarray, "b ..."]


@dataclass(frozen=True, eq=False, kw_only=True)
class EnsembleSizeRecord(MeasurementRecord):
    """Whether the ensemble of the first 1, 2, .. n sample models is right on the clean image."""

    kind: ClassVar[str] = "ensemble-size"

    n: int
    right: Bool[np.ndarray, "b n"]

    @property
    def summary(self) -> str:
        accuracy = 100 * self.right.mean(0)
        sizes = sorted({1, *(size for size in (2, 5, 10, 20, 50) if size < len(accuracy)), len(accuracy)})
        return "accuracy of so many models: " + ", ".join(f"{accuracy[k - 1]:.1f} % of {k}" for k in sizes)


@dataclass(frozen=True, eq=False, kw_only=True)
class CertificateRecord(MeasurementRecord):
    """The winner of the vote, and the l_2 radius within which it is proved to win, at level 1 - alpha each."""

    kind: ClassVar[str] = "certificate"

    draws: int
    """Sample models that bound the share of the winner."""
    choosing: int
    """Others that choose it."""
    alpha: float
    sigma: float
    """Of the noise that certifies; 0 where the network has none, and all radii are 0."""
    label: Int[np.ndarray, " b"]
    """The winner; -1 where the vote abstains."""
    share: Float[np.ndarray, " b"]
    """A lower bound on the share of its votes."""
    radius: Float[np.ndarray, " b"]
    correct: Bool[np.ndarray, " b"]
    """Whether the winner is the true class; False where the vote abstains."""

    def accuracy(self, radius: float = 0.0) -> float:
        """The share of examples that are right and certified to stay so within an l_2 radius."""
        return float((self.correct & (self.radius >= radius)).mean())

    @property
    def summary(self) -> str:
        radii = (0.25, 0.5, 1.0) if self.sigma else ()
        right = f"vote of {self.draws} models: {100 * self.accuracy():.1f} % right"
        certified = "".join(f", {100 * self.accuracy(r):.1f} % proved at l2 radius {r:g}" for r in radii)
        abstained = 100 * float((self.label < 0).mean())
        return f"{right}, {abstained:.1f} % abstained{certified}"


def _median(values: np.ndarray) -> str:
    return f"{float(np.nanmedian(values)):.4g}"
