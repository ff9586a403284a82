"""Registries: entries by name, to which other packages can add; and the ranges that settings must lie in.

A package registers its entries when it is imported.  Its entry point of the group `graddiv.plugins` names a module, or
a function to call, and is loaded when a registry is first listed, or asked for a name that it lacks.
"""

import math
import operator
import warnings
from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import wraps
from importlib.metadata import entry_points
from inspect import signature
from typing import Annotated, Any, ClassVar, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from graddiv.errors import GradDivError, GradDivWarning, unknown

Entry = TypeVar("Entry")
P = ParamSpec("P")
R = TypeVar("R")


class Registry(UserDict[str, Entry]):
    """Entries of one kind by name: `REGISTRY[name] = entry` registers one, an unknown name is a `GradDivError`."""

    plugins: ClassVar[str | None] = "graddiv.plugins"  #: the group of entry points; None once they are loaded

    def __init__(self, kind: str, entries: Mapping[str, Entry] | None = None) -> None:
        self.kind, self._entries = kind, dict(entries or {})

    @property
    def data(self) -> dict[str, Entry]:  # type: ignore[override]
        """The entries, those of plugins included."""
        load_plugins()
        return self._entries

    def __setitem__(self, name: str, entry: Entry) -> None:
        self._entries[name] = entry  # not by `data`: the package registers its own while it is imported

    def __getitem__(self, name: str) -> Entry:
        entries = self._entries if name in self._entries else self.data
        if name not in entries:
            raise unknown(self.kind, name, entries)
        return entries[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.data.get(name, default)


def load_plugins() -> None:
    """Load the entry points of other packages, once; warn of one that fails, and leave it out."""
    group, Registry.plugins = Registry.plugins, None
    for entry in entry_points(group=group) if group else ():
        try:
            if callable(plugin := entry.load()):
                plugin()
        except Exception as error:
            warnings.warn(f"the plugin {entry.name} ({entry.value}) fails: {error!r}", GradDivWarning, stacklevel=4)


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may take, as in Annotated[float, Range(gt=0)]; `checked` and recipes enforce it."""

    gt: int | float | None = None
    ge: int | float | None = None
    lt: int | float | None = None
    le: int | float | None = None

    @property
    def limits(self) -> dict[str, int | float]:
        return {name: limit for name, limit in vars(self).items() if limit is not None}

    def check(self, name: str, value: Any) -> None:
        """Refuse what is no number, or a number outside."""
        signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
        found = math.nan if isinstance(value, str) else float(value)
        if not math.isfinite(found) or not all(getattr(operator, of)(found, at) for of, at in self.limits.items()):
            bounds = [f"{signs[of]} {at:g}" for of, at in self.limits.items() if at != MOST or found > MOST]
            raise GradDivError(f"{name} is {value!r}, expected a number {' and '.join(bounds)}")

    def __get_pydantic_core_schema__(self, source: type, handler: Callable[[type], Any]) -> Any:
        from pydantic_core import core_schema

        finite = {"allow_inf_nan": False} if source is float else {}
        return core_schema.no_info_before_validator_function(number, {**handler(source), **self.limits, **finite})


MOST = 10**9  #: the largest count: with more, even the estimate of training time would overflow
Whole = Annotated[int, Range(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Range(ge=1, le=MOST)]
Real = Annotated[float, Range()]
Positive = Annotated[float, Range(gt=0)]
NotNegative = Annotated[float, Range(ge=0)]
Share = Annotated[float, Range(ge=0, le=1)]
PositiveShare = Annotated[float, Range(gt=0, le=1)]


def number(value: object) -> object:
    """A number of a recipe: 8/255 as people write it, but not true or false, which Python takes for 1 and 0."""
    if isinstance(value, bool):
        from pydantic_core import PydanticCustomError

        raise PydanticCustomError("boolean", "Input should be a number")
    try:
        return float(Fraction(value.replace(" ", ""))) if isinstance(value, str) and "/" in value else value
    except (ValueError, ZeroDivisionError):
        return value


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function refuse arguments outside of the `Range` or `Literal` that its signature names."""
    parameters = signature(function, eval_str=True).parameters

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        for name, value in {**dict(zip(parameters, args, strict=False)), **options}.items():
            if name in parameters:
                _check(name, value, parameters[name].annotation)
        return function(*args, **options)

    return call


def check_fields(settings: Any) -> None:
    """Refuse fields of a dataclass outside of the `Range` or `Literal` that it annotates them with."""
    for name, annotation in get_type_hints(type(settings), include_extras=True).items():
        _check(name, getattr(settings, name, None), annotation)


def _check(name: str, value: Any, annotation: Any) -> None:
    for part in (annotation, *get_args(annotation)) if value is not None else ():
        if get_origin(part) is Literal and value not in get_args(part):
            raise unknown(name, str(value), map(str, get_args(part)))
        if get_origin(part) is Annotated and isinstance(part.__metadata__[0], Range):
            part.__metadata__[0].check(name, value)
