"""Noise on the image before the network sees it: smoothing, PixelDP, random resizing and crops, mixup inference.

Cohen 2019 and Lecuyer 2019; Xie 2018 and Guo 2018; Pang 2020 (all et al.).  See docs/zoo.md, docs/equations.md.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.nn.functional import interpolate

from graddiv.errors import GradDivError
from graddiv.networks.activations import Site, SiteNetwork, an_image, find
from graddiv.networks.defense import WithoutNoise, defense
from graddiv.networks.randomized import Noise, RandomizedNetwork, RowNoise, SampleModel, Support, Theta, check_rows
from graddiv.registries import Count, Positive, PositiveShare, Share, checked
from graddiv.seeding import uniform

Partners = Literal["OL", "PL"]
Pool = tuple[Float[Tensor, "n ..."], Int64[Tensor, " n"]]


class InputNoise(RowNoise):
    """f(x) = module(x changed by noise): the weights are not random."""

    @abstractmethod
    def changed(self, x: Tensor, noise: Mapping[str, Tensor], f: SampleModel) -> Tensor:
        """Return what the network sees instead of x; f is the network."""

    def bind(self, noise: Noise, theta: Theta | None = None) -> SampleModel:
        f, values = super().bind(noise, theta), self.checked(noise)

        def model(x: Float[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
            check_rows(len(next(iter(values.values()))), len(x))
            return f(self.changed(x, values, f))

        return model


class GaussianSmoothing(RandomizedNetwork):
    """The vote of the sample models cannot change within |delta|_2 < sigma Phi^-1(p), p the share of its winner.

    This needs noise of standard deviation sigma, and no other, on a quantity that moves by at most |delta|_2.
    """

    sigma: float


class SmoothedNetwork(InputNoise, GaussianSmoothing):
    """f(x) = module(x + sigma * noise), noise ~ N(0, I), not clipped to the pixel range, as the proof needs it."""

    def changed(self, x: Tensor, noise: Mapping[str, Tensor], f: SampleModel) -> Tensor:
        return x + self.sigma * noise["noise"].detach()


class FirstLayerNoise(Site):
    """conv(x) / s + sigma * noise with s = sum_uv |W_uv|_F >= |W|_2, W_uv the matrix of the kernel at offset (u, v)."""

    defense = "PixelDP"
    after = True
    sigma: float

    def perturbed(self, h: Float[Tensor, "b ..."], noise: Float[Tensor, "r ..."]) -> Float[Tensor, "b ..."]:
        weight = self.layer.weight
        assert isinstance(weight, Tensor)
        return h / weight.square().sum((0, 1)).sqrt().sum() + self.sigma * noise


class PixelDPNetwork(SiteNetwork, GaussianSmoothing):
    """Noise on the output of the first convolution, scaled to be 1-Lipschitz: the certificate of smoothing holds."""


@defense("smoothing")
def smoothing(module: nn.Module, input_shape: Sequence[int], *, sigma: Positive = 0.25) -> SmoothedNetwork:
    """Add Gaussian noise to the image before `module`, whose input normalization, if any, comes after the noise.

        F = smoothing(module, input_shape=x.shape[1:], sigma=0.25)

    Returns a `RandomizedNetwork` that `graddiv measure RUN --what certificate` can certify.

    module, input_shape: the network, to be trained under the same noise, and the shape of one image.
    sigma: the standard deviation of the noise, in pixel units; 0.12 to 1 in the released code.
    """
    return SmoothedNetwork(module, {"noise": tuple(input_shape)}, sigma=sigma)


@defense("pixeldp")
def pixeldp(module: nn.Module, input_shape: Sequence[int], *, sigma: Positive = 0.25) -> PixelDPNetwork:
    """Scale the first convolution of `module` to be 1-Lipschitz, and add Gaussian noise to its output (in place).

        F = pixeldp(module, input_shape=x.shape[1:], sigma=0.25)

    Returns a `RandomizedNetwork` that `graddiv measure RUN --what certificate` can certify.

    module, input_shape: the network, which must begin with a convolution that pads with zeros, and an image's shape.
    sigma: the standard deviation of the noise, in units of the image's l_2 norm.
    """
    visits = find(module, (nn.Conv2d,), input_shape)
    name, first = next(iter(visits.items()), ("", None))
    if first is None or first.layer.padding_mode != "zeros" or not torch.equal(first.x, an_image(module, input_shape)):
        raise GradDivError(
            f"{type(module).__name__} does not begin with a convolution that pads with zeros: "
            "only there is it known how much the noise must cover; use smoothing(), with noise on the image"
        )
    return PixelDPNetwork(module, {name: FirstLayerNoise(first.layer, sigma=sigma)}, visits, sigma=sigma)


class Stretch(NamedTuple):
    """Pixels [start, start + length) of an axis, resampled to [to, to + size) of the axis of the network's input."""

    start: int
    length: int
    to: int
    size: int

    def matrix(self, pixels: int, canvas: int) -> Float64[Tensor, "canvas pixels"]:
        """Return the bilinear resampling of this axis; rows outside [to, to + size) are 0."""
        matrix, basis = torch.zeros(canvas, pixels, dtype=torch.float64), torch.eye(self.length, dtype=torch.float64)
        resampled = interpolate(basis[None], size=self.size, mode="linear")[0].T
        matrix[self.to : self.to + self.size, self.start : self.start + self.length] = resampled
        return matrix


