"""References to what is the user's: `file.py:name` or `package.module:name`, and files or folders."""

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from graddiv.errors import GradDivError

T = TypeVar("T")


def is_code(reference: str) -> bool:
    """Whether it has the form `file.py:name` or `package.module:name`."""
    return re.fullmatch(r".*\.py:[^\W\d]\w*|[\w.]+:[^\W\d]\w*", reference) is not None


def name_of(reference: str) -> str:
    """What is called by a reference: CNN of models.py:CNN, xs of data/xs.npz."""
    name = reference.rpartition(":")[2] if is_code(reference) else Path(reference).resolve().name
    return re.sub(r"[^\w.+-]+", "-", name.removesuffix(".npz")) or "own"


def file_of(reference: str) -> Path | None:
    """The file or folder that it refers to; None if it is not there, or a module that is imported by name."""
    places = [reference, reference.rpartition(":")[0]] if is_code(reference) else [reference]
    return next((Path(place) for place in places if place and os.path.lexists(place)), None)


def called(reference: str, *, expected: str, take: Callable[[Any], T]) -> T:
    """What `take` makes of the object that `file.py:name` or `package.module:name` names."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise GradDivError(f"{reference!r} names nothing, expected {expected}, such as file.py:name")
    folder = Path(place).parent.resolve() if place.endswith(".py") else Path.cwd()
    with _importable(folder):
        module = _imported(place, name)
        if not hasattr(module, name):
            raise GradDivError(f"{place} has no {name!r}, expected {expected}")
        return take(getattr(module, name))


def made(reference: str, factory: Callable[..., T], **offered: Any) -> T:
    """Call a function or class with those of the offered arguments that it takes; refuse one that needs others."""
    wanted = signature(factory).parameters.values()
    lacking = [p.name for p in wanted if p.default is p.empty and p.kind not in _OPEN and p.name not in offered]
    if lacking:
        among = f", besides {', '.join(offered)}" if offered else ""
        raise GradDivError(
            f"{reference} needs {', '.join(lacking)}, expected a function or class without required arguments{among}"
        )
    takes_all = any(p.kind is p.VAR_KEYWORD for p in wanted)
    names = {p.name for p in wanted if p.kind is not p.POSITIONAL_ONLY}
    return factory(**{name: value for name, value in offered.items() if takes_all or name in names})


_OPEN = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def source_digest(reference: str) -> str:
    """sha256 of the file in which `file.py:name` or `package.module:name` is."""
    place = reference.rpartition(":")[0]
    found = place if place.endswith(".py") else getattr(_spec(place, Path.cwd()), "origin", None)
    if found is None:
        raise GradDivError(f"there is no module {place!r}")
    try:
        return sha256(Path(found).read_bytes()).hexdigest()
    except OSError as error:
        raise GradDivError(f"cannot read {found}: {error.strerror}") from None


def _imported(place: str, name: str) -> ModuleType:
    """A module by its name, or a Python file as a module of its own, which may import files beside it."""
    if not place.endswith(".py"):
        if _spec(place, Path.cwd()) is None:
            raise GradDivError(f"there is no module {place!r}, expected file.py:{name} or package.module:{name}")
        return importlib.import_module(place)
    path = Path(place)
    if not path.is_file():
        raise GradDivError(f"there is no {path}")
    # registered under a name that no import has, for dataclasses look up the module that they are in
    spec = importlib.util.spec_from_file_location(f"{path.stem} ({path.resolve()})", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _spec(name: str, folder: Path) -> Any:
    with _importable(folder):
        try:
            return importlib.util.find_spec(name)
        except (ImportError, ValueError):  # a part of the name is no package
            return None


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
