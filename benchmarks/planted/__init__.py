"""Planted models: networks with known faults, and honest ones, whose true robustness is known.

`PLANTED` has them by name, `families()` the names of each family.  Whoever audits networks can be judged on them:
`python -m benchmarks.auditors`.
"""

from benchmarks.planted import coding, decoys, habits, hidden, logits, noise, purifying, rough, sorting, sound
from benchmarks.planted.record import PLANTED, Planted, Truth

__all__ = ["PLANTED", "Planted", "Truth", "families"]

_MODULES = coding, purifying, decoys, hidden, sorting, logits, rough, noise, habits, sound


def families() -> dict[str, list[str]]:
    """The names of the models of each family."""
    found: dict[str, list[str]] = {}
    for planted in PLANTED.values():
        found.setdefault(planted.family, []).append(planted.name)
    return found