class TransformNetwork(InputNoise):
    """f(x) = module(R x C^T + padding (1 - (R 1)(C 1)^T)), the pair of matrices (R, C) one of finitely many.

    The rows of R and C that hold the image sum to 1, the others are 0.  Which pair is the noise.

    places: lists of what may be done to an axis.  Each list is equally likely, then each pair of its members.
    """

    rows: Tensor
    columns: Tensor
    padding: float

    def __init__(
        self, module: nn.Module, places: Sequence[Sequence[Stretch]], *, pixels: int, canvas: int, padding: float
    ) -> None:
        self.outcomes = [pair for axis in places for pair in product(axis, repeat=2)]
        super().__init__(module, {"outcome": ()}, counts={"outcome": len(self.outcomes)}, padding=padding)
        p = [1 / len(places) / len(axis) ** 2 for axis in places for _ in range(len(axis) ** 2)]
        self.probabilities = torch.tensor(p, dtype=torch.float64)
        for name, axis in (("rows", 0), ("columns", 1)):
            matrices = torch.stack([outcome[axis].matrix(pixels, canvas) for outcome in self.outcomes])
            self.register_buffer(name, matrices.to(next(module.parameters())), persistent=False)

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        return {"outcome": self.support().number(uniform(seed, batch, 1)[:, 0]).to(self.device)}

    def mean(self) -> None: ...  # type: ignore[override]  # a choice has none

    def support(self) -> Support:
        everything = torch.arange(len(self.rows), device=self.device)
        return Support([{"outcome": i[None]} for i in everything], self.probabilities)

    def changed(self, x: Tensor, noise: Mapping[str, Tensor], f: SampleModel) -> Tensor:
        R, C = (of[noise["outcome"]][:, None].to(x.dtype) for of in (self.rows, self.columns))
        if (found := tuple(x.shape[2:])) != (shape := (R.shape[3], C.shape[3])):
            raise GradDivError(f"images are {found}, expected {shape}, as input_shape said")
        covered = R.sum(3, keepdim=True) @ C.sum(3, keepdim=True).mT
        return R @ x @ C.mT + self.padding * (1 - covered)


@defense("resize", WithoutNoise)
def resize_and_pad(
    module: nn.Module, input_shape: Sequence[int], *, margin: Count = 4, shrink: bool = False, padding: Share = 0.5
) -> TransformNetwork:
    """Resize the image to r x r and put it somewhere on a canvas of constant brightness (Xie et al. 2018).

        F = resize_and_pad(module, input_shape=x.shape[1:], shrink=True)

    Returns a `RandomizedNetwork` whose noise chooses size and place, each uniformly.

    module, input_shape: any trained network that takes the canvas, and the shape of one image, (c, h, w) with h = w.
    margin: how many more pixels a side the canvas has than the image, 36 for 32 in DEEPSEC; r is less than the canvas.
    shrink: for networks with a fixed input size: the canvas is as large as the image, and r up to `margin` smaller.
    padding: the brightness around the image.  Mid-gray: the papers say zeros, but pad after scaling to [-1, 1].
    """
    size = _side(input_shape, margin if shrink else 0)
    canvas = size if shrink else size + margin
    sizes = range(size - margin, size + 1) if shrink else range(size, canvas)
    places = [[Stretch(0, size, to, r) for to in range(canvas - r + 1)] for r in sizes]
    return TransformNetwork(module, places, pixels=size, canvas=canvas, padding=padding)


@defense("crops")
def random_crops(module: nn.Module, input_shape: Sequence[int], *, margin: Count = 2) -> TransformNetwork:
    """Classify a random crop of the image, resized to the image's size (Guo et al. 2018).

        F = random_crops(module, input_shape=x.shape[1:])

    Returns a `RandomizedNetwork` whose noise chooses the crop.

    module, input_shape: the network, to be trained on such crops, and the shape of one image, (c, h, w) with h = w.
    margin: how many pixels a side a crop lacks; there are (margin + 1)^2 crops, all equally likely.
    """
    size = _side(input_shape, margin)
    places = [[Stretch(start, size - margin, 0, size) for start in range(margin + 1)]]
    return TransformNetwork(module, places, pixels=size, canvas=size, padding=0.0)


