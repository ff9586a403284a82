"""Local reparametrization (Kingma et al. 2015): less noisy input gradients of Bayesian networks with linear layers."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear

from graddiv.errors import GradDivError
from graddiv.networks.gaussian import GaussianNetwork
from graddiv.networks.randomized import Noise, RandomizedNetwork, Theta, check_noise, opposite
from graddiv.networks.weight_noise import perturbed, standard_normal
from graddiv.seeding import generator


class LocalGaussian(RandomizedNetwork):
    """b = M a + sqrt(S^2 a^2) z, z ~ N(0, I) for each output, in place of b = (M + S noise) a in linear layers.

    The outputs have the law that they had for any one x, and so the mean of the input gradient is the same; its
    variance is less, since the noise of all weights that lead to an output is summed before it is drawn.
    """

    def __init__(self, F: GaussianNetwork, layers: list[str]) -> None:
        super().__init__(F.module)
        self.of, self.layers = F, layers
        inside = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
        self.names = [name for name in F.names if name not in inside]

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        g = generator(seed, self.device)
        weights = {name: standard_normal(self.module.get_parameter(name), g) for name in self.names}
        like = {layer: self.module.get_parameter(f"{layer}.weight")[:, 0] for layer in self.layers}
        return weights | {layer: standard_normal(like[layer], g) for layer in self.layers}

    def mean(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(value) for name, value in self.draw(0).items()}

    def mirrored(self, noise: Noise) -> dict[str, Tensor]:
        return opposite(noise)

    def theta(self) -> Theta:
        return self.of.theta()

    def realise(self, noise: Noise, theta: Theta) -> dict[str, Tensor]:
        w, sigma = dict(theta.parameters), theta.scales
        shapes = {name: tuple(w[name].shape) for name in self.names}
        shapes |= {layer: tuple(w[f"{layer}.weight"].shape[:1]) for layer in self.layers}
        noise = check_noise(noise, shapes, self.device)
        of_local = {
            name: value.view_as(value) for name, value in w.items()
        }  # no parameters: else the module warns of a call from outside
        return of_local | {name: perturbed(w[name], sigma[name], noise[name]) for name in self.names}

    def bind(self, noise: Noise, theta: Theta | None = None) -> "LocalModel":
        theta = theta or self.theta()
        tensors = self.realise(noise, theta)
        assert not isinstance(noise, int)
        return LocalModel(self, tensors, theta, {layer: noise[layer] for layer in self.layers})


@dataclass(frozen=True, eq=False)
class LocalModel:
    """A sample model: the mean weights in the local layers, and the noise of their outputs."""

    network: LocalGaussian
    tensors: dict[str, Tensor] = field(repr=False)
    theta: Theta = field(repr=False)
    z: dict[str, Tensor] = field(repr=False)

    def __call__(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
        with self._noisy_outputs():
            logits: Tensor = functional_call(self.network.module, self.tensors, (x,))
        return logits

    def _hook(self, layer: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], Tensor]:
        variance = self.theta.scales[f"{layer}.weight"].square()
        of_bias = self.theta.scales.get(f"{layer}.bias")

        def add_noise(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
            (a,) = args
            if a.dim() != 2:
                raise GradDivError(
                    f"layer {layer!r} met an input of shape {tuple(a.shape)}, expected b x features: "
                    "positions that share weights are correlated, and local reparametrization would lose that"
                )
            total = linear(a.square(), variance, None if of_bias is None else of_bias.square())
            return output + total.clamp_min(torch.finfo(total.dtype).tiny).sqrt() * self.z[layer]

        return add_noise

    @contextmanager
    def _noisy_outputs(self) -> Iterator[None]:
        """Let the local layers add sqrt(S^2 a^2) z to their output M a."""
        hooks = [self.network.module.get_submodule(layer).register_forward_hook(self._hook(layer)) for layer in self.z]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def local_reparametrization(F: GaussianNetwork, layers: Iterable[str] | None = None) -> LocalGaussian:
    """The same network for the eyes of an adversary, whose input gradients have the same mean and less variance.

    F: a Bayesian network.
    layers: which linear layers; all whose weights are random if None.

    Only linear layers: at the positions of a convolution the same weights are used, so that its outputs are correlated;
    drawn apart they would have another law, and the gradient another mean.
    """
    random = {name for name, m in F.module.named_modules() if f"{name}.weight" in F.names}
    linear_ones = [name for name in sorted(random) if isinstance(F.module.get_submodule(name), nn.Linear)]
    chosen = linear_ones if layers is None else list(layers)
    for name in chosen:
        if name not in linear_ones:
            kind = type(F.module.get_submodule(name)).__name__ if name in random else "no layer with random weights"
            raise GradDivError(
                f"layer {name!r} is {kind}, expected linear layers only "
                f"({', '.join(map(repr, linear_ones)) or 'there are none'}): "
                "outputs of a convolution share weights, and local reparametrization is biased there"
            )
    if not chosen:
        raise GradDivError(f"{type(F.module).__name__} has no linear layer with random weights to reparametrize")
    return LocalGaussian(F, chosen)
