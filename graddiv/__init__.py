"""graddiv: train, attack and honestly measure randomized neural networks.

`audit`, `compare` and `evaluate` measure; `Objective`, `Adversary` and `GradDiv` train; `networks`, `attacks` and
`data` hold what they work on.  Names are imported when first used, so that `graddiv --help` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

import graddiv.moved  # noqa: F401  finds modules by their old names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from graddiv import attacks as attacks
    from graddiv import data as data
    from graddiv import networks as networks
    from graddiv.diversity import GradDiv as GradDiv
    from graddiv.errors import GradDivError as GradDivError
    from graddiv.errors import GradDivWarning as GradDivWarning
    from graddiv.evaluation import evaluate as evaluate
    from graddiv.evaluation.audit import audit as audit
    from graddiv.evaluation.compare import compare as compare
    from graddiv.networks import *  # noqa: F403
    from graddiv.objective import Adversary as Adversary
    from graddiv.objective import Objective as Objective
    from graddiv.records import table as table
    from graddiv.records import table_per_epsilon as table_per_epsilon

_NAMES = {
    "graddiv.evaluation.audit": "audit",
    "graddiv.evaluation.compare": "compare",
    "graddiv.evaluation": "evaluate",
    "graddiv.diversity": "GradDiv",
    "graddiv.objective": "Adversary Objective",
    "graddiv.networks": "Dirac RandomizedNetwork bayesian compressed ensemble mc_dropout mixup_inference pixeldp pni "
    "pni_activations random_crops randomize resize_and_pad rse sap smoothing straight_through total_variation wca",
    "graddiv.records": "table table_per_epsilon",
    "graddiv.errors": "GradDivError GradDivWarning",
}
_PACKAGES = ("attacks", "data", "networks")
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_PACKAGES, *_HOME]


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"graddiv.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'graddiv' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
