"""Any stochastic `nn.Module` as a `RandomizedNetwork`: its noise is a seed."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import functional_call

from graddiv.errors import GradDivError
from graddiv.networks.inputs import logits_of, norm_layers, running_statistics, switched
from graddiv.networks.randomized import DROPOUT, Noise, RandomizedNetwork, Theta
from graddiv.seeding import isolated


class ForeignNetwork(RandomizedNetwork):
    """f(x) = module(x) with every random generator of the process set from the noise, a seed, and restored after.

    Layers in `active` (dropout) are kept in train mode during the call, so that a module in eval mode still draws.
    """

    def __init__(self, module: nn.Module, active: tuple[type[nn.Module], ...]) -> None:
        super().__init__(module)
        self.active = active
        self._pointwise: bool | None = None

    @property
    def pointwise(self) -> bool:
        """Found by test at the first call with two rows or more: f(x)[1:] == f(x[1:]).  Until then, False."""
        return self._pointwise is True

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> int:
        return seed

    def bind(self, noise: Noise, theta: Theta | None = None) -> "SeededModel":
        if not isinstance(noise, int):
            raise GradDivError(
                f"noise is a set of {len(noise)} tensors, but the noise of a foreign module is a seed: "
                "make it with F.draw(seed)"
            )
        return SeededModel(self, self.realise(noise, theta or self.theta()), noise)

    def find_out_pointwise(self, x: Float[Tensor, "b ..."]) -> None:
        """Find out, at the first batch of two rows or more, whether the network is pointwise."""
        if self._pointwise is None and len(x) > 1:
            self._pointwise = False  # set now, because the calls below come back here
            x = x[torch.arange(8, device=x.device) % len(x)]
            with torch.no_grad(), running_statistics(self):
                models = self.sample(4, seed=0)
                self._pointwise = all(torch.allclose(f(x)[1:], f(x[1:]), rtol=1e-4, atol=1e-5) for f in models)


@dataclass(frozen=True, eq=False)
class SeededModel:
    """The sample model of a foreign network: its module, called with these parameters and this seed."""

    network: ForeignNetwork
    parameters: dict[str, Tensor] = field(repr=False)
    seed: int

    def __call__(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
        module = self.network.module
        # Own copies of the buffers: some layers (bayesian-torch) write noise into one, which would change the gradients
        # of other sample models.  Batch norm alone may move its statistics.
        statistics = {id(b) for norm in norm_layers(module) for b in norm.buffers(recurse=False)}
        scratch = {name: b.clone() for name, b in module.named_buffers() if id(b) not in statistics}
        active = (m for m in module.modules() if isinstance(m, self.network.active))
        with isolated(self.seed), switched(active, training=True):
            output = functional_call(module, {**self.parameters, **scratch}, (x,))
        logits = logits_of(output, type(module).__name__, len(x))
        self.network.find_out_pointwise(x)
        return logits


def randomize(module: nn.Module, *, active: tuple[type[nn.Module], ...] = DROPOUT) -> ForeignNetwork:
    """Make a `RandomizedNetwork` of any stochastic module that draws from the global random state when called.

        F = randomize(model)  # a module with dropout, say
        label = F.predict(x).label

    Returns a `RandomizedNetwork` whose noise is the seed of the generators of torch, NumPy and Python.

    MC dropout, random input transforms, torchbnn and bayesian-torch layers, modules returning (logits, kl): all work
    unchanged.

    module: the network.
    active: the types of layers that must go on drawing in eval mode; dropout of all kinds by default.
    """
    return ForeignNetwork(module, active)
