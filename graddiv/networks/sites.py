"""Noise inside a network: sites around its layers, to which `bind` hands the noise (RSE, PNI, dropout, SAP)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.randomized import (
    Noise,
    RandomizedNetwork,
    Theta,
    check_noise,
    check_rows,
    opposite,
    running_statistics,
)
from graddiv.seeding import Law, isolated, numbers


class Site(nn.Module, ABC):
    """layer(h~), or with `after` the ~ of layer(x): h~ is h perturbed by noise, which is no part of the state_dict."""

    defense: ClassVar[str]
    """Whose site it is, for messages."""
    after: ClassVar[bool] = False
    """Whether the output of the layer is perturbed, not its input."""
    optional: ClassVar[bool] = False
    """Whether noise without rows stands for a layer without noise."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("noise", None, persistent=False)
        self.visits: list[tuple[Site, tuple[int, ...]]] | None = None
        """While the network is measured, where the site says what shape it met."""

    @abstractmethod
    def perturbed(self, h: Float[Tensor, "b ..."], noise: Float[Tensor, "r ..."]) -> Float[Tensor, "b ..."]:
        """Return h~; the noise has one row, or one for each example."""

    def noise_shape(self, activation: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the noise for one activation of this shape: the same, unless units share noise."""
        return activation

    def forward(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        output: Tensor = self._noisy(self.layer(x)) if self.after else self.layer(self._noisy(x))
        return output

    def _noisy(self, h: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        shape = self.noise_shape(tuple(h.shape[1:]))
        if self.visits is not None:
            self.visits.append((self, shape))
            return h
        noise = self._buffers["noise"]
        if noise is None:
            raise GradDivError(
                f"a module with {self.defense} noise was called without noise: "
                "call a sample model, f = F.bind(F.draw(seed)), then f(x)"
            )
        if noise.shape[1:] != shape:
            raise GradDivError(
                f"{self.defense} noise was made for activations of shape {tuple(noise.shape[1:])} but met {shape}: "
                "pass the true input_shape"
            )
        if len(noise) > 0 or not self.optional:
            check_rows(len(noise), len(h))
        return self.perturbed(h, noise)


class SiteNetwork(RandomizedNetwork):
    """Noise ~ N(0, I) at each site, unless the `law` is another.

    With `draw(seed, batch=ids)` each example has noise of its own; without, one noise value serves every x: the law for
    an example is the same, and the sample model is a function.
    """

    law: ClassVar[Law] = "normal"

    def __init__(self, module: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(module)
        self.shapes = dict(shapes)

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        noise = numbers(self.law, seed, batch, sum(sizes), next(self.module.parameters()))
        parts = torch.split_with_sizes(noise, sizes, dim=1)
        shaped = [part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes.values(), strict=True)]
        return dict(zip(self.shapes, shaped, strict=True))

    def mean(self) -> dict[str, Tensor]:
        like = next(self.module.parameters())
        return {
            site: torch.zeros(1, *shape, dtype=like.dtype, device=like.device) for site, shape in self.shapes.items()
        }

    def mirrored(self, noise: Noise) -> dict[str, Tensor] | None:
        return opposite(noise)

    def realise(self, noise: Noise, theta: Theta) -> dict[str, Tensor]:
        noise = check_noise(noise, {site: (None, *shape) for site, shape in self.shapes.items()}, self.device)
        return {**theta.parameters, **noise}


S = TypeVar("S", bound=Site)


def place(module: nn.Module, sites: Mapping[str, S], input_shape: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Put each site in the place of the layer of that name; return, in order of execution, the shape of their noise.

    The shapes are found by running one blank image; where that fails the module is left as it was.
    """
    if any(isinstance(m, Site) for m in module.modules()):
        defense = next(iter(sites.values())).defense
        raise GradDivError(f"{type(module).__name__} has noise sites already: {defense} was put on it before")
    replace(module, {site.layer: site for site in sites.values()})
    try:
        return _shapes(module, sites, tuple(input_shape))
    except RuntimeError as error:
        remove(module, sites)
        raise GradDivError(f"input_shape is {tuple(input_shape)}, which the module does not take: {error}") from error
    except Exception:
        remove(module, sites)
        raise


def remove(module: nn.Module, sites: Mapping[str, Site]) -> None:
    """Put the layers back in the place of their sites."""
    replace(module, {site: site.layer for site in sites.values()})


def replace(module: nn.Module, new: Mapping[nn.Module, nn.Module]) -> None:
    """Put new[m] in the place of every m, under each of its names."""
    for parent in list(module.modules()):
        for name, child in parent._modules.items():  # named_children() leaves out second names
            if child is not None and child in new and parent is not new[child]:
                parent._modules[name] = new[child]


def _shapes(module: nn.Module, sites: Mapping[str, Site], input_shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    visits: list[tuple[Site, tuple[int, ...]]] = []
    for site in sites.values():
        site.visits = visits
    parameter = next(module.parameters())
    blank = torch.zeros(1, *input_shape, device=parameter.device, dtype=parameter.dtype)
    try:
        with torch.no_grad(), isolated(0), running_statistics(module):
            module(blank)
    finally:
        for site in sites.values():
            site.visits = None
    names, found = {site: name for name, site in sites.items()}, {}
    for site, shape in visits:
        if (name := names[site]) in found:
            raise GradDivError(
                f"layer {name!r} is used twice in one pass: {site.defense} needs one noise value for each use"
            )
        found[name] = shape
    return found
