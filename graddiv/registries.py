"""The only lists of what there is by name: recipes, errors and commands take the names from here.

This file holds the architectures and the regularizers; data sets are listed in data/registry.py, defenses in
experiment/defenses.py and attacks in attacks/registry.py.  Recipes are read without torch, so what needs torch is named
here as in entry points, "module:function", and imported when it is first called.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from graddiv.errors import unknown

if TYPE_CHECKING:
    from torch import nn

Entry = TypeVar("Entry")


class Registry(dict[str, Entry]):
    """Entries of one kind by name, in their order: `REGISTRY[name] = entry` registers one.

    Asked for a name that is not there, it raises an error that suggests the nearest one.
    """

    def __init__(self, kind: str, entries: Mapping[str, Entry]) -> None:
        super().__init__(entries)
        self.kind = kind

    def __missing__(self, name: str) -> NoReturn:
        raise unknown(self.kind, name, self)


class Imported:
    """A function that is named as "module:function" and imported when it is first called."""

    def __init__(self, reference: str) -> None:
        self.reference = reference

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        module, _, name = self.reference.partition(":")
        function: Callable[..., Any] = getattr(import_module(module), name)
        return function

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.function(*arguments, **options)


class Architecture(NamedTuple):
    """A network before any noise is added."""

    build: "Callable[..., nn.Module]"
    """build(width, seed=...) -> the module, freshly initialised."""
    multiplications: float
    """In a forward pass of one image at width 1, for time estimates; they grow with the square of the width."""


ARCHITECTURES: Registry[Architecture] = Registry(
    "network",
    {
        "mnist_cnn": Architecture(Imported("graddiv.networks.architectures:mnist_cnn"), 35.5e6),
        "vgg16": Architecture(Imported("graddiv.networks.architectures:vgg16"), 313e6),
        "stl10_cnn": Architecture(Imported("graddiv.networks.architectures:stl10_cnn"), 150e6),
    },
)

REGULARIZERS: Registry[Callable[..., Any]] = Registry(
    "regularizer",
    {
        "kappa": Imported("graddiv.directions.regularizers:kappa"),
        "mean": Imported("graddiv.directions.regularizers:mean_cosine"),
        "dpp": Imported("graddiv.directions.regularizers:dpp"),
        "max": Imported("graddiv.directions.regularizers:max_cosine"),
        "smoothmax": Imported("graddiv.directions.regularizers:smoothmax"),
    },
)
"""Each a pure function of unit gradients, v: n b p -> b."""
