"""What randomness buys: the same network when the adversary knows the draw, knows k draws, or knows the law alone.

Accuracy rises from rung to rung; the gap between the first and the last is what the secrecy of the noise is worth.
Beside the ladder stands the network without its noise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from graddiv.attacks import Attack
from graddiv.auditing.model import Frozen
from graddiv.evaluation import Cell, Target
from graddiv.evaluation.batches import Job
from graddiv.evaluation.cell import Source
from graddiv.evaluation.robustness import attack_job
from graddiv.networks import Noise, RandomizedNetwork
from graddiv.records import AttackRecord, Interval, wilson
from graddiv.seeding import fold

NOISE_FREE = "noise-free"
"""The name of the rung that has no noise."""


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
    return found if free is None else [*found, Rung(NOISE_FREE, (free,))]


def ladder_jobs(
    target: Target, hit: Target, seen: RandomizedNetwork, attack: Attack, epsilon: float, rung: Rung, out: Path | None
) -> Iterator[Job[AttackRecord]]:
    """What is left of a rung: clean images, an attack on what is known, and the images of the attack on the law.

    hit: the target on images that attacks on fresh draws made; who knows the draws can use them too.
    seen: the network whose gradients the adversary takes.
    """
    F = Frozen(target.F, rung.noises)
    source = None if seen is target.F else Source("surrogate", Frozen(seen, rung.noises))
    directory = None if out is None else out / rung.name
    clean = Cell(None, "fixed", 1, 0.0, 0)
    yield attack_job(replace(target, F=F, name=rung.name), clean, directory)
    yield attack_job(replace(target, F=F, name=rung.name), Cell(attack, "fixed", 1, epsilon, 0, source), directory)
    yield attack_job(replace(hit, F=F, name=rung.name), clean, directory and directory / "handed-on")


def rung_accuracy(rung: Rung, records: Sequence[AttackRecord]) -> RungAccuracy:
    """What the records of a rung's jobs say; the network is deterministic, so that one verdict counts."""
    clean, *attacked = records
    left = np.logical_and.reduce([record.correct for record in attacked])
    known = 0 if rung.name == NOISE_FREE else len(rung.noises)
    return RungAccuracy(rung.name, known, clean.accuracy, float(left.mean()), wilson(float(left.sum()), len(left)))