def _side(input_shape: Sequence[int], margin: int) -> int:
    """Return the side of a square image, which must be longer than the margin."""
    if len(input_shape) != 3 or input_shape[1] != input_shape[2]:
        raise GradDivError(f"input_shape is {tuple(input_shape)}, expected (channels, side, side)")
    if margin >= (size := input_shape[1]):
        raise GradDivError(f"margin is {margin} for images of {size} pixels a side, expected 1 to {size - 1}")
    return size


class MixupNetwork(InputNoise):
    """f(x) = module(lam x + (1 - lam) x_s), x_s a training image of class c, y^ = argmax module(x).

    OL (other label) draws c uniformly among the classes other than y^; PL (predicted label) has c = y^.  The noise is
    one partner for each class and a choice of class.  The pool is not in the state_dict.
    """

    pool: Tensor
    lam: float
    partners: Partners

    def __init__(self, module: nn.Module, pool: Tensor, members: list[Tensor], lam: float, partners: Partners) -> None:
        shapes: dict[str, tuple[int, ...]] = {"partner": (len(members),), "choice": ()}
        super().__init__(module, shapes, counts={"partner": len(pool)}, lam=lam, partners=partners)
        self.members = members  # rows of the pool, class by class
        self.register_buffer("pool", pool, persistent=False)

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        *u, choice = uniform(seed, batch, len(self.members) + 1).cpu().unbind(1)
        partner = [rows[(u_c * len(rows)).long()] for rows, u_c in zip(self.members, u, strict=True)]
        choice = (choice * (len(self.members) - 1)).long()
        return {"partner": torch.stack(partner, dim=1).to(self.device), "choice": choice.to(self.device)}

    def mean(self) -> None: ...  # type: ignore[override]  # a choice has none

    def changed(self, x: Tensor, noise: Mapping[str, Tensor], f: SampleModel) -> Tensor:
        with torch.no_grad():
            predicted = f(x).argmax(1)
        # OL: the choice-th class once the predicted one is left out
        chosen = predicted if self.partners == "PL" else noise["choice"] + (noise["choice"] >= predicted).long()
        rows = noise["partner"].expand(len(x), -1).gather(1, chosen[:, None]).squeeze(1)
        return self.lam * x + (1 - self.lam) * self.pool[rows].to(x.dtype)


@checked
def mixup_inference(
    module: nn.Module, pool: Pool, *, lam: PositiveShare = 0.6, partners: Partners = "OL"
) -> MixupNetwork:
    """Make a deterministic `module` stochastic at inference by mixing its input with images of `pool`.

        F = mixup_inference(module, pool=(training_images, training_labels))

    Returns a `RandomizedNetwork` whose noise chooses the images that x is mixed with.

    module: the network that classifies the mixture.
    pool: (images, labels) of the *training* set: one of the test set would mix an attacked image with itself.
    lam: the weight of x, in (0, 1]; 0.6 suits interpolated adversarial training, 0.5 plain mixup training.
    partners: "OL" for images of another class than the predicted one, "PL" for images of that class.
    """
    images, labels = pool
    if not images.is_floating_point():
        raise GradDivError(f"the pool's images are {images.dtype}, expected floats in the pixel range of x")
    if len(images) != len(labels) or len(labels) == 0 or labels.min() < 0:
        found = f"the pool has {len(images)} images and {len(labels)} labels"
        raise GradDivError(f"{found}, expected as many, some, and none below 0")
    members = [(labels == c).nonzero().squeeze(1).cpu() for c in range(int(labels.max()) + 1)]
    counts = [len(rows) for rows in members]
    if len(counts) < 2 or 0 in counts:
        raise GradDivError(f"the pool holds {counts} images of the classes 0..{len(counts) - 1}, expected some of each")
    return MixupNetwork(module, images, members, lam, partners)


class Interpolated(WithoutNoise):
    """Trained on interpolated examples, without partners from the pool."""

    interpolated = True


@defense("mixup", Interpolated)
def _with_training_examples(
    module: nn.Module, examples: Any, *, lam: PositiveShare = 0.6, partners: Partners = "OL", pool: Count = 5000
) -> MixupNetwork:
    """Mixup inference with partners among the training examples.

    lam: the weight of x, in (0, 1].
    partners: "OL" for images of another class than the predicted one, "PL" for images of that class.
    pool: how many of the first training examples are partners.
    """
    return mixup_inference(module, examples.batch(slice(0, pool)), lam=lam, partners=partners)
