"""A board of cards: ranked by what is sure, open to anyone who can lower an entry with adversarial examples.

Whoever finds better adversarial examples needs no attack code of ours: a file of images is enough.  They are scored on
draws that had no part in making them, and the entry falls to the lower of the two numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graddiv import store
from graddiv.auditing.card import CARD, estimate_json, read_card
from graddiv.auditing.inputs import inputs_of
from graddiv.auditing.model import Model, dtype_of, network_of, original, rescaled, settled, with_logits
from graddiv.auditing.numbers import Estimate, images_hash, judgement_job, three_numbers
from graddiv.errors import GradDivError
from graddiv.evaluation import Target
from graddiv.evaluation.batches import run
from graddiv.evaluation.target import fingerprint
from graddiv.geometry import L2, Geometry, Linf

SLACK = 1e-5
"""How far beyond the ball an image may lie by rounding."""


def board(directory: Path) -> Path:
    """Make one page of all cards below a directory, and return it."""
    paths = sorted(directory.rglob(CARD))
    if not paths:
        raise GradDivError(f"there is no {CARD} below {directory}: 'graddiv audit' makes one")
    cards = [(str(path.parent.relative_to(directory)), read_card(path)) for path in paths]
    from graddiv.report.board import write_board

    return write_board(ranked(cards), directory)


def ranked(cards: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Entries from the highest to the lowest lower bound of the ensemble's accuracy under attack.

    Audited networks come first; those without a sweep or without adversarial examples are listed as unaudited.
    """
    entries = []
    for place, card in cards:
        lowest = min(
            [card["robust"]["A_T"], *(found["A_T"] for found in card["external"])], key=lambda value: value["low"]
        )
        audited = bool(card["sweep"]["doublings"]) and bool(card["x_adv_sha256"])
        entries.append({"place": place, "card": card, "robust": lowest, "audited": audited})
    return sorted(entries, key=lambda entry: (not entry["audited"], -entry["robust"]["low"], entry["card"]["name"]))


def rescore(path: Path, model: Model, images: Path | None = None, *, who: str = "", attack: str = "") -> dict[str, Any]:
    """Score adversarial examples of a card again, or a file of other ones, and return what was found.

    path: the card, or the directory of its audit.
    model: the network that the card is of.
    images: an .npz file whose `x_adv` stands in place of the card's own, in the same order and with pixels in [0, 1].
    who, attack: stand on the card if the file lowers it.
    """
    card = read_card(path)
    home = path if path.is_dir() else path.parent
    own = store.read_npz(home / "adversarial.npz", "x_adv", "x", "y")
    x_adv = own["x_adv"] if images is None else store.read_npz(images, "x_adv")["x_adv"].astype(np.float32)
    if images is None and images_hash(x_adv) != card["x_adv_sha256"]:
        raise GradDivError(f"{home / 'adversarial.npz'} is not the file that the card was made with: its hash differs")
    check_inside(x_adv, own["x"], card)
    target = _target(card, model, x_adv, own["y"])
    [record] = run([judgement_job(target, "rescored", ensembles=10)])
    found = three_numbers(record, record)
    before = Estimate(**card["robust"]["A_T"])
    lowered = images is not None and found.ensemble.mean < before.mean
    if lowered:
        entry = {"who": who, "attack": attack, "A_T": estimate_json(found.ensemble), "x_adv_sha256": images_hash(x_adv)}
        known = [other for other in card["external"] if other["x_adv_sha256"] != entry["x_adv_sha256"]]
        store.write_json(home / CARD if path.is_dir() else path, {**card, "external": [*known, entry]})
    return {
        "before": before,
        "now": found.ensemble,
        "per_draw": found.per_draw,
        "lowered": lowered,
        "same_network": fingerprint(original(target.F)) == card["model_sha256"],
    }


def check_inside(x_adv: np.ndarray, x: np.ndarray, card: Mapping[str, Any]) -> None:
    """Refuse images outside of the ball or of the box."""
    if x_adv.shape != x.shape:
        raise GradDivError(f"x_adv has shape {x_adv.shape}, expected {x.shape}, that of the card's images")
    geometry: Geometry = L2() if card["norm"] == "L2" else Linf()
    distance = geometry.norm(torch.from_numpy(x_adv - x).double())
    outside = int((distance > card["epsilon"] + SLACK).sum())
    if outside:
        raise GradDivError(
            f"{outside} of {len(x)} images are farther than epsilon = {card['epsilon']:.6g} from the original, "
            f"up to {float(distance.max()):.6g}"
        )
    if x_adv.min() < -SLACK or x_adv.max() > 1 + SLACK:
        raise GradDivError(f"x_adv lies in [{x_adv.min():.4g}, {x_adv.max():.4g}], expected pixels in [0, 1]")


def _target(card: Mapping[str, Any], model: Model, x_adv: np.ndarray, y: np.ndarray) -> Target:
    """The network as the audit saw it, on these images."""
    inputs = inputs_of(np.clip(x_adv, 0, 1), y, dtype=dtype_of(model))
    low, high = (torch.as_tensor(bound, dtype=inputs.examples.x.dtype) for bound in card["bounds"])
    low, high = (value.reshape(-1, 1, 1) if value.dim() else value for value in (low, high))
    given = network_of(model, low + (high - low) * inputs.examples.x[:2])
    F = settled(given.F, draws=card["randomness"]["random"])
    F = rescaled(F, low, high)
    if card["checks"]["logits"]["verdict"] != "pass":
        F = with_logits(F)
    target = Target(F, inputs.examples, card["name"], card["inference"]["T"] if F.random else 20)
    return replace(target, seed=card["seed"] + 1)  # other draws than those that chose the images
