"""The records that only an audit makes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float

from graddiv.records.measurements import MeasurementRecord


@dataclass(frozen=True, eq=False, kw_only=True)
class JudgementRecord(MeasurementRecord):
    """What many sample models, and ensembles of them, say of images that had no part in drawing them."""

    kind: ClassVar[str] = "judgement"
    named_by: ClassVar[tuple[str, ...]] = ("of",)

    of: str
    """Which images: clean or attacked."""
    images: str
    """sha256 of these images."""
    outcomes: int
    """How many values the noise has, where there are finitely many; else 0."""
    right: Bool[np.ndarray, "b draws"]
    """Whether each sample model is right."""
    correct: Bool[np.ndarray, "b ensembles"]
    """Whether each ensemble of n_ensemble of them is."""
    share: Float[np.ndarray, " b"]
    """The probability that a draw is right: exact where the noise has finitely many values, else the mean of right."""

    @property
    def summary(self) -> str:
        per_draw, ensemble = 100 * self.share.mean(), 100 * self.correct.mean()
        return f"{self.of} images: {per_draw:.1f} % per draw, {ensemble:.1f} % of ensembles of {self.n_ensemble}"


@dataclass(frozen=True, eq=False, kw_only=True)
class TrajectoryRecord(MeasurementRecord):
    """EOT-PGD step by step: the loss on draws that are the same at every step, and when it fools them."""

    kind: ClassVar[str] = "trajectory"
    named_by: ClassVar[tuple[str, ...]] = ("epsilon",)

    norm: str
    epsilon: float
    n: int
    m: int
    alpha: float
    loss: Float[np.ndarray, "b steps"]
    """Before the first step and after each, on the common draws."""
    fooled: Bool[np.ndarray, "b steps"]
    """Whether the ensemble of the common draws is wrong."""
    fooled_seen: Bool[np.ndarray, " b"]
    """Whether that of the last step's own draws, which the attack saw, is wrong at the end."""
    fooled_fresh: Bool[np.ndarray, " b"]
    """Whether one of draws that had no part in anything is."""

    @property
    def summary(self) -> str:
        return f"EOT-PGD in {self.m} steps: {100 * self.fooled_fresh.mean():.1f} % fooled"
