"""The card of a network: a JSON file with the keys of RobustBench's, and what a randomized network needs beside them.

RobustBench's numbers are strings in percent; ours stand apart as numbers between 0 and 1, with their intervals.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graddiv import __version__, store
from graddiv.attacks.registry import STRONG
from graddiv.auditing.budget import cosine_of
from graddiv.auditing.model import original
from graddiv.auditing.numbers import Estimate, ThreeNumbers, images_hash
from graddiv.errors import GradDivError
from graddiv.evaluation.target import fingerprint
from graddiv.evaluation.verdicts import Item
from graddiv.records import AttackRecord, cross_fitted_total, summary

if TYPE_CHECKING:
    from graddiv.auditing.result import Audit

CARD = "card.json"
ADVERSARIAL = "adversarial.npz"
FORMAT = 1
"""Of cards; a later version that changes them counts on."""

ABOUT = (
    "name", "link", "authors", "venue", "dataset", "architecture", "additional_data", "reported", "footnote",
)  # fmt: skip
"""What the user may say of a network, under RobustBench's keys."""

HEADLINE = 10
"""The k of the worst of k draws that stands in summaries."""


def card_of(audit: "Audit") -> dict[str, Any]:
    """Everything that the audit found, as JSON values."""
    subject, robust, clean = audit.subject, audit.robust, audit.clean
    target = subject.target
    F = subject.examined.F
    record = audit.attacked.clean
    support = audit.checks["support"].evidence.get("outcomes")
    about = dict.fromkeys(ABOUT, "") | {"name": target.name} | subject.about
    shared = "per_example" if not F.pointwise else "shared by a batch, or per_example"
    return {
        "format": FORMAT,
        **about,
        "eps": f"{subject.epsilon:.6g}",
        "clean_acc": f"{100 * clean.ensemble.mean:.2f}",
        "autoattack_acc": "",
        "number_forward_passes": str(target.n_ensemble if F.random else 1),
        "unreliable": not audit.complete,
        "norm": subject.geometry.name,
        "epsilon": subject.epsilon,
        "bounds": [_plain(bound) for bound in subject.inputs.bounds],
        "examples": record.examples,
        "complete": audit.complete,
        "shortcomings": audit.shortcomings,
        "randomness": {
            "random": F.random,
            "law": type(original(F)).__name__,
            "granularity": shared if F.random else "none",
            "support": support,
        },
        "inference": {"rule": "mean softmax", "T": target.n_ensemble if F.random else 1},
        "clean": numbers_json(clean),
        "robust": {
            **numbers_json(robust),
            "oracle": next((rung.attacked for rung in audit.ladder if rung.known == 1), None),
            "cross_fitted_total": _cross_fitted(audit.attacked.attacks),
            "repeats": 1,
        },
        "ladder": [{**rung._asdict(), "interval": list(rung.interval)} for rung in audit.ladder],
        "attack": {
            "budget": subject.budget_name,
            "suites": [subject.budget.suite, STRONG],
            "n": audit.n,
            "m": subject.budget.m,
            "surrogate": subject.examined.surrogate,
            "forwards": _spent(audit.attacked.attacks, "cost_forwards"),
            "backwards": _spent(audit.attacked.attacks, "cost_backwards"),
            "attacks": attacks_json(audit.attacked.attacks, audit.attacked.worst.attack),
        },
        "concentration": {
            "rho": audit.rho,
            "q": audit.q if F.random else None,
            "cos_n": cosine_of(audit.n, audit.q) if F.random else 1.0,
        },
        "sweep": {
            "doublings": [
                {"look": i + 1, **d._asdict()} for i, look in enumerate(audit.convergence.looks) for d in look
            ],
            "tolerance": subject.budget.tolerance,
            "upper_bound_gain": audit.convergence.bound,
        },
        "radii": [
            {"epsilon": r.epsilon, "accuracy": r.accuracy, "per_draw": r.accuracy_per_draw}
            for r in audit.attacked.radii
        ],
        "checks": {name: item_json(item) for name, item in audit.checks.items()},
        "indicators": [item_json(item) for item in audit.indicators],
        "seed": target.seed,
        "data_sha256": record.data.sha256,
        "model_sha256": fingerprint(original(F)),
        "x_adv_sha256": images_hash(audit.attacked.worst.images),
        "x_adv_per_draw_sha256": images_hash(audit.attacked.worst.images_per_draw),
        "external": [],
        "graddiv": __version__,
    }


