"""What plants are built of: steps that lose the gradient, and ways to put a network beside another."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Step = Callable[[Tensor], Tensor]


class Apply(nn.Module):
    """A function of the image as a layer."""

    def __init__(self, function: Step) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class AsIf(nn.Module):
    """The values of one module with the gradient of another.

    With a decoy as the other it is a fault; with the true slope of a step that has none, what an attacker uses.
    """

    def __init__(self, values: nn.Module, gradient: nn.Module) -> None:
        super().__init__()
        self.values, self.gradient = values, gradient

    def forward(self, x: Tensor) -> Tensor:
        seen = self.gradient(x)
        with torch.no_grad():
            values = self.values(x)
        return seen + (values - seen).detach()


class Sum(nn.Module):
    """The weighted sum of the logits of several networks."""

    def __init__(self, *members: nn.Module, weights: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.members, self.weights = nn.ModuleList(members), weights or (1.0,) * len(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([w * f(x) for w, f in zip(self.weights, self.members, strict=True)]).sum(0)


class Channels(nn.Module):
    """Several versions of the image, as channels of one."""

    def __init__(self, *steps: nn.Module) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([step(x) for step in self.steps], 1)


class Blind(nn.Module):
    """The network without a graph."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.inner(x)


class Backward(nn.Module):
    """The identity, whose gradient is changed by a function of (gradient, x) on its way back."""

    def __init__(self, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return _Backward.apply(x, self.change)  # type: ignore[no-untyped-call, no-any-return]


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: "_Backward", x: Tensor, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)  # type: ignore[attr-defined]
        ctx.change = change  # type: ignore[attr-defined]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: "_Backward", g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return ctx.change(g, x), None  # type: ignore[attr-defined]


# ---- steps, hard and soft


def rounded(levels: int) -> nn.Module:
    """The nearest of this many gray values."""
    return Apply(lambda x: torch.round(x * (levels - 1)) / (levels - 1))


def soft_rounded(levels: int, sharpness: float = 3.0) -> nn.Module:
    """A smooth staircase through the middle of each step of `rounded`."""

    def steps(x: Tensor) -> Tensor:
        t = x * (levels - 1)
        within = t - t.detach().floor() - 0.5
        rise = torch.tanh(sharpness * within) / (2 * math.tanh(sharpness / 2)) + 0.5
        return (t.detach().floor() + rise) / (levels - 1)

    return Apply(steps)


def thermometer(levels: int) -> nn.Module:
    """A channel for each threshold: whether the pixel is brighter (Buckman et al. 2018)."""
    return Apply(lambda x: (x > _thresholds(levels)).to(x.dtype))


def soft_thermometer(levels: int, sharpness: float = 15.0) -> nn.Module:
    return Apply(lambda x: torch.sigmoid(sharpness * (x - _thresholds(levels))))


def _thresholds(levels: int) -> Tensor:
    return (torch.arange(levels).float()[:, None, None] + 0.5) / levels


def _dct() -> Tensor:
    """The orthonormal cosine transform of four pixels."""
    k, n = torch.arange(4.0)[:, None], torch.arange(4.0)
    basis = torch.cos(torch.pi / 4 * (n + 0.5) * k) / math.sqrt(2)
    return torch.cat([basis[:1] / math.sqrt(2), basis[1:]])


def jpeg(step: float, rounding: Step = torch.round) -> nn.Module:
    """Blocks of 4 x 4 pixels, whose cosine coefficients are rounded to multiples of a step."""
    basis = _dct()

    def coded(x: Tensor) -> Tensor:
        blocks = x.unflatten(3, (-1, 4)).unflatten(2, (-1, 4)).transpose(3, 4)
        coefficients = basis @ blocks @ basis.T
        back = basis.T @ (step * rounding(coefficients / step)) @ basis
        return back.transpose(3, 4).flatten(4).flatten(2, 3)

    return Apply(coded)


def blurred(side: int = 5, sigma: float = 1.2) -> nn.Module:
    line = torch.exp(-((torch.arange(side) - side // 2).float() ** 2) / (2 * sigma**2))
    kernel = (line[:, None] * line / line.sum() ** 2)[None, None]
    return Apply(lambda x: functional.conv2d(x, kernel, padding=side // 2))


def median(side: int = 3) -> nn.Module:
    """The median of each window."""
    return Apply(lambda x: _windows(x, side).median(2).values.view_as(x))


def mean_filter(side: int = 3) -> nn.Module:
    return Apply(lambda x: _windows(x, side).mean(2).view_as(x))


def _windows(x: Tensor, side: int) -> Tensor:
    pixels = functional.unfold(functional.pad(x, (side // 2,) * 4, mode="reflect"), side)
    return pixels.view(len(x), x.shape[1], side * side, -1)


class KWinners(nn.Module):
    """All but the share of largest activations of each image is set to 0 (Xiao et al. 2020)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, h: Tensor) -> Tensor:
        flat = h.flatten(1)
        least = flat.topk(max(1, round(self.share * flat.shape[1])), dim=1).values[:, -1:]
        return torch.where(flat >= least, flat, torch.zeros(())).view_as(h)


class Lookup(nn.Module):
    """Each pixel's brightness, as an integer, is looked up in a table of learned vectors."""

    def __init__(self, levels: int = 16, width: int = 2) -> None:
        super().__init__()
        self.levels, self.table = levels, nn.Embedding(levels, width)

    def forward(self, x: Tensor) -> Tensor:
        number = (x.clamp(0, 1) * (self.levels - 1)).round().long()
        return self.table(number)[:, 0].permute(0, 3, 1, 2)


class SoftLookup(Lookup):
    """The same table, read by linear interpolation between neighbors."""

    def forward(self, x: Tensor) -> Tensor:
        t = x.clamp(0, 1) * (self.levels - 1)
        below = t.detach().floor().clamp_max(self.levels - 2)
        share = (t - below)[:, 0, ..., None]
        low, high = (self.table((below + i).long())[:, 0] for i in (0, 1))
        return (low + share * (high - low)).permute(0, 3, 1, 2)


class Gated(nn.Module):
    """One network where a score is above a threshold, another one elsewhere; `soft` lets the gate have a slope."""

    def __init__(
        self, score: Step, threshold: float, above: nn.Module, below: nn.Module, *, slope: float | None = None
    ) -> None:
        super().__init__()
        self.score, self.threshold, self.slope = score, threshold, slope
        self.above, self.below = above, below

    def forward(self, x: Tensor) -> Tensor:
        s = self.score(x) - self.threshold
        if self.slope is None:
            return torch.where(s[:, None] > 0, self.above(x), self.below(x))
        share = torch.sigmoid(self.slope * s)[:, None]
        return share * self.above(x) + (1 - share) * self.below(x)
