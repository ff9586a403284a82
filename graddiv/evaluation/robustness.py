"""Attacks x modes x epsilons x repeats: each cell a record, success judged on models the attack never saw."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.attacks import APGD, BB, EOT, FAB, FGSM, PGD, Attack, Fixed, Square, View
from graddiv.data import Dataset
from graddiv.distributed import ALONE, World
from graddiv.errors import GradDivError, unknown
from graddiv.evaluation.batches import in_batches
from graddiv.evaluation.prediction import N_ENSEMBLE, predict
from graddiv.geometry import Linf
from graddiv.losses import margin
from graddiv.networks import Dirac, RandomizedNetwork
from graddiv.performance import channels_last
from graddiv.records import Record
from graddiv.seeding import fold

Mode = Literal["fixed", "eot1", "eot"]
MODES: tuple[Mode, ...] = ("fixed", "eot1", "eot")

ATTACKS: dict[str, Attack] = {
    "fgsm": FGSM(),
    "pgd": PGD(m=50),
    "apgd-ce": APGD(m=100),
    "apgd-dlr": APGD(m=100, objective="dlr"),
    "fab": FAB(m=100),
    "square": Square(m=5000),
    "bb": BB(m=1000),
}
"""The seven attacks by name, with the iterations that their papers and the libraries of the time took."""

SUITES: dict[str, dict[str, int]] = {
    "paper": {"fgsm": 1, "pgd": 50, "apgd-ce": 100, "apgd-dlr": 100, "fab": 100, "bb": 1000, "square": 5000},
    "quick": {"fgsm": 1, "pgd": 20, "apgd-ce": 20, "apgd-dlr": 20, "fab": 10, "bb": 50, "square": 200},
    "demo": {"fgsm": 1, "pgd": 20, "apgd-ce": 20, "square": 100},
}
"""Attacks of a suite and their iterations."""

STEP_WORK = {"Square": 1.5, "FAB": 12, "B&B": 4}
"""Forward-equivalents of a step where they are not two (a forward pass and an input backward), for time estimates."""

IMAGES = 20
"""Of so many first examples the adversarial images are kept, for the report."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Tensors of the caller's, in the form of a data set."""

    x: Float[Tensor, "b ..."]
    y: Int64[Tensor, " b"]
    name: str = "tensors"
    split: str = "given"

    @classmethod
    def of(cls, x: Tensor | Iterable[tuple[Tensor, Tensor]], y: Tensor | None) -> "Examples":
        """Tensors as they are, a loader's batches joined."""
        if isinstance(x, Tensor):
            if y is None:
                raise GradDivError("x is a tensor and y is missing: pass the labels too")
            return cls(x, y)
        images, labels = zip(*x, strict=True)
        return cls(torch.cat(images), torch.cat(labels))

    def __len__(self) -> int:
        return len(self.y)

    @property
    def ids(self) -> Int64[Tensor, " b"]:
        """Positions."""
        return torch.arange(len(self.y))

    @cached_property
    def checksum(self) -> str:
        """sha256 of images and labels."""
        digest = hashlib.sha256(repr(tuple(self.x.shape)).encode())
        for tensor in (self.x, self.y):
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def batch(self, rows: slice) -> tuple[Tensor, Tensor]:
        """A part of them."""
        return self.x[rows], self.y[rows]


