"""The record of a Total alone: each image is attacked until it is fooled beyond doubt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from graddiv.records.record import Record


@dataclass(frozen=True, eq=False, kw_only=True)
class TotalRecord(Record):
    """The worst of several attacks on each image, chosen on models that do not judge it, in one repeat.

    An image that is fooled beyond doubt leaves, and the attacks after that one spend nothing on it.
    """

    kind: ClassVar[str] = "total"

    attacks: list[Mapping[str, Any]]
    """Label and settings of each attack, in the order in which they ran; the first is no attack, the clean image."""
    epsilon: float
    repeat: int
    """Repeats have independent draws in attack, choice and judgement."""
    level: float
    """An image leaves when a fresh ensemble would be right about it with a probability below this, over all looks."""

    chosen: Int[np.ndarray, " b"]
    """The number of the attack whose image was the worst on the models that choose, and is judged."""
    ended: Bool[np.ndarray, " b"]
    """Whether the image left after that attack, since it was fooled beyond doubt."""
    distance: Float[np.ndarray, " b"]
    """Of the judged image from the original one, in the norm of its attack."""
    cost_forwards: Int[np.ndarray, "b attacks"]
    """Forward passes that each attack spent on the image; backward passes and draws of noise likewise."""
    cost_backwards: Int[np.ndarray, "b attacks"]
    cost_draws: Int[np.ndarray, "b attacks"]
    cost_choice: Int[np.ndarray, "b attacks"]
    """Forward passes of the models that chose, on the image that each attack made."""
    correct: Bool[np.ndarray, " b"]
    """Whether an ensemble that had no part in any choice is right on the worst image."""
    margin: Float[np.ndarray, " b"]
    """Log-odds of the ensemble against the label: negative where it is right."""
    right: Bool[np.ndarray, "b models"]
    """Whether each model of the ensemble is right by itself."""
    correct_again: Bool[np.ndarray, " b"]
    """The same judged by a second ensemble."""
    margin_again: Float[np.ndarray, " b"]

    @property
    def verdicts(self) -> list[Bool[np.ndarray, " b"]]:
        """Whether the image survived everything, by either ensemble."""
        return [self.correct, self.correct_again]

    @property
    def labels_of_attacks(self) -> list[str]:
        """The names of the attacks in their order, beginning with "clean"."""
        return [attack["label"] for attack in self.attacks]

    @property
    def seen(self) -> Bool[np.ndarray, "b attacks"]:
        """Whether the image was still there when each attack ran."""
        return self.cost_choice > 0

    @property
    def passes(self) -> Int[np.ndarray, "b attacks"]:
        """Forward and backward passes that each attack spent on the image, and the choice after it."""
        spent: np.ndarray = self.cost_forwards + self.cost_backwards + self.cost_choice
        return spent

    @property
    def share_of_passes(self) -> float:
        """Passes spent, as a share of what all attacks would have spent on all images; NaN if one of them never ran.

        An attack costs the same on every image, so those that it saw tell what the others would have cost.
        """
        counts = self.seen.sum(0)
        if not counts.all():
            return float("nan")
        return float(self.passes.sum() / (self.passes.sum(0) / counts * len(self.ids)).sum())
