"""What randomness buys: the same network when the adversary knows the draw, knows k draws, or knows the law alone.

Accuracy rises from rung to rung; the gap between the first and the last is what the secrecy of the noise is worth.
Beside the ladder stands the network without its noise.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from graddiv.attacks import Attack
from graddiv.audit.model import Adapted
from graddiv.evaluation import Cell, Target
from graddiv.evaluation.batches import Job
from graddiv.evaluation.robustness import Source, attack_job
from graddiv.networks import Noise, RandomizedNetwork, SampleModel, Support, Theta
from graddiv.records import AttackRecord, Interval, wilson
from graddiv.seeding import fold


class Frozen(Adapted):
    """A network whose noise has one value for ever; of several values, the ensemble of their sample models.

    f(x) = log 1/k sum_i softmax f_i(x): the class that it names is the one that the ensemble names.
    """

    def __init__(self, inner: RandomizedNetwork, noises: tuple[Noise, ...]) -> None:
        super().__init__(inner, lambda f, x: f(x))
        self.noises = noises

    @property
    def random(self) -> bool:
        return False

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> Noise:
        return {}

    def bind(self, noise: Noise, theta: Theta | None = None) -> SampleModel:
        models = [self.inner.bind(value, theta) for value in self.noises]
        if len(models) == 1:
            return models[0]

        def together(x: Tensor) -> Tensor:
            logs = torch.stack([f(x).log_softmax(1) for f in models])
            return logs.logsumexp(0) - math.log(len(models))

        return together

    def mean(self) -> Noise:
        return {}

    def support(self) -> Support:
        return Support([{}], torch.ones(1, dtype=torch.float64))


@dataclass(frozen=True)
class Rung:
    """One of the networks that the ladder is made of."""

    name: str
    noises: tuple[Noise, ...]


class RungAccuracy(NamedTuple):
    """What is left of a rung."""

    name: str
    known: int
    """Draws that the adversary knows; 0 for the network without its noise."""
    clean: float
    attacked: float
    interval: Interval


def rungs(F: RandomizedNetwork, known: tuple[int, ...], seed: int) -> list[Rung]:
    """k known draws for each k, and the network without noise where it has one; none for a deterministic network."""
    if not F.random:
        return []
    noises = [F.draw(fold(seed, "ladder", i)) for i in range(max(known))]
    found = [Rung(f"known-{k}", tuple(noises[:k])) for k in known]
    free = F.mean()
    return found if free is None else [*found, Rung("noise-free", (free,))]


def ladder_jobs(
    target: Target,
    seen: RandomizedNetwork,
    attack: Attack,
    epsilon: float,
    known: tuple[int, ...],
    directory: Path | None,
) -> Iterator[Job[AttackRecord]]:
    """Clean images and an attack, on each rung; `seen` is the network whose gradients the adversary takes."""
    for rung in rungs(target.F, known, target.seed):
        frozen = replace(target, F=Frozen(target.F, rung.noises), name=rung.name)
        source = None if seen is target.F else Source("surrogate", Frozen(seen, rung.noises))
        out = None if directory is None else directory / rung.name
        for cell in (Cell(None, "fixed", 1, 0.0, 0), Cell(attack, "fixed", 1, epsilon, 0, source)):
            yield attack_job(frozen, cell, out)


def climbed(records: list[AttackRecord]) -> list[RungAccuracy]:
    """What the records of the ladder say, rung by rung."""
    found = []
    for clean, attacked in zip(records[::2], records[1::2], strict=True):
        known = 0 if clean.target == "noise-free" else int(clean.target.removeprefix("known-"))
        # two ensembles of a deterministic network are the same network twice: one verdict counts
        right = int(attacked.correct.sum())
        found.append(
            RungAccuracy(clean.target, known, clean.accuracy, attacked.accuracy, wilson(right, attacked.examples))
        )
    return found
