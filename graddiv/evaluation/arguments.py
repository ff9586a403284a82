"""The arguments of `evaluate` and `evaluate_total`, checked: a mistake is told with the nearest thing that exists."""

import inspect
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from graddiv.attacks import Attack
from graddiv.attacks.registry import suite
from graddiv.errors import GradDivError, GradDivWarning
from graddiv.evaluation.checks import CHECKS
from graddiv.evaluation.look import Look
from graddiv.evaluation.target import Target
from graddiv.geometry import in_bytes, radius_of
from graddiv.networks import randomize

WARNED_OF = ("scale", "random", "replay", "pointwise", "logits", "accuracy", "gradients", "differences")
"""The checks that `evaluate` makes: those that need a handful of passes."""
LOOKED_AT = 64
"""Examples that the checks look at."""


def attacks_of(attacks: str | Attack | Iterable[str | Attack], suite_name: str) -> list[Attack]:
    """Attacks by name or as they are; the suite if there are none."""
    listed: list[Any] = list(attacks) if isinstance(attacks, Iterable) and not isinstance(attacks, str) else [attacks]
    for each in listed:
        if inspect.isclass(each) and issubclass(each, Attack):
            raise GradDivError(f"attacks holds the class {each.__name__}, expected an attack: {each.__name__}()")
        if not isinstance(each, str | Attack):
            raise GradDivError(f"attacks holds {each!r}, expected names such as 'pgd' or attacks such as PGD(m=50)")
    named = [each for each in listed if isinstance(each, str)]
    given = [each for each in listed if isinstance(each, Attack)]
    return given + (suite(suite_name, named) if named or not listed else [])


def check_counts(**counts: object) -> None:
    """Refuse counts that are no whole numbers from 1 on."""
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int | np.integer):
            raise GradDivError(f"{name} is {count!r}, expected a whole number")
        if count < 1:
            raise GradDivError(f"{name} is {count}, expected at least 1")


def folder_of(directory: Path | str | None) -> Path | None:
    """Where records go; None for nowhere."""
    if directory is not None and not isinstance(directory, str | Path):
        raise GradDivError(f"the directory is {directory!r}, expected a path")
    return None if directory is None else Path(directory)


def epsilons_of(epsilon: float | Sequence[float], attacks: Sequence[Attack], pixels: int) -> list[float]:
    """One radius or several, each smaller than the box of all images."""
    several = isinstance(epsilon, Sequence | np.ndarray | Tensor) and not isinstance(epsilon, str)
    radii = [radius_of(each) for each in (np.ravel(np.asarray(epsilon)) if several else [epsilon])]
    if not radii:
        raise GradDivError("epsilon holds no radius, expected at least one")
    for attack in attacks:
        low, high = attack.geometry.bounds
        most = attack.geometry.diameter(pixels)
        for radius in radii:
            if not 0 <= radius <= most:
                raise GradDivError(
                    f"epsilon is {radius:g}, expected a radius from 0 to {most:.4g}, the size of the box of pixels "
                    f"between {low:g} and {high:g}{in_bytes(radius)}"
                )
    return radii


def warn_of(target: Target) -> None:
    """Look at the network before it is attacked, and warn of what makes its numbers mean something else."""
    if len(target.data) == 0:
        return
    x, y, _ = target.examples(slice(0, LOOKED_AT))
    look = Look(target.F, x, y, target.seed, target.random)
    for name in WARNED_OF:
        item = CHECKS[name](look)
        if item.verdict in ("warn", "fail"):
            warnings.warn(f"{item.name}? {item.sentence}", GradDivWarning, stacklevel=4)  # where evaluate is called
        if name == "random" and item.verdict == "fail" and not target.random:
            # the other checks would find its noise again, and take it for something else
            look = Look(randomize(target.F.module), x, y, target.seed, declared=True)
