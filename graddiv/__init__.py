"""graddiv: train, attack and honestly measure randomized neural networks.

The names below are imported when first used, so that `graddiv --help` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from graddiv.directions import GradDiv as GradDiv
    from graddiv.errors import GradDivError as GradDivError
    from graddiv.evaluation import evaluate as evaluate
    from graddiv.networks import Dirac as Dirac
    from graddiv.networks import RandomizedNetwork as RandomizedNetwork
    from graddiv.networks import bayesian as bayesian
    from graddiv.networks import ensemble as ensemble
    from graddiv.networks import mixup_inference as mixup_inference
    from graddiv.networks import pni as pni
    from graddiv.networks import randomize as randomize
    from graddiv.networks import rse as rse
    from graddiv.networks import straight_through as straight_through
    from graddiv.records import table as table

_HOME = {
    "GradDiv": "graddiv.directions",
    "GradDivError": "graddiv.errors",
    "evaluate": "graddiv.evaluation",
    "Dirac": "graddiv.networks",
    "RandomizedNetwork": "graddiv.networks",
    "bayesian": "graddiv.networks",
    "ensemble": "graddiv.networks",
    "mixup_inference": "graddiv.networks",
    "pni": "graddiv.networks",
    "randomize": "graddiv.networks",
    "rse": "graddiv.networks",
    "straight_through": "graddiv.networks",
    "table": "graddiv.records",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'graddiv' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
