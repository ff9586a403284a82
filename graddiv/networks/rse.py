"""Random self-ensemble (Liu et al. 2018): Gaussian noise on the input of every convolution."""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.architectures import Normalize
from graddiv.networks.randomized import (
    Noise,
    RandomizedNetwork,
    Theta,
    check_noise,
    check_rows,
    opposite,
    running_statistics,
)
from graddiv.seeding import isolated, normal


class NoiseSite(nn.Module):
    """layer(x + sigma * noise); the noise is handed in by `bind` and is never part of the state_dict."""

    def __init__(self, layer: nn.Module, sigma: float) -> None:
        super().__init__()
        self.layer = layer
        self.sigma = sigma
        self.register_buffer("noise", None, persistent=False)

    def forward(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        noise = self._buffers["noise"]
        if noise is None:
            raise GradDivError(
                "an RSE module was called without noise: call a sample model, f = F.bind(F.draw(seed)), then f(x)"
            )
        check_rows(len(noise), len(x))
        if noise.shape[1:] != x.shape[1:]:
            raise GradDivError(
                f"RSE noise was made for activations of shape {tuple(noise.shape[1:])} but met {tuple(x.shape[1:])}: "
                "pass the true input_shape to rse()"
            )
        output: Tensor = self.layer(torch.add(x, noise, alpha=self.sigma))
        return output

    def extra_repr(self) -> str:
        return f"sigma={self.sigma}"


class RSENetwork(RandomizedNetwork):
    """h <- h + sigma * noise, noise ~ N(0, I), before every convolution, in training and in inference alike.

    With `draw(seed, batch=ids)` each example has noise of its own, as in RSE's training; without, one noise value
    serves every x: the law for an example is the same, and the sample model is a function.
    """

    def __init__(self, module: nn.Module, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__(module)
        self.shapes = shapes

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        noise = normal(seed, batch, sum(sizes), next(self.module.parameters()))
        parts = torch.split_with_sizes(noise, sizes, dim=1)
        shaped = [part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes.values(), strict=True)]
        return dict(zip(self.shapes, shaped, strict=True))

    def mean(self) -> dict[str, Tensor]:
        like = next(self.module.parameters())
        return {
            site: torch.zeros(1, *shape, dtype=like.dtype, device=like.device) for site, shape in self.shapes.items()
        }

    def mirrored(self, noise: Noise) -> dict[str, Tensor]:
        return opposite(noise)

    def realise(self, noise: Noise, theta: Theta) -> dict[str, Tensor]:
        noise = check_noise(noise, {site: (None, *shape) for site, shape in self.shapes.items()}, self.device)
        return {**theta.parameters, **noise}


def rse(
    module: nn.Module, input_shape: Sequence[int], *, sigma_init: float = 0.2, sigma_inner: float = 0.1
) -> RSENetwork:
    """Insert a noise site before every convolution of `module` (in place); the first has sigma_init, in pixel units.

    module: the network; it must contain a convolution.
    input_shape: the shape of one image, (c, h, w), from which the shape of the noise at each site follows.
    sigma_init: the standard deviation of the noise on the image; 0.2 as in RSE.  Input normalization comes after this
        noise, so that it means the same with and without normalization.
    sigma_inner: the standard deviation of the noise at the later sites, in units of the activations; 0.1 as in RSE.
    """
    for name, value in (("sigma_init", sigma_init), ("sigma_inner", sigma_inner)):
        if not (math.isfinite(value) and value >= 0):
            raise GradDivError(f"{name} is {value}, expected a number >= 0")
    if any(isinstance(m, NoiseSite) for m in module.modules()):
        raise GradDivError(f"{type(module).__name__} has noise sites already: rse() was called on it before")
    sites = _insert_sites(module, sigma_inner)
    try:
        shapes = _activation_shapes(module, sites, tuple(input_shape))
    except RuntimeError as error:
        _remove_sites(module, sites)
        raise GradDivError(f"input_shape is {tuple(input_shape)}, which the module does not take: {error}") from error
    except GradDivError:
        _remove_sites(module, sites)
        raise
    names = list(shapes)
    if isinstance(sites[names[0]].layer, Normalize) and len(names) > 1:  # its site serves the first convolution
        _remove_sites(module, {names[1]: sites[names[1]]})
        del shapes[names[1]]
    sites[names[0]].sigma = sigma_init
    return RSENetwork(module, {f"{name}.noise": shape for name, shape in shapes.items()})


def _insert_sites(module: nn.Module, sigma: float) -> dict[str, NoiseSite]:
    """Wrap every convolution, and normalization, in a site; the sites by the first name of what they wrap."""
    layers = {n: m for n, m in module.named_modules() if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d, Normalize))}
    if not any(name and not isinstance(m, Normalize) for name, m in layers.items()):
        raise GradDivError(f"{type(module).__name__} has no convolution inside: RSE adds noise before convolutions")
    sites = {name: NoiseSite(layer, sigma) for name, layer in layers.items()}
    _replace(module, {site.layer: site for site in sites.values()})
    return sites


def _remove_sites(module: nn.Module, sites: dict[str, NoiseSite]) -> None:
    _replace(module, {site: site.layer for site in sites.values()})


def _replace(module: nn.Module, new: Mapping[nn.Module, nn.Module]) -> None:
    """Put new[m] in the place of every m, under each of its names."""
    for parent in list(module.modules()):
        for name, child in parent._modules.items():  # named_children() leaves out second names
            if child is not None and child in new and parent is not new[child]:
                parent._modules[name] = new[child]


def _activation_shapes(
    module: nn.Module, sites: dict[str, NoiseSite], input_shape: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
    """Return, in order of execution, the shape of what enters each site: found by running one blank image."""
    shapes: dict[str, tuple[int, ...]] = {}

    def record_shape(name: str, x: Tensor) -> None:
        if name in shapes:
            raise GradDivError(
                f"convolution {name!r} is used twice in one pass: RSE needs one noise value for each use"
            )
        shapes[name] = tuple(x.shape[1:])
        sites[name].register_buffer("noise", torch.zeros_like(x), persistent=False)

    hooks = [
        site.register_forward_pre_hook(lambda _, args, name=name: record_shape(name, args[0]))
        for name, site in sites.items()
    ]
    parameter = next(module.parameters())
    blank = torch.zeros(1, *input_shape, device=parameter.device, dtype=parameter.dtype)
    try:
        with torch.no_grad(), isolated(0), running_statistics(module):
            module(blank)
    finally:
        for hook, site in zip(hooks, sites.values(), strict=True):
            hook.remove()
            site.register_buffer("noise", None, persistent=False)
    return shapes
