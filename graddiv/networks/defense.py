"""A defense makes a randomized network of a module, with rules for training; its settings are a section of recipes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from graddiv.losses import ce
from graddiv.networks.randomized import Dirac, Noiseless, RandomizedNetwork
from graddiv.registries import Registry, checked

Factory = TypeVar("Factory", bound=Callable[..., RandomizedNetwork])


class Minibatch(NamedTuple):
    """The batch of a training step."""

    x: Tensor  #: the images, attacked ones too where training has an adversary
    y: Tensor
    ids: Tensor  #: the data-set index of each image, which addresses its randomness
    seed: int  #: addresses all other randomness of the step
    progress: float  #: the share of all steps that are done, in [0, 1)


@dataclass(frozen=True)
class Rules:
    """The rules of training; by default the cross-entropy of a fresh draw and no penalties."""

    interpolated: ClassVar[bool] = False  #: whether training is on interpolated examples

    @property
    def in_pairs(self) -> bool:
        """Whether training combines each example with its neighbor in the batch."""
        return self.interpolated

    @property
    def passes(self) -> float:
        """The approximate cost of the loss of an example, in forward passes of the architecture."""
        return 3.0

    def trained(self, F: RandomizedNetwork) -> RandomizedNetwork:
        """The network that the loss and the inner adversary see: F, unless its noise is no part of training."""
        return F

    def losses(self, F: RandomizedNetwork, batch: Minibatch) -> Tensor:
        """CE(f(x), y) for each example, with f drawn for this step; F is what `trained` returns."""
        return ce(F.bind(F.draw(batch.seed, batch.ids))(batch.x), batch.y)

    def penalties(self, F: RandomizedNetwork, examples: int) -> dict[str, Tensor]:
        """Terms that are added to the loss, by name in the log; `examples` is the size of the training set."""
        return {}


class WithoutNoise(Rules):
    """The network is trained without its noise."""

    def trained(self, F: RandomizedNetwork) -> RandomizedNetwork:
        return Dirac(F.module) if F.mean() is None else Noiseless(F)


#: What a factory may ask for besides its settings: a network, the shape of an image, a function k -> list of networks,
#: the training set.
PROVIDED = ("module", "input_shape", "members", "examples")


class Defense(NamedTuple):
    """A factory of networks, and the rules of their training."""

    factory: Callable[..., RandomizedNetwork]
    rules: Callable[..., Rules] = Rules
    random: bool = True  #: whether there is noise

    def settings(self) -> dict[str, Parameter]:
        """The parameters of the factory and of the rules that a recipe sets; a shared name goes to both."""
        both = {**_parameters(self.factory), **_parameters(self.rules)}
        return {name: p for name, p in both.items() if name not in PROVIDED}

    def build(self, settings: Mapping[str, Any], provided: Mapping[str, Callable[[], Any]]) -> RandomizedNetwork:
        """F before training; of `provided`, only what the factory asks for is made."""
        made = {name: make() for name, make in _wanted_by(self.factory, provided).items()}
        return self.factory(**made, **_wanted_by(self.factory, settings))

    def rules_of(self, settings: Mapping[str, Any]) -> Rules:
        return self.rules(**_wanted_by(self.rules, settings))


DEFENSES: Registry[Defense] = Registry("defense")  #: by the name of their section in a recipe


def defense(name: str, rules: Callable[..., Rules] = Rules, *, random: bool = True) -> Callable[[Factory], Factory]:
    """Register a factory as the defense `name`, and let it check its settings.

        @defense("shifts")
        def shifts(module, most: Count = 2): ...

    name: its section in a recipe.
    rules: a dataclass of `Rules`, whose fields are settings too.
    random: whether the network has noise.
    """

    def register(factory: Factory) -> Factory:
        DEFENSES[name] = Defense(checked(factory), rules, random)
        return DEFENSES[name].factory  # type: ignore[return-value]

    return register


def _parameters(of: Callable[..., Any]) -> Mapping[str, Parameter]:
    return signature(of, eval_str=True).parameters


def _wanted_by(of: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in _parameters(of) if name in values}


def neighbours(b: int, device: torch.device) -> Tensor:
    """The index of the neighbor of each of b rows; the same if several processes share the batch in even parts."""
    return (torch.arange(b, device=device) ^ 1).clamp_max(b - 1)
