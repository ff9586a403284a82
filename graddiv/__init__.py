"""graddiv: train, attack and honestly measure randomized neural networks.

The names below are imported when first used, so that `graddiv --help` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from graddiv.auditing import audit as audit
    from graddiv.directions import GradDiv as GradDiv
    from graddiv.errors import GradDivError as GradDivError
    from graddiv.errors import GradDivWarning as GradDivWarning
    from graddiv.evaluation import evaluate as evaluate
    from graddiv.networks import Dirac as Dirac
    from graddiv.networks import RandomizedNetwork as RandomizedNetwork
    from graddiv.networks import bayesian as bayesian
    from graddiv.networks import compressed as compressed
    from graddiv.networks import ensemble as ensemble
    from graddiv.networks import mc_dropout as mc_dropout
    from graddiv.networks import mixup_inference as mixup_inference
    from graddiv.networks import pixeldp as pixeldp
    from graddiv.networks import pni as pni
    from graddiv.networks import pni_activations as pni_activations
    from graddiv.networks import random_crops as random_crops
    from graddiv.networks import randomize as randomize
    from graddiv.networks import resize_and_pad as resize_and_pad
    from graddiv.networks import rse as rse
    from graddiv.networks import sap as sap
    from graddiv.networks import smoothing as smoothing
    from graddiv.networks import straight_through as straight_through
    from graddiv.networks import total_variation as total_variation
    from graddiv.networks import wca as wca
    from graddiv.objective import Adversary as Adversary
    from graddiv.objective import Objective as Objective
    from graddiv.records import table as table
    from graddiv.records import table_per_epsilon as table_per_epsilon

_HOME = {
    "audit": "graddiv.auditing",
    "GradDiv": "graddiv.directions",
    "GradDivError": "graddiv.errors",
    "GradDivWarning": "graddiv.errors",
    "evaluate": "graddiv.evaluation",
    "Dirac": "graddiv.networks",
    "RandomizedNetwork": "graddiv.networks",
    "bayesian": "graddiv.networks",
    "compressed": "graddiv.networks",
    "ensemble": "graddiv.networks",
    "mc_dropout": "graddiv.networks",
    "mixup_inference": "graddiv.networks",
    "pixeldp": "graddiv.networks",
    "pni": "graddiv.networks",
    "pni_activations": "graddiv.networks",
    "random_crops": "graddiv.networks",
    "randomize": "graddiv.networks",
    "resize_and_pad": "graddiv.networks",
    "rse": "graddiv.networks",
    "sap": "graddiv.networks",
    "smoothing": "graddiv.networks",
    "straight_through": "graddiv.networks",
    "total_variation": "graddiv.networks",
    "wca": "graddiv.networks",
    "Adversary": "graddiv.objective",
    "Objective": "graddiv.objective",
    "table": "graddiv.records",
    "table_per_epsilon": "graddiv.records",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'graddiv' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
