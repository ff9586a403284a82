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
from graddiv.attacks.suites import STRONG
from graddiv.attacks.suites import suite as attacks_of_suite
from graddiv.errors import GradDivError, GradDivWarning
from graddiv.evaluation import robustness
from graddiv.evaluation.budget import with_geometry
from graddiv.evaluation.checks import CHECKS
from graddiv.evaluation.examples import Bounds
from graddiv.evaluation.inspection import Inspection
from graddiv.evaluation.models import Model, answering, settled
from graddiv.evaluation.robustness import MODES, PASSES
from graddiv.evaluation.run import Session
from graddiv.evaluation.target import Target
from graddiv.geometry import NORMS, Geometry, in_bytes, radius_of
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
    attacks: str | Attack | Sequence[str | Attack] = (), suite: str = "quick", modes: str | Sequence[str] = MODES,
    norm: str | None = None, n: int = 10, m: int | None = None, passes: int = PASSES, repeats: int = 1,
    n_ensemble: int = N_ENSEMBLE, seed: int = 0, batch: int = 100, bounds: Bounds | None = None,
    images: int | None = None, name: str = "network", directory: Path | str | None = None,
    progress: bool | Progress = False, suite_name: str | None = None,
) -> list[AttackRecord]:  # fmt: skip
    """The records of a model in memory, on tensors or arrays x and y, a data set, or a DataLoader.

        records = evaluate(F, x, y, epsilon=[4 / 255, 8 / 255], attacks=["pgd", "apgd-ce"], modes="eot", n=5)
        for epsilon, rows in table_per_epsilon(records).items():
            for row in rows:
                print(epsilon, row.label, row.accuracy.mean, row.accuracy.interval)

    Returns an `AttackRecord` for each attack, mode, epsilon and repeat, and for clean images; `table` sums them up.
    `record.images` holds the adversarial images.  A `GradDivWarning` says why numbers may be misleading;
    `graddiv.audit` looks more closely, and `graddiv.compare` puts several models side by side.

    model: a module (whether it is random is found out), a `RandomizedNetwork`, a function x -> logits, a list of
        modules of which one answers at random, the directory of a run, or a name such as "models.py:CNN".
    x, y: images with pixels in [0, 1] and labels, as tensors or arrays; or x is a data set or a DataLoader of both, or
        a name such as "xs.npz" or "mnist-mini".
    epsilon: one radius or several.
    attacks: names such as "pgd" (`graddiv.attacks.suites.ATTACKS` lists them) or attacks themselves; those of the
        suite if there are none.
    suite: paper, published, quick or demo, which differ in iterations; or strong, which chooses modes, n and m.
    modes: how the adversary sees the network: "fixed" one draw, "eot1" a fresh one at each step, "eot" n of them.
    norm: linf or l2, for all attacks; by default l_inf, and that of each attack which is given itself.
    n: sample models at each step of "eot".
    m: iterations of attacks by name; by default those of the suite.
    passes: forward and backward passes of each attack of the suite strong on an image.
    repeats: how often everything is repeated, with other draws.
    n_ensemble: sample models that judge, which no attack sees.
    seed: addresses all randomness.
    batch: how many images are looked at together.
    bounds: the least and the greatest value of a pixel, if they are not 0 and 1; one number or one for each channel.
    images: how many adversarial images each record keeps; all of them by default.
    name: what the model is called in records, tables and reports.
    directory: where records are kept, so that the same call again computes only what is missing; nowhere if None.
    progress: whether to show a bar, or a callback (done, total, label).
    suite_name: the former name of `suite`.
    """
    return evaluate_all(robustness.attack_all, **locals())


def evaluate_total(
    model: Model, x: object, y: object = None, *, paper_rows: bool = False, **options: Any
) -> list[TotalRecord]:
    """The Totals of a model in memory, one for each epsilon and repeat; the options are those of `evaluate`.

        (record,) = evaluate_total(F, x, y, epsilon=8 / 255)
        print(record.correct.mean(), record.passes.sum(1).mean())

    paper_rows: only the paper's 16 rows, without Square, EOT-FAB and EOT-B&B, which take most of the passes.
    """
    return evaluate_all(robustness.attack_until_fooled, model, x, y, paper_rows=paper_rows, **options)


def evaluate_all(
    how: Callable[..., list[R]], model: Model, x: object, y: object, *, epsilon: float | Sequence[float],
    attacks: str | Attack | Sequence[str | Attack] = (), suite: str = "quick", modes: str | Sequence[str] = MODES,
    norm: str | None = None, n: int = 10, m: int | None = None, passes: int = PASSES, repeats: int = 1,
    n_ensemble: int = N_ENSEMBLE, seed: int = 0, batch: int = 100, bounds: Bounds | None = None,
    images: int | None = None, name: str = "network", directory: Path | str | None = None,
    progress: bool | Progress = False, suite_name: str | None = None, paper_rows: bool = False,
) -> list[R]:  # fmt: skip
    """Check the arguments, and return what `how` makes of their cells."""
    if suite_name is not None:
        warnings.warn("suite_name is now called suite", DeprecationWarning, stacklevel=3)
        suite = suite_name
    more = {name: count for name, count in (("m", m), ("images", images)) if count is not None}
    check_counts(n=n, passes=passes, repeats=repeats, n_ensemble=n_ensemble, batch=batch, **more)
    chosen = _attacks_of(attacks, suite, norm, m)
    target = Target.of(model, x, y, bounds, n_ensemble=n_ensemble, seed=seed, batch=batch, name=name)
    target = replace(target, kept_images=len(target.data) if images is None else images)
    radii = _epsilons_of(epsilon, chosen, target.pixels)
    sights = robustness.parse_modes([modes] if isinstance(modes, str) else modes)
    target = _warned_of(target, declared=target.random if isinstance(model, RandomizedNetwork) else None)
    with Session.open(directory, progress=progress) as session:
        if session.directory is not None:
            target.check_answers(session.directory / target.answers_file)
        if suite == STRONG and not attacks:
            geometry = NORMS[norm or "linf"]
            spent: dict[str, Any] = {"passes": passes, "repeats": repeats, "geometry": geometry}
            wanted = robustness.strong_cells(target, radii, session, **spent)
        else:
            wanted = robustness.cells(chosen, radii, modes=sights, n=n, repeats=repeats, random=target.random)
        return how(target, robustness.papers_cells(wanted, target) if paper_rows else wanted, session)


def _attacks_of(
    attacks: str | Attack | Iterable[str | Attack], suite: str, norm: str | None, m: int | None
) -> list[Attack]:
    """Attacks by name or as they are, in this norm; the suite if there are none, without those of other norms."""
    listed: list[Any] = list(attacks) if isinstance(attacks, Iterable) and not isinstance(attacks, str) else [attacks]
    for each in listed:
        if inspect.isclass(each) and issubclass(each, Attack):
            raise GradDivError(f"attacks holds the class {each.__name__}, expected an attack: {each.__name__}()")
        if not isinstance(each, str | Attack):
            raise GradDivError(f"attacks holds {each!r}, expected names such as 'pgd' or attacks such as PGD(m=50)")
    named = [each for each in listed if isinstance(each, str)]
    given = [each for each in listed if isinstance(each, Attack)]
    found = given + (attacks_of_suite(suite, named, m) if named or not listed else [])
    if norm is None:
        return found
    return [replace(each, geometry=NORMS[norm]) for each in found] if listed else with_geometry(found, NORMS[norm])


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
