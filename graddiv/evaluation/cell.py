"""A cell: one attack through one view at one radius, and all combinations of these."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from graddiv.attacks import EOT, Attack, Exact, Fixed, View
from graddiv.attacks.registry import ATTACKS
from graddiv.errors import GradDivError, unknown
from graddiv.evaluation.target import Target
from graddiv.networks import RandomizedNetwork
from graddiv.records import PAPER_ROWS
from graddiv.seeding import fold

Mode = Literal["fixed", "eot1", "eot"]
MODES: tuple[Mode, ...] = ("fixed", "eot1", "eot")


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
        """Forward-equivalents of one batch, about: the attack's steps on n models, and two ensembles that judge."""
        judging = 2.0 * (target.n_ensemble if target.random else 1)
        if self.attack is None:
            return judging
        n = 1 if self.mode != "eot" or not target.random else self.n
        return judging + self.attack.passes_per_iteration * self.attack.iterations * self.attack.restarts * n

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


def papers_cells(wanted: Iterable[Cell], target: Target) -> list[Cell]:
    """Those of the 16 rows that the paper's Total is taken over, and clean images."""
    found = [cell for cell in wanted if cell.attack is None or cell.label(target.F) in PAPER_ROWS]
    if all(cell.attack is None for cell in found):
        raise GradDivError(f"none of the attacks is among the paper's rows, expected some of {', '.join(PAPER_ROWS)}")
    return found


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
