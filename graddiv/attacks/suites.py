"""The attacks by name, and the suites they make up."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from graddiv.attacks.apgd import APGD
from graddiv.attacks.arc import ARC
from graddiv.attacks.attack import Attack
from graddiv.attacks.bb import BB
from graddiv.attacks.minimal import FAB
from graddiv.attacks.nearest import CW, FMN, DeepFool
from graddiv.attacks.pgd import FGSM, PGD
from graddiv.attacks.spgd import StochasticPGD
from graddiv.attacks.square import Square
from graddiv.errors import unknown
from graddiv.registries import Registry


class RegisteredAttack(NamedTuple):
    """An attack with a name on the command line."""

    attack: Attack  #: with the iterations of its paper and of the libraries of the time
    iterations: Mapping[str, int] = {}  #: its iterations in each suite that includes it


PUBLISHED, STRONG = "published", "strong"
SUITES = ("paper", PUBLISHED, "quick", "demo", STRONG)
"""`published` is the paper's suite with the return rules of the libraries of its time.  `strong` is the smallest list
that lowers accuracy as far as all attacks together on the networks of the study (docs/adversaries.md); a pilot first
measures how many models its attacks should see."""
ATTACKS: Registry[RegisteredAttack] = Registry(
    "attack",
    {
        "fgsm": RegisteredAttack(FGSM(), {"paper": 1, "quick": 1, "demo": 1}),
        "pgd": RegisteredAttack(PGD(m=50), {"paper": 50, "quick": 20, "demo": 20}),
        "apgd-ce": RegisteredAttack(APGD(m=100), {"paper": 100, "quick": 20, "demo": 20}),
        "apgd-dlr": RegisteredAttack(APGD(m=100, objective="dlr"), {"paper": 100, "quick": 20}),
        "fab": RegisteredAttack(FAB(m=100), {"paper": 100, "quick": 10}),
        "bb": RegisteredAttack(BB(m=1000), {"paper": 1000, "quick": 50}),
        "spgd": RegisteredAttack(StochasticPGD(m=100), {STRONG: 100}),
        "spgd-ce": RegisteredAttack(StochasticPGD(m=100, objective="ce"), {STRONG: 100}),
        "arc": RegisteredAttack(ARC(m=20)),
        "square": RegisteredAttack(Square(m=5000), {"paper": 5000, "quick": 200, "demo": 30}),
        # in no suite: run only where they are named
        "pgd-t": RegisteredAttack(PGD(m=50, targets=9)),
        "apgd-t": RegisteredAttack(APGD(m=100, objective="dlr", targets=9)),
        "fab-t": RegisteredAttack(FAB(m=100, targets=9)),
        "cw": RegisteredAttack(CW()),
        "deepfool": RegisteredAttack(DeepFool()),
        "fmn": RegisteredAttack(FMN()),
    },
)


def suite(name: str, names: Sequence[str] = (), m: int | None = None) -> list[Attack]:
    """The attacks of a suite, or those named, which need not be in it; m replaces the iterations of multi-step ones."""
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    if name == PUBLISHED:
        return list(map(as_published, suite("paper", names, m)))
    chosen = [ATTACKS[each] for each in names] or [each for each in ATTACKS.values() if name in each.iterations]
    steps = [(attack, iterations.get(name, attack.iterations) if m is None else m) for attack, iterations in chosen]
    return [a if a.iterations in (1, k) else replace(a, m=k) for a, k in steps]  # type: ignore[call-arg]


def as_published(attack: Attack) -> Attack:
    """The attack with the return rule of the libraries of the paper's time, if it has a choice of rules."""
    return replace(attack, return_rule="reference") if hasattr(attack, "return_rule") else attack  # type: ignore[call-arg]
