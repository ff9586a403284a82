"""Evaluate a model that the caller has in memory: the whole table, or the Total alone."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from graddiv.attacks import Attack
from graddiv.attacks.suites import STRONG, suite
from graddiv.errors import GradDivError, GradDivWarning
from graddiv.evaluation import robustness
from graddiv.evaluation.checks import CHECKS
from graddiv.evaluation.examples import Bounds
from graddiv.evaluation.inspection import Inspection
from graddiv.evaluation.models import Model, answering, settled
from graddiv.evaluation.robustness import MODES
from graddiv.evaluation.run import Session
from graddiv.evaluation.target import Target
from graddiv.geometry import Geometry, in_bytes, radius_of
from graddiv.networks import RandomizedNetwork
from graddiv.networks.prediction import N_ENSEMBLE
from graddiv.progress import Progress
from graddiv.records import AttackRecord, Record, TotalRecord

R = TypeVar("R", bound=Record)

#: The checks that `evaluate` makes: those that need only a few passes.
WARNED_OF = ("scale", "random", "replay", "numbers", "pointwise", "logits", "accuracy", "gradients", "differences")
INSPECTED = 64  #: Examples that the checks look at.


def evaluate(
    model: Model, x: object, y: object = None, *, epsilon: float | Sequence[float],
    attacks: str | Attack | Sequence[str | Attack] = (), suite_name: str = "quick", modes: str | Sequence[str] = MODES,
    n: int = 10, repeats: int = 1, n_ensemble: int = N_ENSEMBLE, seed: int = 0, batch: int = 100,
    bounds: Bounds | None = None, directory: Path | str | None = None, progress: bool | Progress = False,
) -> list[AttackRecord]:  # fmt: skip
    """The records of a model in memory, on tensors or arrays x and y, a data set, or a DataLoader.

        records = evaluate(F, x, y, epsilon=[4 / 255, 8 / 255], attacks=["pgd", "apgd-ce"], modes="eot", n=5)
        for epsilon, rows in table_per_epsilon(records).items():
            for row in rows:
                print(epsilon, row.label, row.accuracy.mean, row.accuracy.interval)

    Returns an `AttackRecord` for each attack, mode, epsilon and repeat, and for clean images; `table` sums them up.
    A `GradDivWarning` says why numbers may be misleading; `graddiv.audit` looks more closely.

    model: a module (whether it is random is found out), a `RandomizedNetwork`, a function x -> logits, a list of
        modules of which one answers at random, the directory of a run, or a name such as "models.py:CNN".
    x, y: images with pixels in [0, 1] and labels, as tensors or arrays; or x is a data set or a DataLoader of both, or
        a name such as "xs.npz" or "mnist-mini".
    epsilon: one radius or several.
    attacks: names such as "pgd" (`graddiv.attacks.suites.ATTACKS` lists them) or attacks themselves; those of the
        suite if there are none.
    suite_name: paper, published, quick or demo, which differ in iterations; or strong, which chooses modes and n.
    modes: how the adversary sees the network: "fixed" one draw, "eot1" a fresh one at each step, "eot" n of them.
    n: sample models at each step of "eot".
    repeats: how often everything is repeated, with other draws.
    n_ensemble: sample models that judge, which no attack sees.
    seed: addresses all randomness.
    batch: how many images are looked at together.
    bounds: the least and the greatest value of a pixel, if they are not 0 and 1; one number or one for each channel.
    directory: where records are kept, so that the same call again computes only what is missing; nowhere if None.
    progress: whether to show a bar, or a callback (done, total, label).
    """
    return _evaluated(robustness.attack_all, **locals())


def evaluate_total(
    model: Model, x: object, y: object = None, *, paper_rows: bool = False, **options: Any
) -> list[TotalRecord]:
    """The Totals of a model in memory, one for each epsilon and repeat; the options are those of `evaluate`.

        (record,) = evaluate_total(F, x, y, epsilon=8 / 255)
        print(record.correct.mean(), record.passes.sum(1).mean())

    paper_rows: only the paper's 16 rows, without Square, EOT-FAB and EOT-B&B, which take most of the passes.
    """
    return _evaluated(robustness.attack_until_fooled, model, x, y, paper_rows=paper_rows, **options)


def _evaluated(
    how: Callable[..., list[R]], model: Model, x: object, y: object, *, epsilon: float | Sequence[float],
    attacks: str | Attack | Sequence[str | Attack] = (), suite_name: str = "quick",
    modes: str | Sequence[str] = MODES, n: int = 10, repeats: int = 1, n_ensemble: int = N_ENSEMBLE, seed: int = 0,
    batch: int = 100, bounds: Bounds | None = None, directory: Path | str | None = None,
    progress: bool | Progress = False, paper_rows: bool = False,
) -> list[R]:  # fmt: skip
    """Check the arguments, and return what `how` makes of their cells."""
    check_counts(n=n, repeats=repeats, n_ensemble=n_ensemble, batch=batch)
    chosen = _attacks_of(attacks, suite_name)
    target = Target.of(model, x, y, bounds, n_ensemble=n_ensemble, seed=seed, batch=batch)
    radii = _epsilons_of(epsilon, chosen, target.pixels)
    sights = robustness.parse_modes([modes] if isinstance(modes, str) else modes)
    target = _warned_of(target, declared=target.random if isinstance(model, RandomizedNetwork) else None)
    with Session.open(directory, progress=progress) as session:
        if session.directory is not None:
            target.check_answers(session.directory / target.answers_file)
        if suite_name == STRONG and not attacks:
            wanted = robustness.strong_cells(target, radii, session, repeats=repeats)
        else:
            wanted = robustness.cells(chosen, radii, modes=sights, n=n, repeats=repeats, random=target.random)
        return how(target, robustness.papers_cells(wanted, target) if paper_rows else wanted, session)


def _attacks_of(attacks: str | Attack | Iterable[str | Attack], suite_name: str) -> list[Attack]:
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
    """Refuse counts that are not whole numbers from 1 on."""
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int | np.integer):
            raise GradDivError(f"{name} is {count!r}, expected a whole number")
        if count < 1:
            raise GradDivError(f"{name} is {count}, expected at least 1")


def _epsilons_of(epsilon: float | Sequence[float], attacks: Sequence[Attack], pixels: int) -> list[float]:
    """One radius or several, each smaller than the box of all images."""
    several = isinstance(epsilon, Sequence | np.ndarray | Tensor) and not isinstance(epsilon, str)
    radii = [radius_of(each) for each in (np.ravel(np.asarray(epsilon)) if several else [epsilon])]
    if not radii:
        raise GradDivError("epsilon holds no radius, expected at least one")
    for attack, radius in product(attacks, radii):
        check_radius(radius, attack.geometry, pixels, ends=True)
    return radii


def check_radius(epsilon: float, geometry: Geometry, pixels: int, *, ends: bool = False) -> None:
    """Refuse a radius that is not between 0 and the one that admits every image; `ends`: whether both are allowed."""
    most = geometry.diameter(pixels)
    if not (0 < epsilon < most or (ends and epsilon in (0, most))):
        expected = f"a radius from 0 to {most:.4g}{'' if ends else ', both excluded'}"
        more = f"the latter admits every image{in_bytes(epsilon)}"
        raise GradDivError(f"epsilon is {epsilon:g}, expected {expected}: {more}")


def _warned_of(target: Target, declared: bool | None) -> Target:
    """Check the network before it is attacked, warn of what makes its numbers misleading, and let NaN be wrong."""
    x, y, _ = target.examples(slice(0, INSPECTED))
    seen = Inspection(target.F, x, y, target.seed, declared)
    for name in WARNED_OF:
        item = CHECKS[name](seen)
        if item.verdict in ("warn", "fail"):
            warnings.warn(f"{item.name}? {item.sentence}", GradDivWarning, stacklevel=4)  # where evaluate is called
        if name == "random" and item.verdict == "fail" and not target.random:
            # the other checks would mistake its noise for something else
            seen = replace(seen, F=settled(target.F, draws=True), declared=True)
        if name == "numbers" and item.verdict != "pass":
            target = replace(target, F=answering(target.F, item)[0])
    return target
