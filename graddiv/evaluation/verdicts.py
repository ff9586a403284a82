"""A verdict with its numbers: the form in which every check, of a network or of an attack on it, answers."""

from typing import Any, Literal, NamedTuple

Outcome = Literal["pass", "warn", "fail", "not enough evidence"]


class Item(NamedTuple):
    """One thing that was checked."""

    name: str
    """What should be the case."""
    verdict: Outcome
    """Whether it is."""
    sentence: str
    """The finding in words."""
    evidence: dict[str, Any]
    """The numbers behind it, as JSON values."""
