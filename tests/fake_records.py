"""Records of attacks with made-up numbers, complete as the real ones are."""

from typing import Any

import numpy as np

from graddiv.records import AttackRecord, TotalRecord

COMMON: dict[str, Any] = {
    "target": "t",
    "parameters": "0" * 8,
    "data": {"name": "d", "split": "test", "sha256": "0" * 8},
    "n_ensemble": 3,
    "seed": 0,
    "batch": 10,
}
"""What every description says, but for the number of examples."""


def description(label: str = "PGD", b: int = 50, repeat: int = 0, **settings: Any) -> dict[str, Any]:
    name = label.removeprefix("EOT-").removeprefix("EOT^1-")
    mode = "eot" if label.startswith("EOT-") else "eot1" if label.startswith("EOT^1-") else "fixed"
    attack = None if label == "clean" else {"name": name, "m": settings.get("m", 10), "seed": repeat}
    own = {"label": label, "attack": attack, "mode": mode, "n": 1, "m": 10, "restarts": 1, "epsilon": 0.1}
    return {"kind": "attack", **own, "repeat": repeat, "examples": b, **COMMON, **settings}


def arrays(b: int = 50, seed: int = 0, **changed: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    margin, again = rng.standard_normal((2, b)).astype(np.float32)
    own = {
        "ids": np.arange(b),
        "labels": np.arange(b) % 10,
        "distance": np.full(b, 0.1, np.float32),
        "images": np.zeros((2, 1, 4, 4), np.float32),
        **{f"cost_{name}": np.full(b, 7) for name in ("forwards", "backwards", "draws")},
        "margin": margin,
        "correct": margin < 0,
        "margin_again": again,
        "correct_again": again < 0,
        "right": rng.random((b, 3)) < 0.5,
    }
    return own | changed


def attack_record(
    label: str = "PGD",
    repeat: int = 0,
    b: int = 50,
    draw: int = 0,
    found: dict[str, np.ndarray] | None = None,
    **settings: Any,
) -> AttackRecord:
    """A record of this row; `draw` gives it other numbers, and `found` those of some arrays."""
    chance = sum(map(ord, label)) + 1000 * repeat + 10_000 * draw
    return AttackRecord.made(
        description(label, b, repeat, **settings), arrays(b, chance, **(found or {})), f"{label}.record"
    )


def total_record(b: int = 50, **changed: Any) -> TotalRecord:
    """A Total over one attack, which half of the images did not live to see."""
    attacks = [{"label": "clean"}, {"label": "PGD"}]
    own = {name: array for name, array in arrays(b).items() if name != "images" and not name.startswith("cost_")}
    there = np.stack([np.ones(b, np.int64), np.arange(b) % 2], 1)
    costs = {f"cost_{name}": 7 * there for name in ("forwards", "backwards", "draws", "choice")}
    found = {**own, **costs, "chosen": np.arange(b) % 2, "ended": np.arange(b) % 2 == 0}
    settings = {"attacks": attacks, "epsilon": 0.1, "repeat": 0, "level": 0.001, "examples": b}
    return TotalRecord.made({**settings, **COMMON, **changed}, found, "total.record")
