"""Any stochastic `nn.Module` as a `RandomizedNetwork`: its noise is a seed."""

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import functional_call

from graddiv.errors import GradDivError
from graddiv.networks.inputs import logits_of, norm_layers, running_statistics, switched
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
        parameters = (theta or self.theta()).parameters
        return lambda x: self._call(x, parameters, noise)

    def _call(self, x: Float[Tensor, "b ..."], parameters: Mapping[str, Tensor], seed: int) -> Float[Tensor, "b c"]:
        # Own copies of the buffers, but for batch norm's statistics: some layers (bayesian-torch) write noise into one,
        # which would change the gradients of other sample models.
        statistics = {id(b) for norm in norm_layers(self.module) for b in norm.buffers(recurse=False)}
        scratch = {name: b.clone() for name, b in self.module.named_buffers() if id(b) not in statistics}
        active = (m for m in self.module.modules() if isinstance(m, self.active))
        with isolated(seed), switched(active, training=True):
            output = functional_call(self.module, {**parameters, **scratch}, (x,))
        logits = logits_of(output, type(self.module).__name__, len(x))
        if not self._tested and len(x) > 1:
            self._tested = True  # set now, because the calls below, f(x)[1:] == f(x[1:]), come back here
            x = x[torch.arange(8, device=x.device) % len(x)]
            with torch.no_grad(), running_statistics(self):
                models = self.sample(4, seed=0)
                self.pointwise = all(torch.allclose(f(x)[1:], f(x[1:]), rtol=1e-4, atol=1e-5) for f in models)
        return logits


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
