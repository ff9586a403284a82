"""The result of an audit, its card, and boards of cards.

A card is a JSON file with the keys of RobustBench's, whose numbers are strings in percent, and numbers of ours.
"""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from graddiv import __version__, store
from graddiv.attacks import Attack
from graddiv.attacks.suites import STRONG
from graddiv.errors import GradDivError
from graddiv.evaluation.behaviours import Evidence
from graddiv.evaluation.budget import Budget
from graddiv.evaluation.examples import Bounds, examples_of, unscaled
from graddiv.evaluation.families import doublings_of
from graddiv.evaluation.inspection import BEHAVIOURS, CHECKS, Item
from graddiv.evaluation.judgement import Estimate, ThreeNumbers, Worst, images_hash, judgement_job, three_numbers
from graddiv.evaluation.models import (
    Model,
    dtype_of,
    network_of,
    original,
    rescaled,
    settled,
    with_logits,
    with_no_answer,
)
from graddiv.evaluation.robustness import SourceNetwork
from graddiv.evaluation.run import IN_MEMORY
from graddiv.evaluation.target import Target, fingerprint
from graddiv.geometry import NORMS, Geometry
from graddiv.networks.prediction import predict
from graddiv.records import AttackRecord, Interval, cross_fitted_total, summary
from graddiv.records.statistics import told_apart

CARD = "card.json"
ADVERSARIAL = "adversarial.npz"
FORMAT = 1  #: Version of the card format.
HEADLINE = 10  #: The k in summaries of the worst of k draws.
SLACK = 1e-5  #: How far beyond the ball an image may lie by rounding.
#: What the user may say about a network, under RobustBench's keys.
ABOUT = ("name", "link", "authors", "venue", "dataset", "architecture", "additional_data", "reported", "footnote")


@dataclass(frozen=True)
class Subject:
    """The network of an audit and its settings."""

    target: Target  #: The network takes pixels in [0, 1], gives logits, and can be asked for gradients.
    seen: SourceNetwork  #: Its gradients are attacked: the target's network, or a surrogate.
    checks: dict[str, Item]  #: What was found before any attack, by name.
    budget: Budget
    budget_name: str
    geometry: Geometry
    epsilon: float
    bounds: Bounds
    about: dict[str, str]
    peers: tuple[Attack, ...] = ()  #: Attacks of other libraries.
    surrogates: tuple[SourceNetwork, ...] = ()  #: Other networks with gradients, attacked beside it.

    @property
    def surrogate(self) -> bool:
        return self.seen.F is not self.target.F


class Rung(NamedTuple):
    """The accuracy of a network whose draws the adversary knows."""

    name: str
    known: int  #: Draws that the adversary knows; 0 for the network without its noise.
    clean: float
    attacked: float
    interval: Interval


