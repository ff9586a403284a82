"""Attacks x modes x epsilons x repeats: each cell a record, success judged on models the attack never saw.

In the paper: docs/equations.md.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from graddiv.attacks import ARC, FGSM, Attack, Cost, StochasticPGD
from graddiv.attacks.pilot import FEWEST_STEPS, Plan
from graddiv.attacks.registry import STRONG, suite
from graddiv.distributed import ALONE, Process
from graddiv.errors import GradDivError, unknown
from graddiv.evaluation.batches import Advance, Job, WorkListener, run, silent
from graddiv.evaluation.cell import Cell, cells
from graddiv.evaluation.prediction import predict
from graddiv.evaluation.strong import PASSES, strong_plan
from graddiv.evaluation.target import Target
from graddiv.geometry import Linf
from graddiv.losses import margin
from graddiv.records import AttackRecord
from graddiv.seeding import fold

SWEPT = ("n", "m", "epsilon", "restarts")
"""What a sweep may go over."""


def strong_cells(
    target: Target,
    epsilons: float | Sequence[float],
    *,
    passes: int = PASSES,
    repeats: int = 1,
    directory: Path | None = None,
    process: Process = ALONE,
    progress: WorkListener = silent,
) -> list[Cell]:
    """Clean images and the strong suite, each attack with so many passes an image, as a pilot at each epsilon advises.

    Where the noise has few values, the attacks see all of them, and ARC, which takes them one by one, is among them.
    """
    support = target.F.support() if target.random else None
    found = cells([], [], repeats=repeats)
    for epsilon in [epsilons] if isinstance(epsilons, int | float) else epsilons:
        attacks = [attack for attack in suite(STRONG) if isinstance(attack, StochasticPGD)]
        if support is not None and len(support.noises) <= passes // FEWEST_STEPS:
            plan = Plan(len(support.noises), passes // len(support.noises))
            more: list[Attack] = [ARC(m=max(1, 2 * passes // (plan.n**2 + 3 * plan.n)), redraw=passes)]
        else:
            plan, more = (
                strong_plan(target, epsilon, passes, directory=directory, process=process, progress=progress),
                [],
            )
        chosen = [*(plan.spent_on(attack) for attack in attacks), *more]
        found += cells(chosen, epsilon, modes=["eot"], n=plan.n, repeats=repeats, random=target.random)
    return list(dict.fromkeys(found))


def attack_job(target: Target, cell: Cell, directory: Path | None = None) -> Job[AttackRecord]:
    """Attack, then judge on two ensembles of fresh models, the same for all attacks of a repeat."""
    description = {
        **cell.describe(target),
        "epsilon": cell.epsilon,
        "repeat": cell.repeat,
        **target.describe(),
    }

    def compute(rows: slice, advance: Advance) -> dict[str, np.ndarray]:
        x, y, ids = target.examples(rows)
        made = attacked(target, cell, x, y, ids, advance)
        return {
            "ids": ids.cpu().numpy(),
            "labels": y.cpu().numpy(),
            "distance": made.distance.cpu().numpy(),
            "images": made.x[: max(0, target.kept_images - rows.start)].float().cpu().contiguous().numpy(),
            **{f"cost_{name}": np.full(len(y), value) for name, value in asdict(made.cost).items()},
            **judged(target, made.x, y, cell.repeat),
        }

    path = None if directory is None else directory / cell.file_name
    work = cell.work(target)
    return Job(AttackRecord, description["label"], description, path, len(target.data), target.batch, work, compute)


class Attacked(NamedTuple):
    """What an attack made of a batch."""

    x: Float[Tensor, "b ..."]
    """The adversarial images."""
    distance: Float[Tensor, " b"]
    """Of each from the original one, in the norm of the attack."""
    cost: Cost
    """What the attack spent on each image."""


def attacked(target: Target, cell: Cell, x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> Attacked:
    """The images that a cell makes of these examples; `advance` is called with the share that is done."""
    view, x_adv, attack = cell.view(target.F, target.seed), x, cell.seeded(target.seed)
    if attack:
        x_adv = attack(view, x, y, cell.epsilon, ids=ids, progress=lambda done, of: advance(done / of))
    norm = attack.geometry if attack else Linf()
    return Attacked(x_adv, norm.norm(x_adv - x).float(), view.cost)


def attack_cell(
    target: Target,
    cell: Cell,
    directory: Path | None = None,
    *,
    process: Process = ALONE,
    progress: WorkListener = silent,
) -> AttackRecord:
    """The record of one cell."""
    return attack_all(target, [cell], directory, process=process, progress=progress)[0]


def attack_all(
    target: Target,
    wanted: Sequence[Cell],
    directory: Path | None = None,
    *,
    process: Process = ALONE,
    progress: WorkListener = silent,
) -> list[AttackRecord]:
    """Every cell's record; `progress` hears of the work done, all the work there is, and the row being made."""
    return run([attack_job(target, cell, directory) for cell in wanted], process=process, progress=progress)


def sweep(
    target: Target,
    attack: Attack,
    over: str,
    values: Sequence[float | int],
    *,
    epsilon: float,
    n: int = 10,
    repeats: int = 1,
    directory: Path | None = None,
    process: Process = ALONE,
    progress: WorkListener = silent,
) -> list[AttackRecord]:
    """EOT-[Attack] at each value of n, m, epsilon or restarts, everything else equal; `records.curve` reads it off."""
    if over not in SWEPT:
        raise unknown("setting", over, SWEPT)
    if over == "m" and isinstance(attack, FGSM):
        raise GradDivError(f"{attack.name} has one step, whatever m: expected an iterative attack")
    if over != "epsilon" and (broken := [value for value in values if value != int(value)]):
        raise GradDivError(f"{over} is {broken[0]:g}, expected whole numbers")
    # the clean images too: records of other examples in the same directory are then told by them
    wanted = cells([], [], repeats=repeats)
    for repeat in range(repeats):
        for value in values:
            each = attack if over in ("n", "epsilon") else replace(attack, **{over: int(value)})  # type: ignore[arg-type]
            models, radius = int(value) if over == "n" else n, float(value) if over == "epsilon" else epsilon
            wanted.append(Cell(each, "eot" if target.random else "fixed", models, radius, repeat))
    made = attack_all(target, wanted, directory, process=process, progress=progress)
    return [record for record in made if not record.is_clean]


def judged(target: Target, x: Tensor, y: Tensor, repeat: int) -> dict[str, np.ndarray]:
    """The verdicts of the two ensembles of a repeat on x, and of each model of the first."""
    arrays: dict[str, np.ndarray] = {}
    for i, suffix in enumerate(("", "_again")):
        said = predict(target.F, x, n=target.n_ensemble, seed=fold(target.seed, "ensemble", repeat, i))
        arrays[f"correct{suffix}"] = (said.label == y).cpu().numpy()
        arrays[f"margin{suffix}"] = margin(said.scores.double().log(), y).float().cpu().numpy()
        if not suffix:
            arrays["right"] = (said.answers == y).T.contiguous().cpu().numpy()
    return arrays
