"""What an audit found, and the files that it becomes."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from graddiv import store
from graddiv.attacks import Attack
from graddiv.auditing.budget import Budget
from graddiv.auditing.card import ADVERSARIAL, CARD, card_of, write_images
from graddiv.auditing.converge import Convergence
from graddiv.auditing.examine import Examined
from graddiv.auditing.inputs import Inputs
from graddiv.auditing.ladder import RungAccuracy
from graddiv.auditing.numbers import Estimate, ThreeNumbers, Worst
from graddiv.evaluation import Target
from graddiv.evaluation.checks import CHECKS
from graddiv.evaluation.verdicts import Item
from graddiv.geometry import Geometry
from graddiv.records import AttackRecord

INSUFFICIENT = 3
"""The exit code of an audit whose evidence is not sufficient."""


@dataclass(frozen=True)
class Subject:
    """What is audited, and how."""

    target: Target
    examined: Examined
    budget: Budget
    budget_name: str
    geometry: Geometry
    epsilon: float
    inputs: Inputs
    about: dict[str, str]
    peers: tuple[Attack, ...] = ()
    """Attacks of other libraries."""


@dataclass(frozen=True)
class Attacked:
    """The records of an audit."""

    clean: AttackRecord
    attacks: tuple[AttackRecord, ...]
    """All attacks at the radius of the audit."""
    radii: tuple[AttackRecord, ...]
    """EOT-PGD at several radii."""
    worst: Worst
    """For each image what the worst of all attacks, the first of which are clean images, made of it."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit."""

    subject: Subject
    attacked: Attacked
    clean: ThreeNumbers
    """On clean images."""
    robust: ThreeNumbers
    """On the worst image that any attack found, chosen on draws that do not score it."""
    ladder: tuple[RungAccuracy, ...]
    indicators: list[Item]
    """How attacks behaved."""
    convergence: Convergence
    rho: float
    """Mean resultant length of the gradients of draws, without the bias of few of them; median over images."""
    q: float
    """|E g|^2 / trace Cov g of them; median over images."""
    n: int
    """Draws of a step of EOT."""

    @property
    def checks(self) -> dict[str, Item]:
        """What was found before any attack, by name."""
        return self.subject.examined.checks

    @cached_property
    def shortcomings(self) -> list[str]:
        """Why the evidence is not sufficient; empty where it is."""
        decisive = [item for name, item in self.checks.items() if CHECKS[name].decisive and item.verdict == "fail"]
        failed = [item for item in self.indicators if item.verdict == "fail"]
        last = self.indicators[-1]
        unproved = [last] if last.verdict == "not enough evidence" else []
        return [f"{item.name}: {item.verdict}, {item.sentence}" for item in (*decisive, *failed, *unproved)]

    @property
    def complete(self) -> bool:
        """Whether attacks did their work and a doubled budget would change nothing that matters."""
        return not self.shortcomings

    @property
    def exit_code(self) -> int:
        """0 if the audit is complete, 3 if the evidence is not sufficient."""
        return 0 if self.complete else INSUFFICIENT

    @property
    def rows(self) -> list[tuple[str, Estimate, Estimate]]:
        """(who answers, on clean images, on attacked ones): the three numbers; a network without noise has one."""
        several = f"ensemble of {self.subject.target.n_ensemble}"
        found = [(several, self.clean.ensemble, self.robust.ensemble)]
        if self.subject.target.random:
            found.insert(0, ("one draw", self.clean.per_draw, self.robust.per_draw))
            found += [(f"worst of {k}", self.clean.worst[k], v) for k, v in self.robust.worst.items() if k == 10]
        return found

    def __str__(self) -> str:
        """The numbers, with 95 % intervals over images, and whether the evidence is sufficient."""
        lines = [f"{who}: clean {clean}, attacked {robust}" for who, clean, robust in self.rows]
        verdicts = [f"evidence insufficient: {text}" for text in self.shortcomings]
        return "\n".join([*lines, *(verdicts or ["evidence sufficient at this budget"])])

    @cached_property
    def card(self) -> dict[str, Any]:
        """Everything that matters, as JSON values."""
        return card_of(self)

    def write(self, directory: str | Path) -> Path:
        """Write page, card, adversarial examples, tables and figures; return the page."""
        out = Path(directory)
        store.make_directory(out)
        write_images(self, out / ADVERSARIAL)
        store.write_json(out / CARD, self.card)
        x = self.attacked.clean.images
        from graddiv.report.audit import AuditPage, write_page

        shown = AuditPage(self.card, self.attacked.clean, self.attacked.attacks, self.attacked.radii, x, self.x_adv)
        return write_page(shown, out)

    @property
    def x_adv(self) -> np.ndarray:
        """The adversarial examples, with pixels in [0, 1]."""
        return self.attacked.worst.images
