"""Any stochastic `nn.Module` as a `RandomizedNetwork`: its noise is a seed.  And how such a module is found."""

import inspect
import os
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.inputs import logits_of, running_statistics, switched
from graddiv.networks.randomized import DROPOUT, Noise, RandomizedNetwork, SampleModel, Theta
from graddiv.seeding import isolated, states

CALLS = 66  #: Of a module before it counts as deterministic: 0.9^66 < 0.001.
SURELY = "a call that differs once in ten or more is found with 99.9 %"  #: What so many calls that agree mean.
#: Generators that belong to who made them; those of the process, which `isolated` sets, are reached by functions.
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
ELSEWHERE = ("time", "secrets", "uuid")  #: Modules that give numbers which no seed sets.


class ForeignNetwork(RandomizedNetwork):
    """f(x) = module(x) with every random generator of the process set from the noise, a seed, and restored after.

    Layers in `active` (dropout) are kept in train mode during the call, so that a module in eval mode still draws.
    """

    def __init__(self, module: nn.Module, active: tuple[type[nn.Module], ...]) -> None:
        super().__init__(module)
        self.active = active
        self.pointwise, self._tested = (False, False)  # found out at the first call with two rows or more

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> int:
        return seed

    def bind(self, noise: Noise, theta: Theta | None = None) -> SampleModel:
        if not isinstance(noise, int):
            found = f"noise is a set of {len(noise)} tensors"
            raise GradDivError(f"{found}, but the noise of a foreign module is a seed: make it with F.draw(seed)")
        return partial(self._call, _Parts.of(self.module, theta or self.theta(), self.active), noise)

    def _call(self, parts: "_Parts", seed: int, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
        with isolated(seed), switched(parts.active, training=True), parts.replaced():
            output = self.module(x.contiguous())  # many modules call x.view, which other formats do not have
        logits = logits_of(output, type(self.module).__name__, len(x))
        if not self._tested and len(x) > 1:
            self._tested = True  # set now, because the calls below, f(x)[1:] == f(x[1:]), come back here
            x = x[torch.arange(8, device=x.device) % len(x)]
            with torch.no_grad(), running_statistics(self):
                models = self.sample(4, seed=0)
                self.pointwise = all(torch.allclose(f(x)[1:], f(x[1:]), rtol=1e-4, atol=1e-5) for f in models)
        return logits


class _Parts(NamedTuple):
    """What is different in a module while it is called: found once for all calls, and cheaper than functional_call."""

    parameters: list[tuple[dict[str, Any], str, Tensor]]  #: where each of them stands, and what stands there in a call
    buffers: list[tuple[dict[str, Any], str]]
    active: list[nn.Module]

    @classmethod
    def of(cls, module: nn.Module, theta: Theta, active: tuple[type[nn.Module], ...]) -> "_Parts":
        """Walk through the module once; a parameter that several layers share has one name in theta."""
        given = {id(p): theta.parameters.get(name, p) for name, p in module.named_parameters()}
        found = cls([], [], [])
        for layer in module.modules():
            held = layer._parameters
            found.parameters.extend((held, name, given[id(p)]) for name, p in held.items() if p is not None)
            # Each call has its own copies of the buffers, but for batch norm's statistics: some layers (bayesian-torch)
            # write noise into one, which would change the gradients of other sample models.
            if "running_mean" not in layer._buffers:
                found.buffers.extend((layer._buffers, name) for name, b in layer._buffers.items() if b is not None)
            if isinstance(layer, active):
                found.active.append(layer)
        return found

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Put theta and copies of the buffers into the module, and put back what was there."""
        places = [(home, name) for home, name, _ in self.parameters] + self.buffers
        before = [(home, name, home[name]) for home, name in places]
        copies = {id(b): b.clone() for home, name in self.buffers if (b := home[name]) is not None}
        try:
            for home, name, value in self.parameters:
                home[name] = value
            for home, name in self.buffers:
                home[name] = copies[id(home[name])]
            yield
        finally:
            for home, name, own in before:
                home[name] = own


def randomize(module: nn.Module, *, active: type[nn.Module] | Iterable[type[nn.Module]] = DROPOUT) -> ForeignNetwork:
    """Make a `RandomizedNetwork` of any stochastic module that draws from the global random state when called.

        F = randomize(model)  # a module with dropout, say
        label = F.predict(x).label

    Returns a `RandomizedNetwork` whose noise is the seed of the generators of torch, NumPy and Python.  MC dropout,
    random input transforms, torchbnn and bayesian-torch layers, modules returning (logits, kl): all work unchanged.

    module: the network.
    active: the type or types of layers that must go on drawing in eval mode; dropout of all kinds by default.
    """
    types = (active,) if isinstance(active, type) else tuple(active)
    if odd := [each for each in types if not (isinstance(each, type) and issubclass(each, nn.Module))]:
        raise GradDivError(f"active holds {odd[0]!r}, expected types of layers, such as nn.Dropout")
    return ForeignNetwork(module, types)


def draws_by_itself(f: SampleModel, module: nn.Module, x: Float[Tensor, "b ..."], calls: int = CALLS) -> bool:
    """Whether calls of f, which calls the module, differ; see `SURELY` for the chance of a miss.

    It stops at the first difference.  A call that asks a generator of torch, NumPy or Python shows by its state; while
    none was asked, only `calls` of the `CALLS` are compared.
    """
    last, asked = None, False
    for seed in range(CALLS):
        if seed >= calls and not asked:
            break
        with torch.no_grad(), running_statistics(module), isolated(seed):
            before = states()
            answer = logits_of(f(x), type(module).__name__, len(x)).nan_to_num()  # NaN differs from itself
            asked = asked or states() != before
        if last is not None and not torch.equal(last, answer):
            return True
        last = answer
    return False


def sources(module: nn.Module) -> list[str]:
    """Name what a module may draw from besides the global generators: generators of its own, the clock, the system."""
    found: dict[str, None] = {}
    for place, layer in module.named_modules():
        own = {f"{place}.{name}".strip("."): value for name, value in vars(layer).items()}
        kinds = [kind for kind in type(layer).__mro__ if not kind.__module__.startswith("torch.")]
        functions = [each for kind in kinds for each in vars(kind).values()] + list(own.values())
        for seen in [own, *map(_seen_by, functions)]:
            found |= dict.fromkeys(f"{n} ({type(v).__name__})" for n, v in seen.items() if isinstance(v, GENERATORS))
            homes = (v.__name__ if isinstance(v, ModuleType) else getattr(v, "__module__", "") for v in seen.values())
            found |= dict.fromkeys(home for home in homes if home in ELSEWHERE)
            found |= dict.fromkeys("os.urandom" for v in seen.values() if v is os.urandom)
    return list(found)


def _seen_by(function: object) -> dict[str, Any]:
    """What a function reads of the scopes around it, by name, and `os.urandom` by its own."""
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return {}
    try:
        read = inspect.getclosurevars(function)
    except ValueError:  # a name around it has no value yet
        return {}
    asked = any(value is os for value in read.globals.values()) and "urandom" in read.unbound
    return {**read.globals, **read.nonlocals, **({"urandom": os.urandom} if asked else {})}