@dataclass(frozen=True)
class Audit:
    """The result of an audit: `graddiv.audit` documents its attributes."""

    subject: Subject
    evidence: Evidence
    records: tuple[AttackRecord, ...]  #: Clean images, then all attacks at the radius of the audit.
    worst: Worst  #: The worst of their images for each example.
    clean: ThreeNumbers
    robust: ThreeNumbers  #: On the worst image that any attack found, chosen on draws that do not score it.
    ladder: tuple[Rung, ...]
    behaviours: dict[str, Item]  #: How attacks behaved, by name.
    rho: float  #: Debiased mean resultant length of the gradients of draws; median over images.
    q: float  #: |E g|^2 / trace Cov g of these gradients; median over images.
    n: int  #: Draws of a step of EOT.

    @property
    def checks(self) -> dict[str, Item]:
        return self.subject.checks

    @property
    def indicators(self) -> list[Item]:
        return list(self.behaviours.values())

    @property
    def attacks(self) -> tuple[AttackRecord, ...]:
        return self.records[1:]

    @property
    def x_adv(self) -> np.ndarray:
        return self.worst.images

    @cached_property
    def shortcomings(self) -> list[str]:
        """Why the evidence is not sufficient; empty where it is."""
        found = [(CHECKS[name], item) for name, item in self.checks.items()]
        found += [(BEHAVIOURS[name], item) for name, item in self.behaviours.items()]
        decisive = [item for check, item in found if item.verdict in check.decisive]
        return [f"{item.name}: {item.verdict}, {item.sentence}" for item in decisive]

    @cached_property
    def warnings(self) -> list[str]:
        """What else did not pass: the evidence may be sufficient, and is read with it."""
        odd = [item for item in (*self.checks.values(), *self.indicators) if item.verdict in ("warn", "fail")]
        texts = [f"{item.name}: {item.verdict}, {item.sentence}" for item in odd]
        return [text for text in texts if text not in self.shortcomings]

    @property
    def verdict(self) -> str:
        """What page, card and terminal say of the evidence."""
        if self.shortcomings:
            return "evidence insufficient"
        count = len(self.warnings)
        return "evidence sufficient" + (f", with {count} warning{'s' * (count > 1)}" if count else "")

    @property
    def verdict_lines(self) -> list[str]:
        """The verdict, with a line for each of its reasons."""
        return [f"{self.verdict}: {text}" for text in self.shortcomings or self.warnings] or [self.verdict]

    @property
    def complete(self) -> bool:
        return not self.shortcomings

    @property
    def exit_code(self) -> int:
        return 0 if self.complete else 3  # the evidence is not sufficient

    @property
    def rows(self) -> list[tuple[str, Estimate, Estimate]]:
        """(who answers, on clean images, on attacked ones): the three numbers; a network without noise has one."""
        several = f"ensemble of {self.subject.target.n_ensemble}"
        found = [(several, self.clean.ensemble, self.robust.ensemble)]
        if self.subject.target.random:
            found.insert(0, ("one draw", self.clean.per_draw, self.robust.per_draw))
            found += [(f"worst of {k}", self.clean.worst[k], v) for k, v in self.robust.worst.items() if k == HEADLINE]
        return found

    def __str__(self) -> str:
        """The numbers, with 95 % intervals over images, and whether the evidence is sufficient."""
        lines = [f"{who}: clean {clean}, attacked {robust}" for who, clean, robust in self.rows]
        return "\n".join([*lines, *self.verdict_lines])

    @cached_property
    def card(self) -> dict[str, Any]:
        return card_of(self)

    def write(self, directory: str | Path) -> Path:
        """Write page, card, adversarial examples, tables and figures; return the page."""
        from graddiv.report.audit import PICTURES, Pictures, write_page

        out, clean, worst = Path(directory), self.records[0], self.worst
        store.make_directory(out)
        images = {"x_adv": worst.images, "x_adv_per_draw": worst.images_per_draw, "x": clean.images}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **images, y=clean.labels, ids=clean.ids)  # type: ignore[arg-type]
        store.write(out / ADVERSARIAL, buffer.getvalue())
        store.write_json(out / CARD, self.card)
        target, first = self.subject.target, slice(0, PICTURES)
        shown = [torch.from_numpy(x[first]).to(target.examples(first)[0]) for x in (clean.images, self.x_adv)]
        answers = [predict(target.F, x, n=target.n_ensemble, seed=target.seed).label.tolist() for x in shown]
        pictures = Pictures(clean.images[first], self.x_adv[first], clean.labels[first], *answers)
        explained = {name: check.explanation for name, check in (*CHECKS.items(), *BEHAVIOURS.items())}
        return write_page(self.card, pictures, explained, out)


