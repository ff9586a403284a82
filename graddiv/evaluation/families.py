"""Families of attacks that share no gradient: surrogates, transfer and queries, each doubled on what is left."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from graddiv.attacks import NES, PGD, Attack, RandomSearch, Square, StochasticPGD
from graddiv.evaluation.budget import Budget
from graddiv.evaluation.judgement import Doubling, gain_bound
from graddiv.evaluation.racing import race
from graddiv.evaluation.robustness import Cell, Mode, SourceNetwork
from graddiv.evaluation.run import Session
from graddiv.evaluation.surrogates import substitutes
from graddiv.evaluation.target import Target
from graddiv.geometry import Geometry, Linf
from graddiv.records import AttackRecord

PAIRS = 25  #: Pairs of queries behind each gradient that is estimated from them.
SUBSTITUTES = 3  #: Networks that learn the answers, at most.
DRAWS = 2  #: Draws at each step of an attack on a surrogate.
BLIND = ("transfer", "query")  #: Families that know answers alone.


@dataclass(frozen=True)
class Families:
    """Attacks that go on from the images that attacks by gradient have found, one family after the other."""

    target: Target
    surrogates: Sequence[SourceNetwork]  #: Other networks with gradients, those that explain most first.
    epsilon: float
    geometry: Geometry
    budget: Budget
    session: Session

    def attack(self, images: np.ndarray) -> dict[str, list[AttackRecord]]:
        """The records of each family; a record holds the worst images so far."""
        found: dict[str, list[AttackRecord]] = {}
        if self.surrogates:
            steps, best = 2 * self.budget.m, self.surrogates[0]
            found["surrogate"] = self._doubled(
                [self._cell(StochasticPGD(m=steps), each) for each in self.surrogates],
                lambda look, _: self._cell(StochasticPGD(m=2**look * steps), best, repeat=look),
                images,
            )
            images = found["surrogate"][-1].images
        found["transfer"] = self._doubled([self._transfer(0, images)], self._transfer, images)
        images = found["transfer"][-1].images
        found["query"] = self._doubled([self._square()], self._estimated, images)
        return found

    def _doubled(
        self, first: Sequence[Cell], longer: Callable[[int, np.ndarray], Cell], images: np.ndarray
    ) -> list[AttackRecord]:
        """Run the first attacks, then longer ones until one gains next to nothing."""
        records = race(self.target, first, images, self.session)
        for look in range(1, self.budget.looks + 1):
            cell = longer(look, records[-1].images)
            records += race(self.target, [cell], records[-1].images, self.session)
            if gained(records[-2], records[-1]) <= self.budget.tolerance / 2:
                break
        return records

    def _cell(
        self, attack: Attack, source: SourceNetwork | None = None, mode: Mode = "eot", n: int = DRAWS, repeat: int = 0
    ) -> Cell:
        random = source.F.random if source else self.target.random
        attack = replace(attack, geometry=self.geometry)
        return Cell(attack, mode if random else "fixed", n, self.epsilon, repeat, source)

    def _transfer(self, look: int, images: np.ndarray) -> Cell:
        """An attack on substitutes, which each look trains anew, and longer."""
        x = self.target.data.batch(slice(None))[0].to(self.target.F.device)
        radius = self.epsilon if isinstance(self.geometry, Linf) else 8 / 255
        known, steps = [x, torch.from_numpy(images).to(x)], 2**look * self.budget.substitute_steps
        learned = substitutes(self.target.F, known, radius=radius, steps=steps, seed=look)
        name = "substitutes" if look == 0 else f"substitutes of {2**look} times the training"
        source = SourceNetwork(name, learned)
        return self._cell(PGD(m=2 * self.budget.m, alpha=0.1, objective="margin"), source, n=SUBSTITUTES, repeat=look)

    def _square(self) -> Cell:
        shows_images = self.target.data.batch(slice(0, 1))[0].dim() == 4  # squares exist in images only
        queries = self.budget.queries
        return self._cell(Square(m=queries) if shows_images else RandomSearch(samples=queries), mode="held")

    def _estimated(self, look: int, images: np.ndarray) -> Cell:
        steps = max(1, 2 ** (look - 1) * self.budget.queries // (2 * PAIRS))
        return self._cell(NES(m=steps, samples=PAIRS), mode="eot1", repeat=look)


def gained(before: AttackRecord, after: AttackRecord) -> float:
    """The share of the images that the second attack broke, by the mean of both ensembles."""
    return float(np.mean([b.mean() - a.mean() for b, a in zip(before.verdicts, after.verdicts, strict=True)]))


def doublings_of(families: Mapping[str, Sequence[AttackRecord]], level: float) -> list[Doubling]:
    """What the last doubling of each family gained."""
    found = []
    for name, (*first, last) in families.items():
        passes = [sum(int(r.cost_forwards.sum() + r.cost_backwards.sum()) for r in each) for each in (first, [last])]
        mean, after = passes[0] // last.examples, sum(passes) // last.examples
        left = [float(np.mean([flags.mean() for flags in r.verdicts])) for r in (first[-1], last)]
        gain = gain_bound(first[-1].verdicts, last.verdicts, level)
        found.append(Doubling(len(first), f"passes of {name} attacks", mean, after, left[0], left[1], *gain))
    return found
