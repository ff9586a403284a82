"""What an audit spends: which attacks, how many draws and steps, and when it may stop.

Draws are chosen from how noisy the gradients are: with q = |E g|^2 / trace Cov g, the mean of n of them has cosine
1 / sqrt(1 + 1/(n q)) with their expectation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graddiv.attacks import ARC, Attack, Square, StochasticPGD
from graddiv.attacks.pilot import COSINE, Plan
from graddiv.attacks.registry import STRONG, suite
from graddiv.evaluation.checklist import Settings
from graddiv.geometry import Geometry
from graddiv.registries import Registry


@dataclass(frozen=True)
class Budget:
    """How much is spent, and what is asked of the evidence."""

    suite: str
    """The suite that is run in all three modes, without its gradient-free attack, whose queries are given apart."""
    passes: int
    """Passes of the strongest attack for each image, which the noise of the gradients divides into draws and steps."""
    arc_m: int
    """Iterations of the attack that goes from draw to draw."""
    fewest: int
    most: int
    """Bounds of n, the draws of a step of EOT."""
    m: int
    """Iterations of the attacks whose convergence is shown."""
    queries: int
    """Queries of the gradient-free attack."""
    random_points: int
    """Points of random search around an image."""
    radii: tuple[float, ...]
    """Where accuracy is measured against epsilon, in multiples of it."""
    looks: int
    """How often the budget may be doubled; at most five."""
    tolerance: float
    """What a doubled budget may gain at most, at a confidence of 95 % over all looks."""
    ensembles: int
    """Ensembles that judge the final images."""
    known: tuple[int, ...]
    """Numbers of draws that an adversary is supposed to know, for the ladder."""
    substitute_steps: int
    """Steps of training of the substitute network."""
    suite_m: int | None = None
    """Iterations of the suite's attacks; the suite's own if not given."""

    @property
    def level(self) -> float:
        """The level of each look: 5 % shared among all of them (Bonferroni)."""
        return 0.05 / self.looks

    @property
    def images_needed(self) -> int:
        """How many images must be left alone by a doubled budget for its gain to be below the tolerance."""
        return math.ceil(math.log(self.level) / math.log(1 - self.tolerance))

    def draws_for(self, q: float) -> int:
        """How many draws a step of EOT takes, within bounds, for this ratio of signal to noise."""
        needed = math.inf if q == 0 else COSINE**2 / (1 - COSINE**2) / q
        return int(min(max(math.ceil(min(needed, self.most)), self.fewest), self.most))

    def checklist(self, n: int) -> Settings:
        """The settings of the five behaviours of obfuscated gradients; convergence is shown apart, by doubling."""
        return Settings(
            n=n, m=self.m, queries=self.queries, radii=self.radii, samples=self.random_points, images=20,
            n_values=(), m_values=(), restarts=(),
        )  # fmt: skip

    def attacks(self, geometry: Geometry) -> list[Attack]:
        """The suite for all modes."""
        chosen = suite(self.suite, m=self.suite_m)
        return with_geometry([attack for attack in chosen if not isinstance(attack, Square)], geometry)

    def strong(self, plan: Plan, geometry: Geometry) -> list[Attack]:
        """The strong suite, its passes spent as the noise of the gradients advises."""
        return with_geometry([plan.spent_on(a) for a in suite(STRONG) if isinstance(a, StochasticPGD)], geometry)

    def member_by_member(self, geometry: Geometry) -> list[Attack]:
        """Attacks that never average: one against the ensemble, one against single draws."""
        return with_geometry([ARC(m=self.arc_m), ARC(m=self.arc_m, rule="draw")], geometry)


def cosine_of(n: int, q: float) -> float:
    """1 / sqrt(1 + 1/(n q)): the cosine of the mean of n gradients with their expectation."""
    return 0.0 if q == 0 else 1 / math.sqrt(1 + 1 / (n * q))


def with_geometry(attacks: Sequence[Attack], geometry: Geometry) -> list[Attack]:
    """The attacks in this norm."""
    return [replace(attack, geometry=geometry) for attack in attacks]


BUDGETS: Registry[Budget] = Registry(
    "budget",
    {
        "quick": Budget(
            suite="demo", passes=60, arc_m=4, fewest=5, most=10, m=10, queries=60, random_points=100,
            radii=(0.5, 1.0, 2.0), looks=2, tolerance=0.05, ensembles=5, known=(1, 4), substitute_steps=60,
        ),
        "standard": Budget(
            suite="quick", passes=400, arc_m=20, fewest=10, most=40, m=20, queries=1000, random_points=2000,
            radii=(0.25, 0.5, 0.75, 1.0, 1.5, 2.0), looks=4, tolerance=0.02, ensembles=10, known=(1, 2, 4, 8),
            substitute_steps=500,
        ),
        "exhaustive": Budget(
            suite="paper", passes=4000, arc_m=50, fewest=20, most=200, m=50, queries=5000, random_points=10_000,
            radii=(0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0), looks=5, tolerance=0.01, ensembles=20,
            known=(1, 2, 4, 8, 16), substitute_steps=3000,
        ),
    },
)  # fmt: skip
"""By name; each dearer than the one before it, and stricter."""
