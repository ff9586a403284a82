"""The record of one attack on one network, in one repeat."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from graddiv.records.record import Record


@dataclass(frozen=True, eq=False, kw_only=True)
class AttackRecord(Record):
    """An attack through a view at one epsilon, judged on two ensembles of models that it never saw."""

    kind: ClassVar[str] = "attack"

    label: str
    """The row of the table, such as EOT-PGD; "clean" for images as they are."""
    attack: Mapping[str, Any] | None
    """The settings of the attack; None for clean images."""
    source: str | None = None
    """The network that the adversary attacked in place of the one that is judged; None: that one itself."""
    mode: str
    """How the adversary sees the network: fixed, eot1 or eot."""
    n: int
    """Sample models at each iteration."""
    m: int
    """Iterations."""
    restarts: int
    epsilon: float
    repeat: int
    """Repeats have independent draws in attack and judgement."""

    distance: Float[np.ndarray, " b"]
    """Of the adversarial image from the original one, in the norm of the attack."""
    images: Float[np.ndarray, "shown ..."]
    """Adversarial images of the first examples."""
    cost_forwards: Int[np.ndarray, " b"]
    """Forward passes that the attack spent on the example; backward passes and draws of noise likewise."""
    cost_backwards: Int[np.ndarray, " b"]
    cost_draws: Int[np.ndarray, " b"]
    correct: Bool[np.ndarray, " b"]
    """Whether the ensemble is right on the adversarial image."""
    margin: Float[np.ndarray, " b"]
    """Log-odds of the ensemble against the label: negative where it is right."""
    right: Bool[np.ndarray, "b models"]
    """Whether each model of the ensemble is right by itself."""
    correct_again: Bool[np.ndarray, " b"]
    """The same judged by a second ensemble, which has no part in any choice."""
    margin_again: Float[np.ndarray, " b"]

    @property
    def accuracy(self) -> float:
        """Share of examples the ensemble still gets right."""
        return float(self.correct.mean())

    @property
    def accuracy_per_draw(self) -> float:
        """Share of (example, sample model) pairs that are right."""
        return float(self.right.mean())

    @property
    def is_clean(self) -> bool:
        """Whether the images were left as they are."""
        return self.attack is None

    @property
    def settings(self) -> dict[str, Any]:
        """What makes an attack another one than its namesakes; repeats differ in nothing but seeds."""
        own = {key: value for key, value in (self.attack or {}).items() if key != "seed"}
        return {"epsilon": self.epsilon, "n": self.n, **own}

    @property
    def draws(self) -> tuple[int, int, str]:
        """What tells repeats of the same attack apart."""
        return self.repeat, self.seed, self.parameters