def card_of(audit: Audit) -> dict[str, Any]:
    """Everything that the audit found, as JSON values."""
    subject, target, F = audit.subject, audit.subject.target, audit.subject.target.F
    doublings, T = audit.evidence["doublings"], target.n_ensemble if F.random else 1
    shared = "none" if not F.random else "shared by a batch, or per_example" if F.pointwise else "per_example"
    law, outcomes = type(original(F)).__name__, audit.checks["support"].evidence.get("outcomes")
    cos_n = 0.0 if audit.q == 0 else 1 / math.sqrt(1 + 1 / (audit.n * audit.q))  # of n gradients' mean to the true one
    return {
        "format": FORMAT,
        **dict.fromkeys(ABOUT, ""),
        "name": target.name,
        **subject.about,
        "eps": f"{subject.epsilon:.6g}",
        "clean_acc": f"{100 * audit.clean.ensemble.mean:.2f}",
        "autoattack_acc": "",
        "number_forward_passes": str(T),
        "unreliable": not audit.complete,
        "norm": subject.geometry.name,
        "epsilon": subject.epsilon,
        "bounds": [np.asarray(bound, float).tolist() for bound in subject.bounds],
        "examples": audit.records[0].examples,
        "complete": audit.complete,
        "verdict": audit.verdict,
        "shortcomings": audit.shortcomings,
        "warnings": audit.warnings,
        "randomness": {"random": F.random, "law": law, "granularity": shared, "support": outcomes},
        "inference": {"rule": "mean softmax", "T": T},
        "clean": _numbers_json(audit.clean),
        "robust": {
            **_numbers_json(audit.robust),
            "oracle": next((rung.attacked for rung in audit.ladder if rung.known == 1), None),
            "cross_fitted_total": float(np.mean([flags.mean() for flags in cross_fitted_total(audit.attacks)])),
            "repeats": 1,
        },
        "ladder": [{**rung._asdict(), "interval": list(rung.interval)} for rung in audit.ladder],
        "attack": _attacks_json(audit),
        "concentration": {"rho": audit.rho, "q": audit.q if F.random else None, "cos_n": cos_n},
        "sweep": {
            "doublings": [d._asdict() for d in doublings],
            "families": [d._asdict() for d in doublings_of(audit.evidence.families, subject.budget.level)],
            "tolerance": subject.budget.tolerance,
            "upper_bound_gain": max(d.bound for d in doublings if d.look == doublings[-1].look),
        },
        "radii": [
            {"epsilon": r.epsilon, "accuracy": r.accuracy, "per_draw": r.accuracy_per_draw}
            for r in audit.evidence["radii"]
        ],
        "checks": {name: item._asdict() for name, item in audit.checks.items()},
        "indicators": [{"check": name, **item._asdict()} for name, item in audit.behaviours.items()],
        "seed": target.seed,
        "data_sha256": audit.records[0].data.sha256,
        "model_sha256": fingerprint(original(F)),
        "x_adv_sha256": images_hash(audit.worst.images),
        "x_adv_per_draw_sha256": images_hash(audit.worst.images_per_draw),
        "external": [],
        "graddiv": __version__,
    }


def _numbers_json(numbers: ThreeNumbers) -> dict[str, Any]:
    worst = {str(k): estimate_json(value) for k, value in numbers.worst.items()}
    several = {"A1": estimate_json(numbers.per_draw), "A_T": estimate_json(numbers.ensemble)}
    return {**several, f"W_{HEADLINE}": worst.get(str(HEADLINE)), "W": worst, "exact": numbers.exact}


def estimate_json(estimate: Estimate) -> dict[str, float]:
    """An estimate as JSON values."""
    return {name: round(float(value), 6) for name, value in estimate._asdict().items()}


def _attacks_json(audit: Audit) -> dict[str, Any]:
    """The cost, and for each attack its settings, accuracy, cost and the number of images on which it was the worst."""
    budget, records, found = audit.subject.budget, audit.attacks, []
    columns = ("name", "seed", "bounds", "m", "samples", "restarts", "raced")  # do not tell attacks apart
    settings = [{key: value for key, value in (r.attack or {}).items() if key not in columns} for r in records]
    labels = told_apart([(r.label, own) for r, own in zip(records, settings, strict=True)])
    for number, (label, record) in enumerate(zip(labels, records, strict=True), 1):
        accuracy = summary(record.verdicts, 1)
        own = {key: value for key, value in (record.attack or {}).items() if key not in ("seed", "bounds")}
        left = {"accuracy": accuracy.mean, "interval": list(accuracy.interval), "per_draw": record.accuracy_per_draw}
        worst_on = int((audit.worst.attack == number).sum())
        cost = {"forwards": int(record.cost_forwards.sum()), "backwards": int(record.cost_backwards.sum())}
        found.append({"label": label, "mode": record.mode, "n": record.n, **own, **left, "worst_on": worst_on, **cost})
    made = {"budget": audit.subject.budget_name, "suites": [budget.suite, STRONG], "n": audit.n, "m": budget.m}
    costs = {name: sum(each[name] for each in found) for name in ("forwards", "backwards")}
    return {
        **made,
        "surrogate": audit.subject.surrogate,
        "followed": audit.subject.seen.name,
        **costs,
        "attacks": found,
    }


def read_card(path: Path) -> dict[str, Any]:
    """Read a card, given its file or the directory of its audit."""
    file = path / CARD if path.is_dir() else path
    card = store.read_json(file)
    if (found := card.get("format")) != FORMAT:
        raise GradDivError(f"{file} has format {found!r}, expected the card of an audit of format {FORMAT}")
    return card


