"""Attacks on randomized networks, in three modes: what the adversary sees is a view."""

from graddiv.attacks.attack import Attack
from graddiv.attacks.pgd import FGSM, PGD
from graddiv.attacks.views import EOT, Cost, Fixed, Given, View, as_view

__all__ = ["EOT", "FGSM", "PGD", "Attack", "Cost", "Fixed", "Given", "View", "as_view"]