@dataclass(frozen=True)
class Target:
    """A network and the examples it is judged on."""

    F: RandomizedNetwork
    data: "Dataset | Examples"
    name: str = "network"
    n_ensemble: int = N_ENSEMBLE
    seed: int = 0
    batch: int = 100

    @property
    def random(self) -> bool:
        """Whether there is more than one sample model."""
        return not isinstance(self.F, Dirac)

    def describe(self) -> dict[str, Any]:
        """What every record of this target says."""
        return {
            "target": self.name,
            "parameters": _fingerprint(self.F),
            "data": {"name": self.data.name, "split": self.data.split, "sha256": self.data.checksum},
            "examples": len(self.data),
            "n_ensemble": self.n_ensemble,
            "seed": self.seed,
            "batch": self.batch,
        }

    def examples(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Images, labels and ids on the network's device."""
        x, y = self.data.batch(rows)
        device = self.F.device
        return channels_last(x.to(device)), y.to(device), self.data.ids[rows].to(device)


@dataclass(frozen=True)
class Cell:
    """One evaluation: an attack through a view at an epsilon, in one repeat."""

    attack: Attack | None
    """None: clean images."""
    mode: Mode
    n: int
    epsilon: float
    repeat: int

    def view(self, F: RandomizedNetwork, seed: int) -> View:
        """What the adversary sees; repeats see other models."""
        address = fold(seed, "view", self.repeat)
        return Fixed(F, address) if self.mode == "fixed" else EOT(F, 1 if self.mode == "eot1" else self.n, address)

    def label(self, F: RandomizedNetwork) -> str:
        """The row of the table."""
        return self.view(F, 0).label(self.attack.name) if self.attack else "clean"

    def work(self, target: Target) -> float:
        """Forward-equivalents of one batch, about: an attack step on n models, or the judging of clean images."""
        if self.attack is None:
            return 2.0 * target.n_ensemble
        n = 1 if self.mode != "eot" or not target.random else self.n
        return STEP_WORK.get(self.attack.name, 2) * self.attack.iterations * self.attack.restarts * n

    @property
    def file_name(self) -> str:
        """Names the record: what tells cells of one directory apart."""
        if self.attack is None:
            return f"clean-r{self.repeat}.record"
        steps = f"m{self.attack.iterations}" + (f"x{self.attack.restarts}" if self.attack.restarts > 1 else "")
        sight = f"eot{self.n}" if self.mode == "eot" else self.mode
        return f"{_slug(self.attack.name)}-{sight}-{steps}-eps{self.epsilon:.6g}-r{self.repeat}.record"


def parse_modes(names: Sequence[str]) -> list[Mode]:
    """Modes by name."""
    for name in names:
        if name not in MODES:
            raise unknown("mode", name, MODES)
    return [mode for mode in MODES if mode in names]


def cells(
    attacks: Iterable[Attack],
    epsilons: Sequence[float],
    *,
    modes: Sequence[Mode] = MODES,
    n: int = 10,
    repeats: int = 1,
    random: bool = True,
) -> list[Cell]:
    """Clean images and every combination, once for each repeat; a deterministic network knows one mode only."""
    attacks = list(attacks)
    found = []
    for repeat in range(repeats):
        found.append(Cell(None, "fixed", 1, 0.0, repeat))
        for epsilon in epsilons:
            for attack in attacks:
                for mode in modes if random else modes[:1]:
                    found.append(Cell(attack, mode, n, epsilon, repeat))
    return found


def suite(name: str, names: Sequence[str] = (), m: int | None = None) -> list[Attack]:
    """The attacks of a suite, or those of these names; m replaces the iterations of all but one-step ones."""
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    iterations = SUITES[name]
    for wanted in names:
        if wanted not in ATTACKS:
            raise unknown("attack", wanted, ATTACKS)
    chosen = names or list(iterations)
    return [_with_iterations(ATTACKS[a], a, m or iterations.get(a) or SUITES["paper"][a]) for a in chosen]


def _with_iterations(attack: Attack, name: str, m: int) -> Attack:
    return attack if name == "fgsm" else replace(attack, m=m)  # type: ignore[call-arg]


def attack_cell(
    target: Target,
    cell: Cell,
    directory: Path | None = None,
    *,
    here: World = ALONE,
    advance: Callable[[float], None] = lambda work: None,
) -> Record:
    """Attack, then judge on two ensembles of fresh models, the same for all attacks of a repeat.

    `advance` is told of work done, in forward-equivalents of one batch.
    """
    attack = cell.attack and replace(cell.attack, seed=fold(target.seed, "attack", cell.repeat))
    ensembles = [fold(target.seed, "ensemble", cell.repeat, i) for i in range(2)]
    description = {
        "label": cell.label(target.F),
        "attack": attack and _settings(attack),
        "mode": cell.mode,
        "n": cell.n if cell.mode == "eot" else 1,
        "m": attack.iterations if attack else 0,
        "restarts": attack.restarts if attack else 0,
        "epsilon": cell.epsilon,
        "repeat": cell.repeat,
        **target.describe(),
    }

    def compute(rows: slice) -> dict[str, np.ndarray]:
        x, y, ids = target.examples(rows)
        view, x_adv = cell.view(target.F, target.seed), x
        if attack:
            per_step = cell.work(target) / (attack.iterations * attack.restarts)
            x_adv = attack(view, x, y, cell.epsilon, ids=ids, progress=lambda done, of: advance(per_step))
        norm = attack.geometry if attack else Linf()
        return {
            "ids": ids.cpu().numpy(),
            "labels": y.cpu().numpy(),
            "distance": norm.norm(x_adv - x).float().cpu().numpy(),
            "images": x_adv[: max(0, IMAGES - rows.start)].float().cpu().contiguous().numpy(),
            **{f"cost_{name}": np.array(value) for name, value in asdict(view.cost).items()},
            **_judged(target, x_adv, y, ensembles),
        }

    path = None if directory is None else directory / cell.file_name
    return in_batches(
        path,
        description,
        len(target.data),
        target.batch,
        compute,
        here=here,
        skipped=lambda rows: advance(cell.work(target)),
    )


def attack_all(
    target: Target,
    wanted: Sequence[Cell],
    directory: Path | None = None,
    *,
    here: World = ALONE,
    progress: Callable[[float, float, str], None] = lambda done, total, label: None,
) -> list[Record]:
    """Every cell's record; `progress` hears of the work done, all the work there is, and the row being made."""
    batches = -(-len(target.data) // target.batch)
    total, done = sum(cell.work(target) for cell in wanted) * batches, 0.0
    records = []
    for cell in wanted:

        def advance(work: float, label: str = cell.label(target.F)) -> None:
            nonlocal done
            done += work
            progress(done, total, label)

        records.append(attack_cell(target, cell, directory, here=here, advance=advance))
    return records


def evaluate(
    F: RandomizedNetwork | nn.Module,
    x: Float[Tensor, "b ..."] | Iterable[tuple[Tensor, Tensor]],
    y: Int64[Tensor, " b"] | None = None,
    *,
    epsilon: float | Sequence[float],
    attacks: Sequence[str | Attack] = (),
    suite_name: str = "quick",
    modes: Sequence[Mode] = MODES,
    n: int = 10,
    repeats: int = 1,
    n_ensemble: int = N_ENSEMBLE,
    seed: int = 0,
    batch: int = 100,
    directory: Path | None = None,
) -> list[Record]:
    """The records of a network in memory, on tensors x and y or on the batches of a DataLoader.

    records = evaluate(F, x, y, epsilon=8 / 255, attacks=["pgd", "apgd-ce"], repeats=3)
    for row in table(records): print(row.label, row.accuracy)
    """
    target = Target(
        F if isinstance(F, RandomizedNetwork) else Dirac(F), Examples.of(x, y), "network", n_ensemble, seed, batch
    )
    named = [a for a in attacks if isinstance(a, str)]
    chosen = [a for a in attacks if isinstance(a, Attack)] + (suite(suite_name, named) if named or not attacks else [])
    epsilons = [epsilon] if isinstance(epsilon, int | float) else list(epsilon)
    wanted = cells(chosen, epsilons, modes=modes, n=n, repeats=repeats, random=target.random)
    return attack_all(target, wanted, directory)


def _judged(target: Target, x: Tensor, y: Tensor, ensembles: Sequence[int]) -> dict[str, np.ndarray]:
    """The verdicts of two ensembles on x, and of each model of the first."""
    arrays: dict[str, np.ndarray] = {}
    for suffix, seed in zip(("", "_again"), ensembles, strict=True):
        said = predict(target.F, x, n=target.n_ensemble, seed=seed)
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


def _fingerprint(F: RandomizedNetwork) -> str:
    """sha256 of the parameters and buffers: records of another network do not pass for this one's."""
    digest = hashlib.sha256()
    for name, tensor in F.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _slug(name: str) -> str:
    return name.lower().replace("&", "")
