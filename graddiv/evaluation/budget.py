"""The cost of an evaluation, and the presets of `reproduce`, the checklist and audits."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from graddiv.attacks import Attack
from graddiv.attacks.spgd import COSINE
from graddiv.attacks.suites import as_published, suite
from graddiv.errors import GradDivError
from graddiv.geometry import Geometry
from graddiv.registries import Registry


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The settings that determine cost; each evaluation uses the fields that concern it."""

    norm: str = "linf"  #: Norm of attacks and measurements, a name in NORMS.
    suite: str = "paper"  #: The suite of attacks, by name.
    suite_m: int | None = None  #: Iterations of its attacks; the suite's own if None.
    published_rules: bool = False  #: Whether its attacks return what the libraries of the paper's time did.
    examples: int | None = None  #: Test examples; all if None.
    batch: int = 100
    repeats: int = 1  #: Repeats of attacks in tables, with independent draws; figures have one.
    n: int = 10  #: Sample models at each iteration of EOT.
    m: int = 20  #: Iterations of PGD outside of the suite.
    passes: int = 400  #: Forward and backward passes of each strong attack on an image: 20 iterations on 20 models.

    curve_n: tuple[int, ...] = (5, 10, 20)  #: Values of n in curves over epsilon; measurements take the largest.
    curve_radii: int = 8  #: Radii of these curves.
    sweep_n: tuple[int, ...] = (1, 5, 10, 20, 50, 100)  #: Values of n where accuracy against n is measured.
    sweep_m: tuple[int, ...] = (1, 5, 10, 20, 50, 100, 200)
    restarts: tuple[int, ...] = (1, 5)
    radii: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  #: Multiples of epsilon at which accuracy must fall.

    gradients: int = 100  #: Gradients at each example, and models of the largest ensemble.
    models: int = 50  #: Sample models of the transfer matrix.
    grid: int = 41  #: Points along a side of the decision regions.
    draws: int = 1000  #: Sample models whose votes make a certificate.

    checklist: str = "standard"  #: The preset of the checklist that goes with this one.
    queries: int = 1000  #: Queries of the gradient-free attack.
    random_points: int = 10_000  #: Points of random search around an image.
    random_images: int = 100  #: Images, not fooled by EOT-PGD, on which random search is tried.

    arc_m: int = 20  #: Iterations of the attack that goes from draw to draw.
    fewest: int = 10  #: Least n of EOT where the noise of the gradients decides.
    most: int = 40  #: Greatest n there.
    looks: int = 4  #: How often an audit may double its attack; at most five.
    tolerance: float = 0.02  #: The largest gain of doubling that is accepted, at a confidence of 95 % over all looks.
    ensembles: int = 10  #: Ensembles that judge the final images.
    known: tuple[int, ...] = (1, 2, 4, 8)  #: Numbers of draws that the adversary of the ladder knows.
    substitute_steps: int = 500  #: Training steps of the substitute network.

    def attacks(self, geometry: Geometry | None = None) -> list[Attack]:
        """The attacks of the suite, in this norm."""
        found = suite(self.suite, m=self.suite_m)
        found = [as_published(attack) for attack in found] if self.published_rules else found
        return found if geometry is None else with_geometry(found, geometry)

    @property
    def level(self) -> float:
        """The level of each look: 5 % shared among all of them (Bonferroni)."""
        return 0.05 / self.looks

    @property
    def images_needed(self) -> int:
        """The number of images that, if doubling changes none, shows that its gain is below the tolerance."""
        return math.ceil(math.log(self.level) / math.log(1 - self.tolerance))

    def draws_for(self, q: float) -> int:
        """The n at which the mean gradient has a cosine of 0.85 to its expectation, between `fewest` and `most`."""
        needed = math.inf if q == 0 else COSINE**2 / (1 - COSINE**2) / q
        return int(min(max(math.ceil(min(needed, self.most)), self.fewest), self.most))


def with_geometry(attacks: Sequence[Attack], geometry: Geometry) -> list[Attack]:
    """The attacks in this norm; one that is not made for it, such as B&B in l_2, is left out."""
    found = []
    for attack in attacks:
        with suppress(GradDivError):
            found.append(replace(attack, geometry=geometry))
    return found


_DEMO = Budget(
    suite="demo", examples=200, curve_n=(10,), gradients=50, models=8, sweep_n=(1, 5, 10, 20),
    sweep_m=(1, 5, 10, 20, 50), draws=200, checklist="demo",
)  # fmt: skip
_CHECKLIST = Budget(m=50, sweep_m=(10, 20, 50, 100, 200))
_FIRST_LOOK = Budget(
    n=5, m=10, queries=100, radii=(0.5, 1.0, 2.0), random_points=200, random_images=20, sweep_n=(1, 5, 10),
    sweep_m=(5, 10, 20), restarts=(1, 3),
)  # fmt: skip
_AUDIT = Budget(suite="quick", queries=5000, random_points=2000, random_images=20, sweep_n=(), sweep_m=(), restarts=())

BUDGETS: dict[str, Registry[Budget]] = {
    "scale": Registry(
        "scale",
        {
            "paper": Budget(repeats=3, checklist="thorough"),
            "quick": Budget(
                suite="quick", examples=1000, repeats=3, gradients=50, models=20, sweep_m=(1, 5, 10, 20, 50, 100)
            ),
            "demo": _DEMO,
            "minute": replace(_DEMO, examples=50, curve_n=(5,), m=10, gradients=20, curve_radii=4),
        },
    ),
    "checklist": Registry(
        "checklist",
        {
            "quick": _FIRST_LOOK,
            "demo": replace(
                _FIRST_LOOK, n=10, m=20, queries=30, radii=(0.5, 1.0, 1.5), random_points=100, restarts=(1, 2)
            ),
            "standard": _CHECKLIST,
            "thorough": replace(_CHECKLIST, random_points=100_000),
        },
    ),
    "audit": Registry(
        "budget",
        {
            "quick": replace(
                _AUDIT, suite="demo", passes=60, arc_m=4, fewest=5, most=10, m=10, queries=1000, random_points=100,
                radii=(0.5, 1.0, 2.0), looks=2, tolerance=0.05, ensembles=5, known=(1, 4), substitute_steps=150,
            ),
            "standard": _AUDIT,
            "exhaustive": replace(
                _AUDIT, suite="paper", passes=4000, arc_m=50, fewest=20, most=200, m=50, queries=20_000,
                random_points=10_000, radii=(0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0), looks=5, tolerance=0.01,
                ensembles=20, known=(1, 2, 4, 8, 16), substitute_steps=3000,
            ),
        },
    ),
}  # fmt: skip
"""Presets by purpose and name; `measure` and `attack` use `Budget()` by default."""
