"""A package of somebody else's that adds one of each kind to graddiv; CONTRIBUTING.md says how.

Its entry point, which pip writes from pyproject.toml, is in graddiv_outside-1.0.dist-info.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from graddiv.attacks import Attack
from graddiv.attacks.attack import Problem
from graddiv.attacks.suites import ATTACKS, RegisteredAttack
from graddiv.data import SOURCES, Source
from graddiv.data.dataset import Part
from graddiv.diversity import REGULARIZERS
from graddiv.evaluation.inspection import Answer, Inspection, check
from graddiv.evaluation.measurements import measurement
from graddiv.evaluation.run import Advance, Job
from graddiv.evaluation.target import Target
from graddiv.networks import ARCHITECTURES, RandomizedNetwork, Rules, WeightNoise
from graddiv.networks.architectures import Architecture
from graddiv.networks.defense import defense
from graddiv.records import MeasurementRecord
from graddiv.registries import Positive
from graddiv.report.comparison import Comparison
from graddiv.report.output import Table, draws

# A regularizer


def length_of_sum(v: Float[Tensor, "n b p"]) -> Float[Tensor, " b"]:
    """|sum_i v_i|^2."""
    return v.double().sum(0).square().sum(1)


REGULARIZERS["length-of-sum"] = length_of_sum


# An attack


@dataclass(frozen=True)
class Brighter(Attack):
    """Brighter and brighter."""

    m: int = 3

    name = "Brighter"

    @property
    def iterations(self) -> int:
        return self.m

    def run(self, problem: Problem, restart: int) -> Tensor:
        x, step = problem.x0, problem.epsilon[:, None, None, None] / self.m
        for _ in range(self.m):
            x = self.geometry.project(x + step, problem.x0, problem.epsilon)
            problem.tick()
        return x


ATTACKS["brighter"] = RegisteredAttack(Brighter(), {"demo": 2})


# A defense, with a rule of training


class Shaken(WeightNoise):
    """w + sigma * noise."""

    def __init__(self, module: nn.Module, sigma: float) -> None:
        super().__init__(module, [name for name, _ in module.named_parameters()])
        self.sigma = sigma

    def scale(self, name: str) -> Tensor:
        return torch.full_like(self.module.get_parameter(name), self.sigma)


@dataclass(frozen=True)
class SmallWeights(Rules):
    weight: float = 1.0

    def penalties(self, F: RandomizedNetwork, examples: int) -> dict[str, Tensor]:
        return {"size": self.weight * sum(p.square().sum() for p in F.parameters()) / examples}


@defense("shaken", SmallWeights)
def shaken(module: nn.Module, sigma: Positive = 0.1) -> Shaken:
    return Shaken(module, sigma)


# A data set and an architecture for it


def read(part: Part, paths: Sequence[Path]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    count = {"train": 24, "test": 9}[part]
    ids = np.arange(count)
    images = np.broadcast_to((80 * (ids % 3)).astype(np.uint8)[:, None, None, None], (count, 1, 4, 4))
    return images.copy(), ids % 3, ids


SOURCES["greys"] = Source("greys", (1, 4, 4), {"train": 24, "test": 9}, held_out=4, classes=tuple("abc"), read=read)
ARCHITECTURES["linear"] = Architecture(lambda width, *, seed: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), 48)


# A check


@check("logits are small")
def small_logits(seen: Inspection) -> Answer:
    largest = float(seen.logits.abs().max())
    return "pass" if largest < 100 else "warn", f"the largest is {largest:.3g}", {"largest": largest}


# A measurement, and a table of it


class BrightnessRecord(MeasurementRecord, kind="brightness"):
    """How bright each example is."""

    brightness: Float[np.ndarray, " b"]


@measurement("brightness", BrightnessRecord, lambda budget: {})
def brightness_job(target: Target) -> Job[BrightnessRecord]:
    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        return {"brightness": x.flatten(1).mean(1)}

    return target.job(BrightnessRecord, {}, measure, work=1.0)


@draws("brightness", "How bright the examples are", "method, mean brightness", BrightnessRecord)
def brightness(comparison: Comparison, found: list) -> Table:
    return Table(rows=tuple((run.title, f"{record.brightness.mean():.3f}") for run, record in found), caption="")
