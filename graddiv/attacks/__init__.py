"""Attacks on randomized networks, in three modes: what the adversary sees is a view."""

from graddiv.attacks.apgd import APGD
from graddiv.attacks.arc import ARC
from graddiv.attacks.attack import Attack
from graddiv.attacks.bb import BB
from graddiv.attacks.minimal import FAB
from graddiv.attacks.nearest import CW, FMN, DeepFool
from graddiv.attacks.nes import NES
from graddiv.attacks.peers import ViewModule, as_module
from graddiv.attacks.pgd import FGSM, PGD, RotatedPGD
from graddiv.attacks.spgd import StochasticPGD
from graddiv.attacks.square import RandomSearch, Square
from graddiv.attacks.view import EOT, Cost, Exact, Fixed, Given, Held, View, as_view

__all__ = [
    "APGD", "ARC", "BB", "CW", "EOT", "FAB", "FGSM", "FMN", "NES", "PGD", "Attack", "Cost", "DeepFool", "Exact",
    "Fixed", "Given", "Held", "RandomSearch", "RotatedPGD", "Square", "StochasticPGD", "View", "ViewModule",
    "as_module", "as_view",
]  # fmt: skip
