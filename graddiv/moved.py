"""Old names of modules: they work until 0.2 and warn with the new name."""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Old name of a module -> the new one, or several with blanks between them.
MOVED: dict[str, str] = {
    "graddiv.attacks.registry": "graddiv.attacks.suites",
    "graddiv.auditing": "graddiv.evaluation.audit graddiv.evaluation.card graddiv.evaluation.budget",
    "graddiv.directions": "graddiv.diversity",
    "graddiv.directions.bounds": "graddiv.diversity.concentration",
    "graddiv.directions.regularizers": "graddiv.diversity.regularizers",
    "graddiv.directions.vmf": "graddiv.diversity.concentration",
}


class _Finder(MetaPathFinder, Loader):
    """Finds a module of the old name as an empty one that looks every name up in the new place."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        old, homes = module.__name__, MOVED[module.__name__].split()
        warnings.warn(f"{old} is now {', '.join(homes)}", DeprecationWarning, stacklevel=2)

        def getattr_(name: str) -> object:
            # Python itself asks every module for names such as __file__, while others are being imported
            for home in map(import_module, () if name.startswith("__") else homes):
                if hasattr(home, name):
                    return getattr(home, name)
            raise AttributeError(f"module {old!r} has no attribute {name!r}")

        module.__doc__ = f"Now {', '.join(homes)}."
        module.__getattr__ = getattr_  # type: ignore[method-assign]


sys.meta_path.append(_Finder())
