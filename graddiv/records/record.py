"""Records as typed values: what an evaluation was, and what it found for each example.

A record is one file: a description (JSON) and arrays.  Each kind of record is a dataclass that declares both, so a file
with a missing, unknown or misshapen part is refused by name when it is read.  No network is needed to read one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, NamedTuple, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

import numpy as np
from jaxtyping import Float, Int, jaxtyped

from graddiv import store
from graddiv.errors import GradDivError
from graddiv.registries import Registry

CHECKLIST = "checklist.json"  #: The verdicts of the checklist, beside the records that they are drawn from.
PILOTS = "pilot"  #: The directory of the records, of few examples, from which the strong suite chose its draws.
LARGEST = 10**9  #: The most examples of a record.

Names = Collection[str]
R = TypeVar("R", bound="Record")

KINDS: Registry[type["Record"]] = Registry("kind of record")  #: Every kind of record by the name that its files carry.


class DataIdentity(NamedTuple):
    """The examples that were evaluated: records of others are not comparable."""

    name: str
    split: str
    sha256: str


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True)
@dataclass(frozen=True, eq=False, kw_only=True)
class Record:
    """The fields of every record: the network and the examples that were evaluated, and the settings of the judging."""

    kind: ClassVar[str]
    named_by: ClassVar[tuple[str, ...]] = ()  #: Settings that tell files of this kind in one directory apart.
    array_types: ClassVar[dict[str, Any]]  #: The declared arrays with their types, such as Bool[np.ndarray, "b n"].
    setting_types: ClassVar[dict[str, Any]]  #: All other declared fields.

    target: str  #: The name of the network: that of its run, if it has one.
    method: str | None = None  #: The defense, such as adv-bnn+graddiv; None for a network in memory.
    lam: float | None = None  #: The weight of GradDiv in its training.
    proxy_gradient: bool = False  #: Whether gradients are those of a stand-in for a step that has none of its own.
    parameters: str  #: sha256 of its parameters and buffers.
    examples: int
    data: DataIdentity
    n_ensemble: int  #: Sample models in the ensemble that judges.
    seed: int
    batch: int
    ids: Int[np.ndarray, " b"]  #: Data-set index of each example.
    labels: Int[np.ndarray, " b"]

    def __init_subclass__(cls, kind: str = "", named_by: tuple[str, ...] = ()) -> None:
        dataclass(frozen=True, eq=False, kw_only=True)(cls)
        hints = get_type_hints(cls)
        cls.array_types = {name: hint for name, hint in hints.items() if hasattr(hint, "dim_str")}
        cls.setting_types = {f.name: hints[f.name] for f in fields(cls) if f.name not in cls.array_types}
        if kind:
            cls.kind, cls.named_by = kind, named_by
            KINDS[kind] = cls

    @classmethod
    def made(cls: type[R], description: Mapping[str, Any], arrays: Mapping[str, np.ndarray], source: str) -> R:
        """Make a record of a description and arrays; error messages begin with `source`, the name of the file."""
        values: dict[str, Any] = {name: value for name, value in description.items() if name != "kind"}
        needed = [name for name in cls.setting_types if not hasattr(cls, name)]  # those without a default
        _check_names(source, "setting", values, needed, cls.setting_types)
        _check_names(source, "array", arrays, cls.array_types, cls.array_types)
        for name, value in values.items():
            if not _is_a(value, hint := cls.setting_types[name]):
                expected = hint.__name__ if isinstance(hint, type) else hint
                expected = ", ".join(DataIdentity._fields) if hint is DataIdentity else expected
                raise GradDivError(f"{source}: the setting {name!r} is {value!r:.80}, expected {expected}")
        _check_shapes(source, cls.array_types, arrays, values["examples"])
        return cls(**{**values, **arrays, "data": DataIdentity(**values["data"])})

    @classmethod
    def load(cls: type[R], path: Path) -> R:
        """Read a record of this kind; `Record.load` reads one of any kind."""
        arrays, description = store.read_arrays(path)
        kind = description.get("kind", "attack")
        found: type[Record] | None = KINDS.get(str(kind))
        if found is None or not issubclass(found, cls):
            expected = ", ".join(name for name, known in KINDS.items() if issubclass(known, cls))
            raise GradDivError(f"{path} is a record of kind {kind!r}, expected one of {expected}")
        return found.made(description, arrays, str(path))

    def value(self, name: str) -> Any:
        """A setting by name, such as the one that a sweep goes over."""
        if name not in self.setting_types:
            raise GradDivError(f"records of kind {self.kind!r} have no setting {name!r}")
        return getattr(self, name)

    @property
    def description(self) -> dict[str, Any]:
        """All settings by name."""
        return {**{name: getattr(self, name) for name in self.setting_types}, "data": self.data._asdict()}

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name."""
        return {name: getattr(self, name) for name in self.array_types}


def _check_names(source: str, what: str, found: Names, needed: Names, known: Names) -> None:
    for name in needed:
        if name not in found:
            raise GradDivError(f"{source} lacks the {what} {name!r}: it is damaged, or of another version of graddiv")
    for name in found:
        if name not in known:
            raise GradDivError(f"{source} has the unknown {what} {name!r}, expected only {', '.join(known)}")


def _is_a(value: object, hint: Any) -> bool:
    """Whether a JSON value is of a declared type; whole numbers are numbers too, truth values are not."""
    if get_origin(hint) in (Union, UnionType):
        return any(_is_a(value, choice) for choice in get_args(hint))
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_is_a(part, get_args(hint)[0]) for part in value)
    if hint is DataIdentity:
        return isinstance(value, dict) and {k: type(v) for k, v in value.items()} == hint.__annotations__
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    return isinstance(value, get_origin(hint) or hint)


def _check_shapes(source: str, declared: Mapping[str, Any], arrays: Mapping[str, np.ndarray], examples: int) -> None:
    """Axes of one name must agree among the arrays of a record; "b" is the number of its examples."""
    if not 0 <= examples <= LARGEST:
        raise GradDivError(f"{source}: there are {examples} examples, expected 0 to {LARGEST}")
    b: Any = Float[np.ndarray, " b"]
    with jaxtyped("context"):
        isinstance(np.empty(examples), b)  # from here on, axes called b must have this length
        for name, hint in declared.items():
            if not isinstance(array := arrays[name], hint):
                found = f"the array {name!r} has shape {array.shape} and type {array.dtype}"
                raise GradDivError(f"{source}: {found}, expected {hint.__name__} with b = {examples}")
