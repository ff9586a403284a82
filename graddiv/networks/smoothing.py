"""Gaussian noise that certifies: randomized smoothing (Cohen et al. 2019) and PixelDP (Lecuyer et al. 2019)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.randomized import (
    Noise,
    RandomizedNetwork,
    SampleModel,
    Theta,
    check_noise,
    check_rows,
    opposite,
    running_statistics,
)
from graddiv.networks.sites import Site, SiteNetwork, place
from graddiv.seeding import generator, isolated, numbers


class GaussianSmoothing(RandomizedNetwork):
    """The vote of the sample models cannot change within |delta|_2 < sigma Phi^-1(p), p the share of its winner.

    What this needs: noise of standard deviation sigma on a quantity that moves by at most |delta|_2, and nothing but
    that noise.  `graddiv.evaluation.certificate` bounds p from draws.
    """

    sigma: float


class SmoothedNetwork(GaussianSmoothing):
    """f(x) = module(x + sigma * noise), noise ~ N(0, I), not clipped to the pixel range: the proof does not allow it.

    Its adversary should follow -log E softmax_y (the objective "ensemble"), which is near the vote, not the mean loss.
    """

    def __init__(self, module: nn.Module, shape: tuple[int, ...], sigma: float) -> None:
        super().__init__(module)
        self.shape, self.sigma = shape, sigma

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        z = numbers("normal", seed, batch, math.prod(self.shape), next(self.module.parameters()))
        return {"noise": z.reshape(-1, *self.shape)}

    def mean(self) -> dict[str, Tensor]:
        return {"noise": next(self.module.parameters()).new_zeros(1, *self.shape)}

    def mirrored(self, noise: Noise) -> dict[str, Tensor]:
        return opposite(noise)

    def realise(self, noise: Noise, theta: Theta) -> dict[str, Tensor]:
        return dict(theta.parameters)

    def bind(self, noise: Noise, theta: Theta | None = None) -> SampleModel:
        z = check_noise(noise, {"noise": (None, *self.shape)}, self.device)["noise"]
        return Shifted(super().bind(noise, theta), self.sigma * z.detach())


@dataclass(frozen=True, eq=False)
class Shifted:
    """f(x + shift)."""

    f: SampleModel
    shift: Float[Tensor, "r ..."]
    """One, or one for each example."""

    def __call__(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
        check_rows(len(self.shift), len(x))
        return self.f(x + self.shift)


class FirstLayerNoise(Site):
    """conv(x) / s + sigma * noise with s = sum_uv |W_uv|_F >= |W|_2: what the noise covers moves by at most |delta|_2.

    W_uv is the matrix of the kernel at offset (u, v).  PixelDP projects W instead, and divides by ceil(size / stride).
    """

    defense = "PixelDP"
    after = True

    def __init__(self, layer: nn.Conv2d, sigma: float) -> None:
        super().__init__(layer)
        self.sigma = sigma

    def perturbed(self, h: Float[Tensor, "b ..."], noise: Float[Tensor, "r ..."]) -> Float[Tensor, "b ..."]:
        weight = self.layer.weight
        assert isinstance(weight, Tensor)
        return h / weight.square().sum((0, 1)).sqrt().sum() + self.sigma * noise

    def extra_repr(self) -> str:
        return f"sigma={self.sigma}"


class PixelDPNetwork(SiteNetwork, GaussianSmoothing):
    """Noise on the output of the first convolution, which is scaled to be 1-Lipschitz.

    What follows the noise is post-processing, so the certificate of smoothing holds as it stands; it is much tighter
    than the differential-privacy bound of the PixelDP paper.
    """

    def __init__(self, module: nn.Module, shapes: dict[str, tuple[int, ...]], sigma: float) -> None:
        super().__init__(module, shapes)
        self.sigma = sigma


def smoothing(module: nn.Module, input_shape: Sequence[int], *, sigma: float = 0.25) -> SmoothedNetwork:
    """Add Gaussian noise to the image before `module`, whose input normalization, if any, comes after the noise.

        F = smoothing(module, input_shape=x.shape[1:], sigma=0.25)

    Returns a `RandomizedNetwork` that `graddiv measure RUN --what certificate` can certify.

    module: the network; train it under the same noise.
    input_shape: the shape of one image.
    sigma: the standard deviation of the noise, in pixel units; 0.12 to 1 in the released code.
    """
    return SmoothedNetwork(module, tuple(input_shape), _positive(sigma))


def pixeldp(module: nn.Module, input_shape: Sequence[int], *, sigma: float = 0.25) -> PixelDPNetwork:
    """Scale the first convolution of `module` to be 1-Lipschitz, and add Gaussian noise to its output (in place).

        F = pixeldp(module, input_shape=x.shape[1:], sigma=0.25)

    Returns a `RandomizedNetwork` that `graddiv measure RUN --what certificate` can certify.

    module: the network; its first layer must be a convolution that pads, if at all, with zeros.
    input_shape: the shape of one image.
    sigma: the standard deviation of the noise, in units of the image's l_2 norm.
    """
    _positive(sigma)
    name, first = next(((n, m) for n, m in module.named_modules() if n and isinstance(m, nn.Conv2d)), ("", None))
    if first is None or first.padding_mode != "zeros" or not _comes_first(module, first, tuple(input_shape)):
        raise GradDivError(
            f"{type(module).__name__} does not begin with a convolution that pads with zeros: "
            "only there is it known how much the noise must cover; use smoothing(), with noise on the image"
        )
    shapes = place(module, {name: FirstLayerNoise(first, sigma)}, input_shape)
    return PixelDPNetwork(module, {f"{n}.noise": shape for n, shape in shapes.items()}, sigma)


def _positive(sigma: float) -> float:
    if not (math.isfinite(sigma) and sigma > 0):
        raise GradDivError(f"sigma is {sigma}, expected a positive number")
    return sigma


def _comes_first(module: nn.Module, layer: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the layer is given the image as it is."""
    seen: list[Tensor] = []
    image = torch.rand(1, *shape, generator=generator(0)).to(next(module.parameters()))
    hook = layer.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        with torch.no_grad(), isolated(0), running_statistics(module):
            module(image)
    except RuntimeError as error:
        raise GradDivError(f"input_shape is {shape}, which the module does not take: {error}") from error
    finally:
        hook.remove()
    return len(seen) == 1 and torch.equal(seen[0], image)
