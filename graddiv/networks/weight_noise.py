"""What networks with Gaussian noise on their weights have in common (Adv-BNN, PNI)."""

import warnings
from abc import abstractmethod
from dataclasses import replace

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from graddiv.errors import GradDivWarning
from graddiv.networks.randomized import Noise, RandomizedNetwork, Theta, check_noise, opposite
from graddiv.seeding import generator


class WeightNoise(RandomizedNetwork):
    """w~ = w + scale(w) * noise, noise ~ N(0, I), for the parameters in `names`; the others are deterministic."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__(module)
        self.names = names
        module.register_forward_pre_hook(_WarnOfMeanNetwork(type(self).__name__, names[0]))

    @abstractmethod
    def scale(self, name: str) -> Tensor:
        """Return the standard deviation of the parameter `name`, in its shape or one that broadcasts to it."""

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        g, w = generator(seed, self.device), dict(self.module.named_parameters())
        return {name: standard_normal(w[name], g) for name in self.names}

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


class _WarnOfMeanNetwork:
    """Says once that the module itself, called in training, is the network without noise: its sigma learns nothing.

    A sample model calls it with tensors in the place of its parameters, so a parameter in its own place tells of a call
    from outside.
    """

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name, self.told = kind, name, False

    def __call__(self, module: nn.Module, inputs: object) -> None:
        if self.told or not (module.training and torch.is_grad_enabled()):
            return
        owner, _, name = self.name.rpartition(".")
        if isinstance(module.get_submodule(owner)._parameters[name], nn.Parameter):
            self.told = True
            warnings.warn(
                f"the module inside a {self.kind} was called by itself in training: that is the network without its "
                "noise, whose scale then learns nothing; write Objective(F, examples=N)(x, y, step=step), or "
                "F.bind(F.draw(step))(x) for a sample model (.eval() or no_grad to look at the mean on purpose)",
                GradDivWarning,
                stacklevel=4,
            )


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
