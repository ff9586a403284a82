"""From what the user gave to what is audited: every check made, and what can be remedied remedied."""

from dataclasses import dataclass

from graddiv.auditing.inputs import Inputs
from graddiv.auditing.model import Given, rescaled, settled, with_gradients, with_logits
from graddiv.auditing.surrogates import straight_through_surrogate
from graddiv.evaluation.checks import CHECKS
from graddiv.evaluation.look import Look
from graddiv.evaluation.verdicts import Item
from graddiv.networks import RandomizedNetwork


@dataclass(frozen=True)
class Examined:
    """A network ready to be audited."""

    F: RandomizedNetwork
    """It takes pixels in [0, 1], gives logits, and can be asked for gradients."""
    seen: RandomizedNetwork
    """The network whose gradients attacks follow: F itself, or a surrogate of the same answers where F's are lost."""
    checks: dict[str, Item]
    """What was found, by name."""

    @property
    def surrogate(self) -> bool:
        """Whether attacks follow a surrogate's gradients."""
        return self.seen is not self.F


def examine(given: Given, inputs: Inputs, seed: int) -> Examined:
    """Make all checks; those of gradients are made once the network is what it is found to be."""
    x, y = inputs.examples.x.to(given.F.device), inputs.examples.y.to(given.F.device)

    def look(F: RandomizedNetwork) -> Look:
        return Look(F, x, y, seed, given.declared)

    inner, found = given.F, {}
    F = rescaled(inner, inputs.low, inputs.high)
    found["random"] = CHECKS["random"](look(F))
    if found["random"].verdict == "fail":
        inner = settled(inner, draws=not inner.random)
        F = rescaled(inner, inputs.low, inputs.high)
        found["random"] = _remedied(found["random"], f"it is audited as {'random' if F.random else 'deterministic'}")
    found["logits"] = CHECKS["logits"](look(F))
    if found["logits"].verdict != "pass":
        F = with_logits(F)
        found["logits"] = _remedied(found["logits"], "the audit takes their logarithm")
    now = look(F)
    found |= {name: each(now) for name, each in CHECKS.items() if name not in found}
    seen = F
    if not now.usable:
        F = with_gradients(F)
        surrogate = straight_through_surrogate(F)
        seen = surrogate if look(surrogate).usable else F
        how = (
            "attacks follow a surrogate in which flat functions of torch hand the gradient on"
            if seen is surrogate
            else "no surrogate was found, so that only attacks without gradients and by transfer can work"
        )
        item = found["gradients"]
        found["gradients"] = item._replace(sentence=f"{item.sentence}; {how}")
    return Examined(F, seen, {name: found[name] for name in CHECKS})


def _remedied(item: Item, how: str) -> Item:
    """The same as a warning, and what the audit does about it."""
    return item._replace(verdict="warn", sentence=f"{item.sentence}; {how}")
