"""What networks with Gaussian noise on their weights have in common (Adv-BNN, PNI)."""

from abc import abstractmethod
from dataclasses import replace

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from graddiv.networks.randomized import Noise, RandomizedNetwork, Theta, check_noise, opposite
from graddiv.seeding import generator


class WeightNoise(RandomizedNetwork):
    """w~ = w + scale(w) * noise, noise ~ N(0, I), for the parameters in `names`; the others are deterministic."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__(module)
        self.names = names

    @abstractmethod
    def scale(self, name: str) -> Tensor:
        """Return the standard deviation of the parameter `name`, in its shape or one that broadcasts to it."""

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        g = generator(seed, self.device)
        return {name: standard_normal(self.module.get_parameter(name), g) for name in self.names}

    def mean(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(self.module.get_parameter(name)) for name in self.names}

    def mirrored(self, noise: Noise) -> dict[str, Tensor]:
        return opposite(noise)

    def theta(self) -> Theta:
        return replace(super().theta(), scales={name: self.scale(name) for name in self.names})

    def realise(self, noise: Noise, theta: Theta) -> dict[str, Tensor]:
        w = dict(theta.parameters)
        noise = check_noise(noise, {name: tuple(w[name].shape) for name in self.names}, self.device)
        return w | {name: perturbed(w[name], theta.scales[name], noise[name]) for name in self.names}


def perturbed(w: Tensor, scale: Tensor, noise: Tensor) -> Tensor:
    """w + scale * noise, stored in memory as w is.

    Left to itself, torch stores a weight of one input channel anew in the default format, which fits it too; the first
    convolution is then not taken for channels_last.
    """
    if torch.is_grad_enabled():  # no `out` for what is differentiated
        return torch.addcmul(w, scale, noise)
    return torch.addcmul(w, scale, noise, out=torch.empty_like(w))


def standard_normal(like: Tensor, g: torch.Generator) -> Tensor:
    """Draw N(0, I) in the shape of `like`: the same numbers whatever memory format `like` is stored in."""
    noise = torch.randn(like.shape, generator=g, dtype=like.dtype, device=like.device)
    if like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last):
        noise = noise.contiguous(memory_format=torch.channels_last)
    return noise


def parameter_key(name: str) -> str:
    """Return the parameter's name as a key of an `nn.ParameterDict`, which admits no dot."""
    return name.replace(".", "/")
