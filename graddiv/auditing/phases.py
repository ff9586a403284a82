"""The phases of an audit, one after the other: pilot, behaviours, attacks, doubling, trajectory, numbers, ladder."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graddiv.attacks import APGD, PGD, RandomSearch, Square
from graddiv.attacks.minimal import MinimalAttack
from graddiv.attacks.pilot import Plan, choose
from graddiv.auditing.budget import with_geometry
from graddiv.auditing.converge import Convergence, converge
from graddiv.auditing.indicators import gradient_free, indicators, trajectory_job
from graddiv.auditing.ladder import RungAccuracy, ladder_jobs, rung_accuracy, rungs
from graddiv.auditing.model import Frozen
from graddiv.auditing.numbers import judgement_job, three_numbers, worst_images
from graddiv.auditing.result import Attacked, Audit, Subject
from graddiv.auditing.surrogates import substitute
from graddiv.distributed import Process
from graddiv.evaluation import Cell, Target, cells
from graddiv.evaluation.batches import Job, WorkListener, run
from graddiv.evaluation.cell import Source
from graddiv.evaluation.checklist import Evidence, gather, judge
from graddiv.evaluation.examples import Examples
from graddiv.evaluation.robustness import attack_job
from graddiv.evaluation.strong import PILOT_EXAMPLES, gradient_noise_job
from graddiv.evaluation.verdicts import Item
from graddiv.geometry import Linf
from graddiv.records import AttackRecord
from graddiv.records.record import PILOTS

SHARES = {
    "pilot": 0.03,
    "behaviours": 0.3,
    "attacks": 0.3,
    "doubling": 0.22,
    "trajectory": 0.05,
    "numbers": 0.05,
    "ladder": 0.05,
}
"""The phases of an audit, and about which share of the time each takes."""


@dataclass(frozen=True)
class Auditor:
    """Carries an audit out."""

    subject: Subject
    directory: Path | None
    process: Process
    listener: WorkListener

    def audit(self) -> Audit:
        """Every phase in its order."""
        subject, budget, examined = self.subject, self.subject.budget, self.subject.examined
        target, epsilon, geometry = subject.target, subject.epsilon, subject.geometry
        rho, q = self._pilot()
        n = budget.draws_for(q) if target.random else 1
        evidence = gather(
            target, epsilon, self.directory, settings=budget.checklist(n), geometry=geometry, source=self._seen,
            process=self.process, progress=self._phase("behaviours"),
        )  # fmt: skip
        attacked = self._attack(n, q)
        convergence = self._converge(attacked)
        every = _at_radius([*evidence_records(evidence), *attacked.values(), *convergence.records], target, epsilon)
        clean = every[0]
        [path] = self._run(
            [
                trajectory_job(
                    target, examined.seen, self.directory, epsilon=epsilon, geometry=geometry, n=n, m=budget.m
                )
            ],
            "trajectory",
        )
        worst = worst_images(every)
        examples = subject.inputs.examples
        hit, hit_per_draw = (
            replace(target, data=replace(examples, x=torch.from_numpy(images).to(examples.x)))
            for images in (worst.images, worst.images_per_draw)
        )
        judged = self._run(
            [
                judgement_job(target, "clean", self.directory, ensembles=budget.ensembles),
                judgement_job(hit, "attacked", self.directory, ensembles=budget.ensembles),
                judgement_job(hit_per_draw, "attacked-per-draw", self.directory, ensembles=budget.ensembles),
            ],
            "numbers",
        )
        blind = [r for r in every[1:] if r.source == "substitute" or r.label.endswith(("Square", "random search"))]
        seeing = [r for r in every[1:] if r not in blind]
        items: list[Item] = [*judge(evidence), *indicators(path), gradient_free(blind, seeing), convergence.item()]
        return Audit(
            subject,
            Attacked(clean, tuple(every[1:]), tuple(evidence.radii), worst),
            three_numbers(judged[0], judged[0]),
            three_numbers(judged[1], judged[2]),
            self._climb(hit_per_draw),
            items,
            convergence,
            rho,
            q,
            n,
        )

    @cached_property
    def _seen(self) -> Source | None:
        """The network whose gradients attacks take, if it is not the one that is judged."""
        examined = self.subject.examined
        return Source("surrogate", examined.seen) if examined.surrogate else None

    def _phase(self, name: str) -> WorkListener:
        """The part of the progress that belongs to a phase."""
        names = list(SHARES)
        before = sum(SHARES[other] for other in names[: names.index(name)])

        def listen(done: float, total: float, what: str) -> None:
            self.listener(before + SHARES[name] * done / max(total, 1e-9), 1.0, what)

        return listen

    def _run(self, jobs: Sequence[Job[Any]], phase: str) -> list[Any]:
        return run(jobs, process=self.process, progress=self._phase(phase))

    def _pilot(self) -> tuple[float, float]:
        """Return rho and q of the gradients where a short attack leads: how much their draws agree."""
        subject = self.subject
        if not subject.target.random:
            return 1.0, math.inf
        few = replace(subject.target, F=subject.examined.seen).first(PILOT_EXAMPLES)
        job = gradient_noise_job(
            few, self.directory and self.directory / PILOTS, epsilon=subject.epsilon, geometry=subject.geometry
        )
        [record] = self._run([job], "pilot")
        return float(np.median(record.rho[:, 1])), float(np.median(record.q[:, 1]))

    def _attack(self, n: int, q: float) -> dict[Cell, AttackRecord]:
        """Clean images, the suite in all modes, the strong attacks, and transfer from other networks."""
        subject, target = self.subject, self.subject.target
        budget, geometry, epsilon = subject.budget, subject.geometry, subject.epsilon
        seen = self._seen
        wanted = cells(budget.attacks(geometry), [epsilon], n=n, random=target.random)
        plan = choose(q, budget.passes) if target.random else Plan(1, budget.passes)
        wanted += cells(budget.strong(plan, geometry), [epsilon], modes=["eot"], n=plan.n, random=target.random)
        if target.random:
            wanted += cells(budget.member_by_member(geometry), [epsilon], modes=["eot"], n=n)
        wanted += cells(with_geometry(subject.peers, geometry), [epsilon], n=n, random=target.random)
        wanted = [replace(c, source=seen) if _takes_gradients(c) else c for c in wanted]
        wanted += [Cell(PGD(m=2 * budget.m, geometry=geometry), "fixed", 1, epsilon, 0, s) for s in self._sources()]
        wanted = list({c.file_name: c for c in wanted}.values())
        jobs = [attack_job(target, cell, self.directory) for cell in wanted]
        return dict(zip(wanted, self._run(jobs, "attacks"), strict=True))

    def _sources(self) -> list[Source]:
        """Other networks that adversarial images are made on."""
        subject = self.subject
        F, x = subject.target.F, subject.inputs.examples.x.to(subject.target.F.device)
        radius = subject.epsilon if isinstance(subject.geometry, Linf) else 8 / 255
        found = [Source("substitute", substitute(F, x, radius=radius, steps=subject.budget.substitute_steps))]
        mean = F.mean() if F.random else None
        if mean is not None:
            found.append(Source("noise-free network", Frozen(subject.examined.seen, (mean,))))
        return found

    def _climb(self, hit: Target) -> tuple[RungAccuracy, ...]:
        """What is left where draws are known, and without noise."""
        subject, budget = self.subject, self.subject.budget
        attack = APGD(m=2 * budget.m, geometry=subject.geometry)
        found = []
        for rung in rungs(subject.target.F, budget.known, subject.target.seed):
            jobs = ladder_jobs(
                subject.target, hit, subject.examined.seen, attack, subject.epsilon, rung, self.directory
            )
            found.append(rung_accuracy(rung, self._run(list(jobs), "ladder")))
        return tuple(found)

    def _converge(self, attacked: Mapping[Cell, AttackRecord]) -> Convergence:
        """Double the strongest attack by gradients until that gains too little."""
        target, budget = self.subject.target, self.subject.budget

        def carry_out(wanted: Sequence[Cell]) -> list[AttackRecord]:
            return self._run([attack_job(target, cell, self.directory) for cell in wanted], "doubling")

        best = min((c for c in attacked if _can_be_doubled(c, target.random)), key=lambda c: attacked[c].accuracy)
        return converge(best, attacked[best], carry_out, budget, target.random)


def _takes_gradients(cell: Cell) -> bool:
    return cell.attack is not None and not isinstance(cell.attack, Square | RandomSearch)


def _can_be_doubled(cell: Cell, random: bool) -> bool:
    """Whether it is an attack by gradients, of several steps, as strong as its view allows."""
    attack = cell.attack
    if attack is None or not _takes_gradients(cell) or isinstance(attack, MinimalAttack) or attack.iterations == 1:
        return False
    there = "m" in {field.name for field in fields(attack)}
    transferred = cell.source is not None and cell.source.name != "surrogate"
    return there and not transferred and (cell.mode != "fixed" or not random)


def evidence_records(evidence: Evidence) -> list[AttackRecord]:
    """All records of the checklist on all examples."""
    groups = (evidence.one_step, evidence.iterative, evidence.black_box, evidence.n, evidence.m, evidence.restarts)
    return [record for group in groups for record in group]


def _at_radius(records: Sequence[AttackRecord], target: Target, epsilon: float) -> list[AttackRecord]:
    """Each evaluation once, clean images first, at the radius of the audit and with all images kept."""
    assert isinstance(target.data, Examples)
    kept = {
        repr((r.label, r.attack, r.mode, r.n, r.source)): r
        for r in records
        if (r.is_clean or r.epsilon == epsilon) and len(r.images) == r.examples == len(target.data)
    }
    return sorted(kept.values(), key=lambda r: not r.is_clean)
