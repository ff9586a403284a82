"""Old names of modules and of what is in them: they work until 0.2 and warn with the new name."""

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pkgutil import resolve_name
from types import ModuleType

#: Old dotted name -> new dotted name, of a module or of a name in one; more specific entries win.  A module whose names
#: went to several places has them separated by blanks.
MOVED: dict[str, str] = {
    "graddiv.attacks.registry": "graddiv.attacks.suites",
    "graddiv.auditing": "graddiv.evaluation.audit graddiv.evaluation.card graddiv.evaluation.budget",
    "graddiv.data.cifar10": "graddiv.data.sources",
    "graddiv.data.mnist": "graddiv.data.sources",
    "graddiv.data.stl10": "graddiv.data.sources",
    "graddiv.directions": "graddiv.diversity",
    "graddiv.directions.bounds": "graddiv.diversity.concentration",
    "graddiv.directions.regularizers": "graddiv.diversity.regularizers",
    "graddiv.directions.vmf": "graddiv.diversity.concentration",
    "graddiv.evaluation.concentration": "graddiv.evaluation.jobs",
    "graddiv.evaluation.decisions": "graddiv.evaluation.jobs",
    "graddiv.evaluation.elimination": "graddiv.evaluation.robustness",
    "graddiv.experiment.AdversarySection": "graddiv.objective.Adversary",
    "graddiv.experiment.DEFENSES": "graddiv.networks.DEFENSES",
    "graddiv.paper.published": "graddiv.report.published",
    "graddiv.registries.ARCHITECTURES": "graddiv.networks.ARCHITECTURES",
    "graddiv.registries.Architecture": "graddiv.networks.architectures.Architecture",
    "graddiv.registries.REGULARIZERS": "graddiv.diversity.REGULARIZERS",
    "graddiv.rules": "graddiv.networks.defense graddiv.networks.weights",
}


def names_moved_from(module: str, homes: Sequence[str] = ()) -> Callable[[str], object]:
    """The `__getattr__` of a module from which some names moved; or of one that moved to `homes`, and has warned."""

    def getattr_(name: str) -> object:
        if (old := f"{module}.{name}") in MOVED:
            if not homes:
                _warn(old)
            return resolve_name(MOVED[old])
        # Python itself asks every module for names such as __file__, while others are being imported
        for home in map(import_module, () if name.startswith("__") else homes):
            if hasattr(home, name):
                return getattr(home, name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return getattr_


def _warn(old: str) -> None:
    warnings.warn(f"{old} is now {MOVED[old].replace(' ', ', ')}", DeprecationWarning, stacklevel=3)


class _Finder(MetaPathFinder, Loader):
    """Finds a module of the old name as an empty one that passes every name on to the new place."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        _warn(old := module.__name__)
        module.__doc__ = f"Now {MOVED[old]}."
        module.__getattr__ = names_moved_from(old, MOVED[old].split())  # type: ignore[method-assign]


sys.meta_path.append(_Finder())
