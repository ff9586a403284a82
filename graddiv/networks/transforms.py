"""Random resizing with padding (Xie et al. 2018) and random crops (Guo et al. 2018), before the network sees the image.

Both are linear in the image and have few outcomes, so their gradients are exact and expectations are sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.randomized import Noise, RandomizedNetwork, SampleModel, Support, Theta, check_noise, check_rows
from graddiv.seeding import uniform


class Stretch(NamedTuple):
    """Pixels [start, start + length) of an axis, resampled to [to, to + size) of the axis of the network's input."""

    start: int
    length: int
    to: int
    size: int

    def matrix(self, pixels: int, canvas: int) -> Float64[Tensor, "canvas pixels"]:
        """Return the bilinear resampling of this axis; rows outside [to, to + size) are 0."""
        at = (torch.arange(self.size, dtype=torch.float64) + 0.5) * self.length / self.size - 0.5
        at = at.clamp(0, self.length - 1)
        low = at.floor().long()
        matrix = torch.zeros(canvas, pixels, dtype=torch.float64)
        rows = self.to + torch.arange(self.size)
        matrix.index_put_((rows, self.start + low), 1 - (at - low), accumulate=True)
        matrix.index_put_((rows, self.start + (low + 1).clamp_max(self.length - 1)), at - low, accumulate=True)
        return matrix


class TransformNetwork(RandomizedNetwork):
    """f(x) = module(R x C^T + padding outside), the pair of matrices (R, C) one of finitely many.

    Which one is the noise; an adversary can sum over `support`.  With `draw(seed, batch=ids)` each image has its own.
    """

    rows: Tensor
    columns: Tensor

    def __init__(
        self,
        module: nn.Module,
        outcomes: Sequence[tuple[Stretch, Stretch]],
        probabilities: Float64[Tensor, " k"],
        pixels: int,
        canvas: int,
        padding: float,
    ) -> None:
        super().__init__(module)
        self.outcomes, self.probabilities, self.padding = tuple(outcomes), probabilities, padding
        like = next(module.parameters())
        for name, axis in (("rows", 0), ("columns", 1)):
            matrices = torch.stack([outcome[axis].matrix(pixels, canvas) for outcome in outcomes])
            self.register_buffer(name, matrices.to(like), persistent=False)

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        u = uniform(seed, torch.tensor([-1]) if batch is None else batch.cpu(), 1)[:, 0]
        outcome = torch.searchsorted(self.probabilities.cumsum(0), u, right=True)
        return {"outcome": outcome.clamp_max(len(self.outcomes) - 1).to(self.device)}

    def support(self) -> Support:
        everything = torch.arange(len(self.outcomes), device=self.device)
        return Support([{"outcome": i[None]} for i in everything], self.probabilities)

    def realise(self, noise: Noise, theta: Theta) -> dict[str, Tensor]:
        return dict(theta.parameters)

    def bind(self, noise: Noise, theta: Theta | None = None) -> SampleModel:
        outcome = check_noise(noise, {"outcome": (None,)}, self.device)["outcome"]
        if (last := int(outcome.max())) >= len(self.outcomes) or int(outcome.min()) < 0:
            raise GradDivError(f"noise names outcome {last} of {len(self.outcomes)}: it belongs to another network")
        return Transformed(super().bind(noise, theta), self.rows[outcome], self.columns[outcome], self.padding)


@dataclass(frozen=True, eq=False)
class Transformed:
    """f(R x C^T + padding (1 - (R 1)(C 1)^T)): the rows of R and C that hold the image sum to 1, the others are 0."""

    f: SampleModel
    rows: Float[Tensor, "r canvas pixels"]
    """One, or one for each example."""
    columns: Float[Tensor, "r canvas pixels"]
    padding: float

    def __call__(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        check_rows(len(self.rows), len(x))
        R, C = self.rows[:, None].to(x.dtype), self.columns[:, None].to(x.dtype)
        if x.shape[2:] != (R.shape[3], C.shape[3]):
            raise GradDivError(
                f"images are {tuple(x.shape[2:])}, expected {(R.shape[3], C.shape[3])}, as input_shape said"
            )
        covered = R.sum(3, keepdim=True) @ C.sum(3, keepdim=True).mT
        return self.f(R @ x @ C.mT + self.padding * (1 - covered))


def resize_and_pad(
    module: nn.Module, input_shape: Sequence[int], *, margin: int = 4, shrink: bool = False, padding: float = 0.5
) -> TransformNetwork:
    """Resize the image to r x r and put it somewhere on a canvas of constant brightness (Xie et al. 2018).

        F = resize_and_pad(module, input_shape=x.shape[1:], shrink=True)

    Returns a `RandomizedNetwork` whose noise chooses size and place.

    r is uniform over its sizes, the place uniform over all.  Bilinear, with both ends of the offsets included.  No
    training is needed.

    module: any trained network that takes the canvas.
    input_shape: the shape of one image, (c, h, w) with h = w.
    margin: the canvas has `margin` more pixels a side than the image, and r goes from the image's size to one less than
        the canvas: 36 for 32 in CIFAR-10, as in DEEPSEC.
    shrink: for networks with a fixed input size, a variant of ours: the canvas is as large as the image, and r goes
        from `margin` below it to its size.
    padding: the brightness around the image.  Mid-grey: the papers say zeros, but pad after scaling to [-1, 1].
    """
    size = _side(input_shape)
    if margin < 1 or (shrink and margin >= size):
        raise GradDivError(f"margin is {margin} for images of {size} pixels a side, expected 1 to {size - 1}")
    canvas = size if shrink else size + margin
    sizes = range(size - margin, size + 1) if shrink else range(size, canvas)
    outcomes, probabilities = [], []
    for r in sizes:
        places = [Stretch(0, size, to, r) for to in range(canvas - r + 1)]
        outcomes += [(top, left) for top in places for left in places]
        probabilities += [1 / len(sizes) / len(places) ** 2] * len(places) ** 2
    return TransformNetwork(module, outcomes, torch.tensor(probabilities, dtype=torch.float64), size, canvas, padding)


def random_crops(module: nn.Module, input_shape: Sequence[int], *, margin: int = 2) -> TransformNetwork:
    """Classify a random crop of the image, resized to the image's size (Guo et al. 2018).

        F = random_crops(module, input_shape=x.shape[1:])

    Returns a `RandomizedNetwork` whose noise chooses the crop.

    module: the network; train it on such crops.
    input_shape: the shape of one image, (c, h, w) with h = w.
    margin: how many pixels a side a crop lacks; there are (margin + 1)^2 crops, all equally likely.
    """
    size = _side(input_shape)
    if not 1 <= margin < size:
        raise GradDivError(f"margin is {margin} for images of {size} pixels a side, expected 1 to {size - 1}")
    places = [Stretch(start, size - margin, 0, size) for start in range(margin + 1)]
    outcomes = [(top, left) for top in places for left in places]
    uniformly = torch.full((len(outcomes),), 1 / len(outcomes), dtype=torch.float64)
    return TransformNetwork(module, outcomes, uniformly, size, size, padding=0.0)


def _side(input_shape: Sequence[int]) -> int:
    if len(input_shape) != 3 or input_shape[1] != input_shape[2]:
        raise GradDivError(f"input_shape is {tuple(input_shape)}, expected (channels, side, side)")
    return input_shape[1]
