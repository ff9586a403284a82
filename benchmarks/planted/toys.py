"""Images of four classes, 6 x 6 pixels, told apart by a linear network: what fools it is known in closed form."""

from functools import cache

import torch
from torch import Tensor, nn

from benchmarks.planted.record import Planted
from graddiv.geometry import NORMS
from graddiv.seeding import generator

CLASSES, SIDE, SCALE = 4, 6, 3.0
PROTOTYPES = torch.rand(CLASSES, 1, SIDE, SIDE, generator=generator(1)).round() * 2 - 1


def examples(b: int = 60) -> tuple[Tensor, Tensor]:
    """x = 0.5 + 0.15 prototype + noise: far from the edges of the box."""
    y = torch.arange(b) % CLASSES
    return 0.5 + 0.15 * PROTOTYPES[y] + 0.05 * torch.randn(b, 1, SIDE, SIDE, generator=generator(2)), y


@cache
def images() -> tuple[Tensor, Tensor]:
    return examples(80)


class Linear(nn.Module):
    """z_k = scale <x - 1/2, prototype_k>."""

    def __init__(self, scale: float = SCALE) -> None:
        super().__init__()
        self.weight = nn.Parameter(scale * PROTOTYPES.flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5).flatten(1) @ self.weight.T


def margin_radii(x: Tensor, y: Tensor, norm: str = "linf") -> Tensor:
    """The distance of each image from the nearest boundary, in closed form."""
    return _radii(x, y, norm).amin(1)


def _radii(x: Tensor, y: Tensor, norm: str) -> Tensor:
    """Its distance from the boundary to each other class; infinite for its own."""
    module = Linear()
    with torch.no_grad():
        z = module(x)
        gaps = z.gather(1, y[:, None]) - z
        differences = module.weight[y][:, None] - module.weight[None]
        lengths = torch.linalg.vector_norm(differences, ord=NORMS[norm].q, dim=2)
    return (gaps / lengths.clamp_min(1e-9)).scatter(1, y[:, None], torch.inf)


def radius(share: float, norm: str = "linf") -> float:
    """A radius at which the linear network keeps this share of the images right."""
    return round(float(margin_radii(*images(), norm).quantile(1 - share)), 4)


def shortest_way(planted: Planted) -> Tensor:
    """Toward the nearest boundary, as far as the radius allows: fools the linear network wherever it can be fooled."""
    (x, y), module, geometry = planted.images(), Linear(), NORMS[planted.norm]
    nearest = _radii(x, y, planted.norm).argmin(1)
    direction = (module.weight[nearest] - module.weight[y]).detach().view_as(x)
    epsilon = torch.full((len(x),), planted.epsilon, dtype=torch.float64)
    moved = geometry.project(x + geometry.steepest(direction, epsilon.float()), x, epsilon.float())
    return geometry.shrink(moved, x, epsilon)


def proved_share(planted: Planted) -> float:
    """The share of images farther from every boundary than the radius."""
    return float((margin_radii(*planted.images(), planted.norm) > planted.epsilon).double().mean())
