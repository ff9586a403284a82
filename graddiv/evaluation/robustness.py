"""Attacks x modes x epsilons x repeats: each cell a record, success judged on models the attack never saw.

In the paper: docs/equations.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from graddiv.attacks import ARC, EOT, FGSM, Attack, Cost, Exact, Fixed, StochasticPGD, View
from graddiv.attacks.pilot import FEWEST_STEPS, Plan
from graddiv.attacks.registry import ATTACKS, STRONG, suite
from graddiv.distributed import ALONE, Process
from graddiv.errors import GradDivError, unknown
from graddiv.evaluation.batches import Advance, Job, WorkListener, run, silent
from graddiv.evaluation.prediction import predict
from graddiv.evaluation.strong import PASSES, strong_plan
from graddiv.evaluation.target import Target
from graddiv.geometry import Linf
from graddiv.losses import margin
from graddiv.networks import RandomizedNetwork
from graddiv.records import AttackRecord
from graddiv.seeding import fold

Mode = Literal["fixed", "eot1", "eot"]
MODES: tuple[Mode, ...] = ("fixed", "eot1", "eot")

SWEPT = ("n", "m", "epsilon", "restarts")
"""What a sweep may go over."""


@dataclass(frozen=True, eq=False)
class Source:
    """Another network, which the adversary attacks in place of the one that is judged: a transfer attack."""

    name: str
    """Stands in labels and file names, such as substitute."""
    F: RandomizedNetwork


@dataclass(frozen=True)
class Cell:
    """One evaluation: an attack through a view at an epsilon, in one repeat."""

    attack: Attack | None
    """None: clean images."""
    mode: Mode
    n: int
    epsilon: float
    repeat: int
    source: Source | None = None
    """None: the adversary sees the network that is judged."""

    def __post_init__(self) -> None:
        """Give each way of seeing its one name: EOT with a single model is EOT^1."""
        if self.mode == "eot" and self.n == 1:
            object.__setattr__(self, "mode", "eot1")
        if self.mode != "eot":
            object.__setattr__(self, "n", 1)

    def view(self, F: RandomizedNetwork, seed: int) -> View:
        """What the adversary sees; repeats see other models."""
        F = self.source.F if self.source else F
        address = fold(seed, "view", self.repeat)
        if self.mode == "fixed":
            return Fixed(F, address)
        support = F.support() if self.mode == "eot" and F.random else None
        if support is not None and len(support.noises) <= self.n:
            return Exact(F)
        return EOT(F, 1 if self.mode == "eot1" else self.n, address)

    def label(self, F: RandomizedNetwork) -> str:
        """The row of the table."""
        if self.attack is None:
            return "clean"
        label = self.attack.label(self.view(F, 0))
        return f"{label} on the {self.source.name}" if self.source else label

    def seeded(self, seed: int) -> Attack | None:
        """The attack as it runs in this repeat of an evaluation of that seed."""
        return self.attack and replace(self.attack, seed=fold(seed, "attack", self.repeat))

    def describe(self, target: Target) -> dict[str, Any]:
        """What a record says of the attack and of how it sees the network."""
        attack = self.seeded(target.seed)
        return {
            "label": self.label(target.F),
            "attack": attack and _settings(attack),
            **({"source": self.source.name} if self.source else {}),
            "mode": self.mode,
            "n": self.n,
            "m": attack.iterations if attack else 0,
            "restarts": attack.restarts if attack else 0,
        }

    def work(self, target: Target) -> float:
        """Forward-equivalents of one batch, about: an attack step on n models, or the judging of clean images."""
        if self.attack is None:
            return 2.0 * target.n_ensemble
        n = 1 if self.mode != "eot" or not target.random else self.n
        return self.attack.passes_per_iteration * self.attack.iterations * self.attack.restarts * n

    @property
    def file_name(self) -> str:
        """Names the record: what tells cells of one directory apart."""
        if self.attack is None:
            return f"clean-r{self.repeat}.record"
        steps = f"m{self.attack.iterations}" + (f"x{self.attack.restarts}" if self.attack.restarts > 1 else "")
        sight = f"eot{self.n}" if self.mode == "eot" else self.mode
        seen = f"-{_slug(self.source.name)}" if self.source else ""
        return f"{_file_name(self.attack)}-{sight}{seen}-{steps}-eps{self.epsilon:.6g}-r{self.repeat}.record"


def parse_modes(names: Sequence[str]) -> list[Mode]:
    """Modes by name."""
    if not names:
        raise GradDivError(f"there are 0 modes, expected at least one of {', '.join(MODES)}")
    for name in names:
        if name not in MODES:
            raise unknown("mode", name, MODES)
    return [mode for mode in MODES if mode in names]


def cells(
    attacks: Iterable[Attack],
    epsilons: float | Sequence[float],
    *,
    modes: Sequence[Mode] = MODES,
    n: int = 10,
    repeats: int = 1,
    random: bool = True,
) -> list[Cell]:
    """Clean images and every combination, once for each repeat; a deterministic network knows one mode only."""
    if repeats < 1:
        raise GradDivError(f"repeats is {repeats}, expected at least 1")
    attacks, found = list(attacks), []
    epsilons = [epsilons] if isinstance(epsilons, int | float) else epsilons
    for repeat in range(repeats):
        found.append(Cell(None, "fixed", 1, 0.0, repeat))
        for epsilon in epsilons:
            for attack in attacks:
                for mode in modes if random else ("fixed",):
                    found.append(Cell(attack, mode, n, epsilon, repeat))
    return list(dict.fromkeys(found))


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


def _settings(attack: Attack) -> dict[str, Any]:
    """The fields of an attack, for its record."""
    values = {field.name: getattr(attack, field.name) for field in fields(attack) if field.name != "geometry"}
    geometry = attack.geometry
    return {"name": attack.name, "norm": type(geometry).__name__, "bounds": list(geometry.bounds), **values}


def _file_name(attack: Attack) -> str:
    """The attack's name, and whatever about it is not as in the suites."""
    registered = (each.attack for each in ATTACKS.values())
    usual = next((a for a in registered if type(a) is type(attack) and a.name == attack.name), type(attack)())
    changed = {
        field.name: getattr(attack, field.name)
        for field in fields(attack)
        if field.name not in ("m", "samples", "restarts", "seed")
        and getattr(attack, field.name) != getattr(usual, field.name)
    }
    if "geometry" in changed:
        changed["geometry"] = attack.geometry.name
    return "-".join([_slug(attack.name), *(f"{key}={_slug(str(value))}" for key, value in changed.items())])


def _slug(name: str) -> str:
    return name.lower().replace("&", "").translate(str.maketrans(" _", "--"))
