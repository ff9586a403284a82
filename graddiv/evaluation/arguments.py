"""The arguments of `evaluate`, checked: a mistake is told with the nearest thing that exists."""

import inspect
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from graddiv.attacks import Attack
from graddiv.attacks.registry import suite
from graddiv.errors import GradDivError, GradDivWarning
from graddiv.evaluation.checks import CHECKS
from graddiv.evaluation.look import Look
from graddiv.evaluation.target import Target

WARNED_OF = ("scale", "random", "replay", "pointwise", "logits", "accuracy", "gradients", "differences")
"""The checks that `evaluate` makes: those that need a handful of passes."""
LOOKED_AT = 64
"""Examples that the checks look at."""


def attacks_of(attacks: str | Attack | Iterable[str | Attack], suite_name: str) -> list[Attack]:
    """Attacks by name or as they are; the suite if there are none."""
    listed: list[Any] = [attacks] if isinstance(attacks, str | Attack) else list(attacks)
    for each in listed:
        if inspect.isclass(each) and issubclass(each, Attack):
            raise GradDivError(f"attacks holds the class {each.__name__}, expected an attack: {each.__name__}()")
        if not isinstance(each, str | Attack):
            raise GradDivError(f"attacks holds {each!r}, expected names such as 'pgd' or attacks such as PGD(m=50)")
    named = [each for each in listed if isinstance(each, str)]
    given = [each for each in listed if isinstance(each, Attack)]
    return given + (suite(suite_name, named) if named or not listed else [])


def epsilons_of(epsilon: float | Sequence[float], attacks: Sequence[Attack], pixels: int) -> list[float]:
    """One radius or several, each smaller than the box of all images."""
    radii = [float(each) for each in (epsilon if isinstance(epsilon, Sequence) else [epsilon])]
    if not radii:
        raise GradDivError("epsilon holds no radius, expected at least one")
    for attack in attacks:
        low, high = attack.geometry.bounds
        most = attack.geometry.diameter(pixels)
        for radius in radii:
            if not 0 <= radius <= most:
                hint = f": {radius:g}/255 = {radius / 255:.4g} perhaps?" if 1 < radius <= 255 else ""
                raise GradDivError(
                    f"epsilon is {radius:g}, expected a radius from 0 to {most:.4g}, the size of the box of pixels "
                    f"between {low:g} and {high:g}{hint}"
                )
    return radii


def warn_of(target: Target) -> None:
    """Look at the network before it is attacked, and warn of what makes its numbers mean something else."""
    if len(target.data) == 0:
        return
    x, y, _ = target.examples(slice(0, LOOKED_AT))
    look = Look(target.F, x, y, target.seed)
    for name in WARNED_OF:
        item = CHECKS[name](look)
        if item.verdict in ("warn", "fail"):
            warnings.warn(f"{item.name}? {item.sentence}", GradDivWarning, stacklevel=3)