def numbers_json(numbers: ThreeNumbers) -> dict[str, Any]:
    """A1, A_T and W_k with their intervals."""
    return {
        "A1": estimate_json(numbers.per_draw),
        "A_T": estimate_json(numbers.ensemble),
        f"W_{HEADLINE}": estimate_json(numbers.worst[HEADLINE]) if HEADLINE in numbers.worst else None,
        "W": {str(k): estimate_json(value) for k, value in numbers.worst.items()},
        "exact": numbers.exact,
    }


def estimate_json(estimate: Estimate) -> dict[str, float]:
    """An estimate by the names of its parts."""
    return {name: round(float(value), 6) for name, value in estimate._asdict().items()}


def item_json(item: Item) -> dict[str, Any]:
    """An item by the names of its parts."""
    return dict(item._asdict())


def attacks_json(records: Sequence[AttackRecord], chosen: np.ndarray) -> list[dict[str, Any]]:
    """All attacks; `chosen` has for each image the number of the worst one, from 1."""
    labels = _labels(records)
    return [{"label": labels[i], **attack_json(record, chosen, i + 1)} for i, record in enumerate(records)]


def attack_json(record: AttackRecord, chosen: np.ndarray, number: int) -> dict[str, Any]:
    """What an attack was, what it left, and for how many images it was the worst of all."""
    settings = {key: value for key, value in (record.attack or {}).items() if key not in ("seed", "bounds")}
    accuracy = summary([record.correct, record.correct_again], 1)
    return {
        "mode": record.mode,
        "n": record.n,
        **settings,
        "accuracy": accuracy.mean,
        "interval": list(accuracy.interval),
        "per_draw": record.accuracy_per_draw,
        "worst_on": int((chosen == number).sum()),
        "forwards": int(record.cost_forwards.sum()),
        "backwards": int(record.cost_backwards.sum()),
    }


def _labels(records: Sequence[AttackRecord]) -> list[str]:
    """The labels of attacks; those of one name and other settings, apart from what stands in columns, say which."""
    apart = ("name", "seed", "bounds", "m", "samples", "restarts")
    settings = [{k: v for k, v in (r.attack or {}).items() if k not in apart} for r in records]
    labels = []
    for record, own in zip(records, settings, strict=True):
        namesakes = [other for r, other in zip(records, settings, strict=True) if r.label == record.label]
        odd = [key for key in own if any(other.get(key) != own[key] for other in namesakes)]
        labels.append(", ".join([record.label, *(f"{key} {own[key]}" for key in odd)]))
    return labels


def write_images(audit: "Audit", path: Path) -> None:
    """The adversarial examples with the clean ones and their labels, as an .npz file; pixels in [0, 1]."""
    record, worst = audit.attacked.clean, audit.attacked.worst
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        x_adv=worst.images,
        x_adv_per_draw=worst.images_per_draw,
        x=record.images,
        y=record.labels,
        ids=record.ids,
    )
    store.write(path, buffer.getvalue())


def read_card(path: Path) -> dict[str, Any]:
    """A card by its file, or by the directory of its audit."""
    file = path / CARD if path.is_dir() else path
    card = store.read_json(file)
    found = card.get("format") if isinstance(card, dict) else None
    if found != FORMAT:
        raise GradDivError(f"{file} has format {found!r}, expected the card of an audit of format {FORMAT}")
    return dict(card)


def _cross_fitted(records: tuple[AttackRecord, ...]) -> float:
    return float(np.mean([flags.mean() for flags in cross_fitted_total(records)]))


def _spent(records: tuple[AttackRecord, ...], what: str) -> int:
    return int(sum(getattr(record, what).sum() for record in records))


def _plain(bound: Any) -> Any:
    return [float(value) for value in bound] if isinstance(bound, list | tuple | np.ndarray) else float(bound)
