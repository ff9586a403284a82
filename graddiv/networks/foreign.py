"""Any stochastic `nn.Module` as a `RandomizedNetwork`: its noise is a seed."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.inputs import logits_of, running_statistics, switched
from graddiv.networks.randomized import DROPOUT, Noise, RandomizedNetwork, SampleModel, Theta
from graddiv.seeding import isolated


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
        before = [(home, name, home[name]) for home, name, *_ in (*self.parameters, *self.buffers)]
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


def randomize(module: nn.Module, *, active: tuple[type[nn.Module], ...] = DROPOUT) -> ForeignNetwork:
    """Make a `RandomizedNetwork` of any stochastic module that draws from the global random state when called.

        F = randomize(model)  # a module with dropout, say
        label = F.predict(x).label

    Returns a `RandomizedNetwork` whose noise is the seed of the generators of torch, NumPy and Python.  MC dropout,
    random input transforms, torchbnn and bayesian-torch layers, modules returning (logits, kl): all work unchanged.

    module: the network.
    active: the types of layers that must go on drawing in eval mode; dropout of all kinds by default.
    """
    return ForeignNetwork(module, active)
