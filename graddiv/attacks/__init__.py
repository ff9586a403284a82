"""Attacks on randomized networks, in three modes: what the adversary sees is a view."""

from graddiv.attacks.apgd import APGD
from graddiv.attacks.arc import ARC
from graddiv.attacks.attack import Attack
from graddiv.attacks.bb import BB
from graddiv.attacks.fab import FAB
from graddiv.attacks.module import as_module
from graddiv.attacks.pgd import FGSM, PGD
from graddiv.attacks.probes import RandomSearch, RotatedPGD
from graddiv.attacks.spgd import StochasticPGD
from graddiv.attacks.square import Square
from graddiv.attacks.view import Cost, Given, View
from graddiv.attacks.views import EOT, Exact, Fixed, as_view

__all__ = [
    "APGD",
    "ARC",
    "BB",
    "EOT",
    "FAB",
    "FGSM",
    "PGD",
    "Attack",
    "Cost",
    "Exact",
    "Fixed",
    "Given",
    "RandomSearch",
    "RotatedPGD",
    "Square",
    "StochasticPGD",
    "View",
    "as_module",
    "as_view",
]