def board(directory: Path) -> Path:
    """Make one page of all cards below a directory, ranked by the lower bound of the ensemble's accuracy."""
    from graddiv.report.audit import write_board

    entries = []
    for path in sorted(directory.rglob(CARD)):
        card = read_card(path)
        known = [card["robust"]["A_T"], *(found["A_T"] for found in card["external"])]
        audited = bool(card["sweep"]["doublings"]) and bool(card["x_adv_sha256"])
        lowest, place = min(known, key=lambda value: value["low"]), str(path.parent.relative_to(directory))
        entries.append({"place": place, "card": card, "robust": lowest, "audited": audited})
    if not entries:
        raise GradDivError(f"there is no {CARD} below {directory}: 'graddiv audit' makes one")
    entries.sort(key=lambda entry: (not entry["audited"], -entry["robust"]["low"], entry["card"]["name"]))
    return write_board(entries, directory)


def rescore(path: Path, model: Model, images: Path | None = None, *, who: str = "", attack: str = "") -> dict[str, Any]:
    """Score the adversarial examples of a card, or of a file, on other draws; those of a file may lower the card.

    path, model: the card, or the directory of its audit, and its network.
    images: an .npz file with another `x_adv`, in the same order and with pixels in [0, 1].
    """
    card, file = read_card(path), path / CARD if path.is_dir() else path
    held = file.parent / ADVERSARIAL
    own = store.read_npz(held, "x_adv", "x", "y")
    x_adv = own["x_adv"] if images is None else store.read_npz(images, "x_adv")["x_adv"].astype(np.float32)
    if images is None and images_hash(x_adv) != card["x_adv_sha256"]:
        raise GradDivError(f"{held} is not the file that the card was made with: its hash differs")
    check_inside(x_adv, own["x"], card)
    target = _target(card, model, x_adv, own["y"])
    [record] = IN_MEMORY.run([judgement_job(target, "rescored")])
    found = three_numbers(record, record)
    before = Estimate(**card["robust"]["A_T"])
    lowered = images is not None and found.ensemble.mean < before.mean
    if lowered:
        entry = {"who": who, "attack": attack, "A_T": estimate_json(found.ensemble), "x_adv_sha256": images_hash(x_adv)}
        known = [other for other in card["external"] if other["x_adv_sha256"] != entry["x_adv_sha256"]]
        store.write_json(file, {**card, "external": [*known, entry]})
    scores = {"before": before, "now": found.ensemble, "per_draw": found.per_draw}
    same = fingerprint(original(target.F)) == card["model_sha256"]
    return {**scores, "lowered": lowered, "same_network": same}


def check_inside(x_adv: np.ndarray, x: np.ndarray, card: Mapping[str, Any]) -> None:
    """Refuse images outside of the ball or of the box."""
    if x_adv.shape != x.shape:
        raise GradDivError(f"x_adv has shape {x_adv.shape}, expected {x.shape}, that of the card's images")
    distance = NORMS[card["norm"].lower()].norm(torch.from_numpy(x_adv - x).double())
    if outside := int((distance > card["epsilon"] + SLACK).sum()):
        far = f"farther than epsilon = {card['epsilon']:.6g} from the original, up to {float(distance.max()):.6g}"
        raise GradDivError(f"{outside} of {len(x)} images are {far}")
    if x_adv.min() < -SLACK or x_adv.max() > 1 + SLACK:
        raise GradDivError(f"x_adv lies in [{x_adv.min():.4g}, {x_adv.max():.4g}], expected pixels in [0, 1]")


def _target(card: Mapping[str, Any], model: Model, x_adv: np.ndarray, y: np.ndarray) -> Target:
    """The network as the audit saw it, on these images, with other draws than those that chose them."""
    data = examples_of(np.clip(x_adv, 0, 1), y, dtype=dtype_of(model))
    low, high = card["bounds"]
    given = network_of(model, unscaled(data.x[:2], (low, high)))
    F = rescaled(settled(given.F, draws=card["randomness"]["random"]), (low, high))
    F = F if card["checks"]["logits"]["verdict"] == "pass" else with_logits(F)
    F = with_no_answer(F) if card["checks"].get("numbers", {}).get("verdict") == "warn" else F
    return Target(F, data, card["name"], card["inference"]["T"] if F.random else 20, card["seed"] + 1)
