"""The audit: check the network, attack it, double the budget, judge the images, climb the ladder, write the report."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graddiv.attacks import APGD, ARC, RandomSearch, Square
from graddiv.attacks.minimal import MinimalAttack
from graddiv.attacks.peers import peers as peer_attacks
from graddiv.attacks.spgd import Spending, choose
from graddiv.distributed import ALONE, Process, chosen_device
from graddiv.errors import GradDivWarning, require, unknown
from graddiv.evaluation import models
from graddiv.evaluation.behaviours import gather
from graddiv.evaluation.budget import BUDGETS, Budget, with_geometry
from graddiv.evaluation.card import ABOUT, Audit, Rung, Subject
from graddiv.evaluation.checks import CHECKS
from graddiv.evaluation.examples import Bounds, Examples, examples_of, unscaled
from graddiv.evaluation.explained import OWN, explained_job, follow
from graddiv.evaluation.families import Families
from graddiv.evaluation.in_memory import check_counts, check_radius
from graddiv.evaluation.inspection import Inspection, Item
from graddiv.evaluation.judgement import double, judgement_job, three_numbers, trajectory_job, worst_images
from graddiv.evaluation.models import Frozen, GivenModel, Model, dtype_of, network_of
from graddiv.evaluation.robustness import Cell, SourceNetwork, attack_all, attack_job, cells, pilot, strong_attacks
from graddiv.evaluation.run import IN_MEMORY, Session
from graddiv.evaluation.surrogates import Smoothed
from graddiv.evaluation.target import Target
from graddiv.geometry import LINF, NORMS, Geometry, radius_of
from graddiv.networks import RandomizedNetwork
from graddiv.progress import Progress
from graddiv.records import AttackRecord, ExplainedRecord, wilson
from graddiv.seeding import fold

ANSWERS = "answers.json"  #: Answers on the first images, by which a resumed audit recognizes its network.
NOISE_FREE = "noise-free"  #: The name of the rung that has no noise.
#: The phases of an audit, and roughly the share of the time that each takes.
SHARES = {
    "pilot": 0.03, "behaviours": 0.2, "attacks": 0.22, "doubling": 0.2, "families": 0.2, "explained": 0.03,
    "trajectory": 0.04, "numbers": 0.04, "ladder": 0.04,
}  # fmt: skip


def audit(
    model: Model, x: object, y: object = None, *, epsilon: float, norm: str = "linf", bounds: Bounds | None = None,
    budget: str | Budget = "quick", examples: int | None = None, name: str | None = None,
    about: Mapping[str, str] | None = None, peers: str | Sequence[str] = (), out: str | Path | None = None,
    n_ensemble: int = 20, seed: int = 0, batch: int = 100, progress: bool | Progress = False, process: Process = ALONE,
    device: torch.device | str | None = None, data_root: str | Path | None = None,
) -> Audit:  # fmt: skip
    """Audit a network: check it, attack it, and report its robust accuracy and how much of that is proved.

        import torch
        from graddiv import audit
        from graddiv.data import load

        x, y = load("mnist-mini", "test").batch(range(100))  # or images and labels of yours, pixels in [0, 1]
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(784, 10))  # or yours
        report = audit(model, x, y, epsilon=8 / 255)
        print(report.robust.ensemble, report.shortcomings)
        report.write("audits/mine")  # the page, the card, the adversarial examples

    Returns an `Audit`.  `clean` and `robust` hold three accuracies each, with 95 % intervals (`mean`, `low`, `high`):
    `per_draw` where one draw answers, `ensemble` where n_ensemble do, `worst[k]` where an attacker may ask k times.
    `shortcomings` says why the evidence is not sufficient, `x_adv` holds the adversarial examples, `card` everything as
    JSON, and `write(directory)` makes the page.  docs/audit.md explains how to read it.

    model: a module, a RandomizedNetwork, a function x -> logits, a list of modules of which one answers at random, or
        the directory of a run.  In the mode in which it answers: nothing is switched.
    x, y: images and labels as tensors or arrays; or x is a Dataset or DataLoader of both.
    epsilon: the radius, as a share of the range of a pixel: 8/255 whatever the bounds are.
    norm: linf or l2, in which epsilon is measured.
    bounds: the least and the greatest value of a pixel, if they are not 0 and 1; one number or one for each channel.
    budget: quick (minutes, a first look), standard (hours, what to publish), exhaustive (days), or a `Budget`.
    examples: how many of the first examples are used; all if None.
    name: what the network is called; by default the name of its class.
    about: further entries of its card: authors, link, dataset, ...
    peers: libraries whose attacks are run too, such as torchattacks.
    out: a directory that then holds everything, the page included (needs the extra [report]); the same call again
        goes on where this one stopped.  If None, nothing is written.
    n_ensemble: the draws of an ensemble.
    seed: addresses all randomness.
    batch: how many images are looked at together.
    progress: whether to show a bar, or a callback (done, total, label).
    process: this process among those that share the work.
    device: where the network goes; it stays where it is if None.
    data_root: the folder of the official data files.
    """
    if out is not None:
        require("report")  # now, not after an hour
    spent = BUDGETS["audit"][budget] if isinstance(budget, str) else budget
    if odd := [key for key in about or {} if key not in ABOUT]:
        raise unknown("entry of a card", odd[0], ABOUT)
    check_counts(n_ensemble=n_ensemble, batch=batch)
    data = examples_of(x, y, bounds, examples, dtype_of(model))
    geometry, epsilon = NORMS[norm], radius_of(epsilon)
    check_radius(epsilon, geometry, data.x[0].numel())
    place = None if device is None else chosen_device(device)
    given = network_of(model, unscaled(data.x[:2], data.bounds), data_root, place)
    F, seen, checks, others = examine(given, data, seed, epsilon, geometry)
    if (kind := checks["random"]).verdict == "warn":  # now, not on a page after minutes of attacks
        warnings.warn(f"{kind.name}? {kind.sentence}", GradDivWarning, stacklevel=2)
    target = Target(F, data, name or given.name, n_ensemble, seed, batch, kept_images=len(data))
    libraries = tuple(peer_attacks([peers] if isinstance(peers, str) else peers, spent.suite, spent.m)) if peers else ()
    called = budget if isinstance(budget, str) else "own"
    subject = target, seen, checks, spent, called, geometry, epsilon, data.bounds, dict(about or {}), libraries, others
    with Session.open(out, process, progress) as session:
        directory = session.directory
        if directory is not None and process.writes:
            target.check_answers(directory / ANSWERS)
        made = Auditor(*subject, replace(session, directory=directory and directory / "records")).audit()
        if directory is not None and process.writes:
            made.write(directory)
        process.wait()
    return made


def examine(
    given: GivenModel, data: Examples, seed: int, epsilon: float = 8 / 255, geometry: Geometry = LINF
) -> tuple[RandomizedNetwork, SourceNetwork, dict[str, Item], tuple[SourceNetwork, ...]]:
    """Make all checks and fix what can be fixed; return the network, that whose gradients are followed, the checks, and
    other networks with gradients of their own.
    """
    x, y = data.x.to(given.F.device), data.y.to(given.F.device)
    inspect = partial(Inspection, x=x, y=y, seed=seed, declared=given.declared)
    inner = given.F
    F = models.rescaled(inner, data.bounds)
    found = {"random": CHECKS["random"](inspect(F))}
    if found["random"].verdict == "fail":
        inner = models.settled(inner, draws=not inner.random)
        F = models.rescaled(inner, data.bounds)
        how = f"it is audited as {'random' if F.random else 'deterministic'}"
        found["random"] = found["random"].remedied(how)._replace(verdict="warn")
    found["replay"] = CHECKS["replay"](inspect(F))
    if found["replay"].verdict == "fail":
        again = models.rescaled(models.replayed(inner), data.bounds)
        if CHECKS["replay"](inspect(again)).verdict == "pass":
            F, how = again, "it is audited with all that its calls draw as its noise, as randomize(module) does it"
            found["replay"] = found["replay"].remedied(how)._replace(verdict="warn")
    found["logits"] = CHECKS["logits"](inspect(F))
    if found["logits"].verdict != "pass":
        F = models.with_logits(F)
        found["logits"] = found["logits"].remedied("the audit takes their logarithm")._replace(verdict="warn")
    now = inspect(F)
    F, found["numbers"] = models.answering(F, CHECKS["numbers"](now))
    checks = {name: found.get(name) or check(now) for name, check in CHECKS.items()}
    usable = now.usable_gradients is not None
    F = F if usable else models.with_gradients(F)
    chosen = follow(F, x, y, epsilon=epsilon, geometry=geometry, seed=seed)
    if not usable:
        how = f"attacks follow the {chosen.name}, which gives the same answers"
        lost = "no surrogate was found, so that only attacks without gradients and by transfer can work"
        checks["gradients"] = checks["gradients"].remedied(lost if chosen.name == OWN else how)
    others = tuple(SourceNetwork(name, F) for name, F in chosen.others.items())
    return F, SourceNetwork(chosen.name, chosen.seen), checks, others


@dataclass(frozen=True)
class Auditor(Subject):
    """Carries out an audit, phase by phase."""

    session: Session = IN_MEMORY

    def audit(self) -> Audit:
        """Run every phase in order."""
        target, budget = self.target, self.budget
        radius: dict[str, Any] = {"epsilon": self.epsilon, "geometry": self.geometry}
        rho, q, n = 1.0, math.inf, 1
        if target.random:
            rho, q = pilot(replace(target, F=self.seen.F), session=self._phase("pilot"), **radius)
            n = budget.draws_for(q)
        spent, phase = replace(budget, n=n), self._phase("behaviours")
        evidence = gather(target, session=phase, budget=spent, source=self._seen, by_queries=False, **radius)
        attacked = self._attack(n, q)
        best = min(
            (c for c in attacked if _can_be_doubled(c, self._seen, target.random)), key=lambda c: attacked[c].accuracy
        )
        doublings, doubled = double(best, attacked[best], target, budget, self._phase("doubling"))
        of_behaviours = [r for name, group in evidence.groups.items() if name != "random" for r in group]
        by_gradient = self._at_radius([*of_behaviours, *attacked.values(), *doubled])
        start = worst_images(by_gradient)
        families = self._families(start.images)
        before = families["surrogate"][-1].verdicts if "surrogate" in families else start.verdicts(by_gradient)
        records = (*by_gradient, *(r for group in families.values() for r in group))
        trajectory = self._phase("trajectory").run([trajectory_job(target, self.seen.F, n=n, m=budget.m, **radius)])
        worst = worst_images(records)
        hit, hit_per_draw = (self._on(images) for images in (worst.images, worst.images_per_draw))
        judged = {"clean": target, "attacked": hit, "attacked-per-draw": hit_per_draw}
        jobs = [judgement_job(each, name, ensembles=budget.ensembles) for name, each in judged.items()]
        clean, robust, robust_per_draw = self._phase("numbers").run(jobs)
        found: dict[str, Any] = {
            **evidence.groups,
            "trajectory": trajectory,
            "doubled": doubled,
            "doublings": doublings,
        }
        found |= {"families": families, "before_blind": before, "left": [float(robust.correct.mean())]}
        found["explained"] = self._explained([start.images, worst.images])
        evidence = replace(evidence, groups={**evidence.groups, **found})
        numbers = three_numbers(clean, clean), three_numbers(robust, robust_per_draw)
        ladder = self._climb(hit_per_draw)
        return Audit(self, evidence, records, worst, *numbers, ladder, evidence.judge(), rho, q, n)

    @property
    def _seen(self) -> SourceNetwork | None:
        """The network whose gradients attacks use, if it is not the one that is judged."""
        return self.seen if self.surrogate else None

    @property
    def _bindable(self) -> RandomizedNetwork:
        """The same network, or what is smoothed in it: its noise is that of the network that is judged."""
        return self.seen.F.inner if isinstance(self.seen.F, Smoothed) else self.seen.F

    def _phase(self, name: str) -> Session:
        """The session, whose progress covers the share of this phase."""
        before = sum(list(SHARES.values())[: list(SHARES).index(name)])

        def listen(done: float, total: float, what: str) -> None:
            self.session.progress(before + SHARES[name] * done / max(total, 1e-9), 1.0, what)

        return replace(self.session, progress=listen)

    def _on(self, images: np.ndarray) -> Target:
        """The target on these images instead of its own."""
        data = self.target.data
        assert isinstance(data, Examples)
        return replace(self.target, data=replace(data, x=torch.from_numpy(images).to(data.x)))

    def _attack(self, n: int, q: float) -> dict[Cell, AttackRecord]:
        """Run clean images, the suite in all modes, the strong attacks, and transfer from other networks."""
        random, budget, geometry, epsilon = self.target.random, self.budget, self.geometry, self.epsilon
        usual = [attack for attack in budget.attacks(geometry) if not isinstance(attack, Square)]
        wanted = cells(usual, epsilon, n=n, random=random)
        plan = choose(q, budget.passes) if random else Spending(1, budget.passes)
        wanted += cells(with_geometry(strong_attacks(plan), geometry), epsilon, modes=["eot"], n=plan.n, random=random)
        if random:
            one_by_one = [ARC(m=budget.arc_m), ARC(m=budget.arc_m, rule="draw")]
            wanted += cells(with_geometry(one_by_one, geometry), epsilon, modes=["eot"], n=n)
        peers = [replace(attack, geometry=geometry) for attack in self.peers]  # named by the user: none is left out
        wanted += cells(peers, epsilon, n=n, random=random)
        wanted = [replace(c, source=self._seen) if _takes_gradients(c) else c for c in wanted]
        wanted = list({c.file_name: c for c in wanted}.values())
        return dict(zip(wanted, attack_all(self.target, wanted, self._phase("attacks")), strict=True))

    def _families(self, images: np.ndarray) -> dict[str, list[AttackRecord]]:
        """Attack what is left by surrogates, by transfer and by queries."""
        others, F = [*self.surrogates], self.target.F
        if F.random and (mean := F.mean()) is not None:
            others.append(SourceNetwork("noise-free network", Frozen(self._bindable, (mean,))))
        session = self._phase("families")
        return Families(self.target, others, self.epsilon, self.geometry, self.budget, session).attack(images)

    def _explained(self, ends: Sequence[np.ndarray]) -> list[ExplainedRecord]:
        """How much of the loss the network's own gradient explains, and that of the surrogate in its place."""
        seen = {OWN: self.target.F, self.seen.name: self.seen.F}
        how: dict[str, Any] = {"epsilon": self.epsilon, "geometry": self.geometry}
        jobs = [explained_job(self.target, F, name, ends, **how) for name, F in seen.items()]
        return self._phase("explained").run([replace(job, file=job.file.replace(" ", "-")) for job in jobs])

    def _at_radius(self, records: Sequence[AttackRecord]) -> tuple[AttackRecord, ...]:
        """Each evaluation once, clean images first, at the radius of the audit and with all images kept."""
        at = [r for r in records if r.is_clean or r.epsilon == self.epsilon]
        whole = [r for r in at if len(r.images) == r.examples == len(self.target.data)]
        kept = {repr((r.label, r.attack, r.mode, r.n, r.source)): r for r in whole}
        return tuple(sorted(kept.values(), key=lambda r: not r.is_clean))

    def _climb(self, hit: Target) -> tuple[Rung, ...]:
        """Attack the network with k known draws, and without noise; also with the images of `hit`."""
        target, F = self.target, self.target.F
        if not F.random:
            return ()
        drawn = [F.draw(fold(target.seed, "ladder", i)) for i in range(max(self.budget.known))]
        rungs = {f"known-{k}": tuple(drawn[:k]) for k in self.budget.known}
        if (free := F.mean()) is not None:
            rungs[NOISE_FREE] = (free,)
        attack, untouched = APGD(m=2 * self.budget.m, geometry=self.geometry), Cell(None, "fixed", 1, 0.0, 0)
        found = []
        for name, noises in rungs.items():
            frozen = replace(target, F=Frozen(F, noises), name=name)
            source = SourceNetwork(self.seen.name, Frozen(self._bindable, noises)) if self.surrogate else None
            jobs = [attack_job(frozen, each) for each in (untouched, Cell(attack, "fixed", 1, self.epsilon, 0, source))]
            jobs.append(attack_job(replace(frozen, data=hit.data), untouched).below("handed-on"))
            clean, *attacked = self._phase("ladder").run([job.below(name) for job in jobs])
            left = np.logical_and.reduce([record.correct for record in attacked])
            known, interval = 0 if name == NOISE_FREE else len(noises), wilson(float(left.sum()), len(left))
            found.append(Rung(name, known, clean.accuracy, float(left.mean()), interval))
        return tuple(found)


def _takes_gradients(cell: Cell) -> bool:
    return cell.attack is not None and not isinstance(cell.attack, Square | RandomSearch)


def _can_be_doubled(cell: Cell, seen: SourceNetwork | None, random: bool) -> bool:
    """Whether it is an attack by gradients, of several steps, with the strongest view."""
    attack = cell.attack
    if attack is None or not _takes_gradients(cell) or isinstance(attack, MinimalAttack) or attack.iterations == 1:
        return False
    there = "m" in {field.name for field in fields(attack)}
    return there and cell.source is seen and (cell.mode != "fixed" or not random)
