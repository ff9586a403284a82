"""What is tried, how it is judged and what is found."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from graddiv.attacks import EOT, PGD
from graddiv.data import Dataset
from graddiv.errors import GradDivError, unknown
from graddiv.evaluation.prediction import predict
from graddiv.networks import RandomizedNetwork
from graddiv.performance import channels_last
from graddiv.recipes import LAMBDAS
from graddiv.registries import REGULARIZERS
from graddiv.seeding import fold

MOST = 1000.0
"""No lambda is as large."""
BATCH = 250

SAMPLERS = ("grid", "tpe", "random")


@dataclass(frozen=True)
class Search:
    """What is tried: every pair of a lambda and a regularizer, or `trials` points between the extreme lambdas."""

    regularizers: tuple[str, ...]
    lambdas: tuple[float, ...] = LAMBDAS
    sampler: str = "grid"
    trials: int = 20

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise unknown("sampler", self.sampler, SAMPLERS)
        for name in self.regularizers:
            if name not in REGULARIZERS:
                raise unknown("regularizer", name, REGULARIZERS)
        if not self.regularizers or not self.lambdas or self.trials < 1:
            raise GradDivError("there is nothing to try: expected a regularizer, a lambda and at least one trial")
        for lam in self.lambdas:
            if not MOST > lam > 0:
                raise GradDivError(f"a lambda is {lam}, expected a number above 0 and below {MOST:.0f}")

    @property
    def size(self) -> int:
        """How many trials that makes."""
        return len(self.regularizers) * len(self.lambdas) if self.sampler == "grid" else self.trials


@dataclass(frozen=True)
class Judge:
    """Robust accuracy under EOT-PGD with n sample models at each of m steps, on the first validation examples."""

    epsilon: float
    n: int = 10
    m: int = 20
    examples: int = 500

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0):
            raise GradDivError(f"epsilon is {self.epsilon}, expected a number of at least 0")
        for name in ("n", "m", "examples"):
            if (value := getattr(self, name)) < 1:
                raise GradDivError(f"{name} is {value}, expected at least 1")

    def __call__(self, F: RandomizedNetwork, data: Dataset, seed: int) -> tuple[float, float]:
        """The shares of the examples, clean and attacked, that the ensemble of fresh sample models gets right."""
        clean = robust = 0
        for start in range(0, len(data), BATCH):
            rows = slice(start, start + BATCH)
            x, y = (t.to(F.device) for t in data.batch(rows))
            x, ids = channels_last(x), data.ids[rows].to(F.device)
            view = EOT(F, self.n, seed=fold(seed, "tuning", "attack"))
            x_adv = PGD(m=self.m)(view, x, y, self.epsilon, ids=ids)
            right = [predict(F, z, seed=fold(seed, "tuning", "ensemble")).label == y for z in (x, x_adv)]
            clean, robust = clean + int(right[0].sum()), robust + int(right[1].sum())
        return clean / len(data), robust / len(data)


class Result(NamedTuple):
    """One trial: accuracies on validation data; None if training diverged."""

    regularizer: str
    lam: float
    clean: float | None
    robust: float | None
    rho: float | None
    """Concentration of the gradients on the training probe at the end."""
