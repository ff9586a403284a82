"""Networks that do more than answer: they refuse, remember, optimize, or look at the other images."""

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.planted.attacks import through
from benchmarks.planted.blocks import Blind, Sum
from benchmarks.planted.digits import EPSILON, beside, digits, plain
from benchmarks.planted.purifying import Projection
from benchmarks.planted.record import plant
from benchmarks.planted.toys import Linear, images, radius, shortest_way
from graddiv.data import load

habit = partial(plant, family="habits", images=digits, epsilon=EPSILON)


class Cached(nn.Module):
    """Answers are looked up by a coarse key; a stored answer has no gradient."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.known = inner, dict[bytes, Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        answers = self.inner(x)
        rows = []
        for image, answer in zip(x, answers, strict=True):
            key = (image.detach() * 4).round().to(torch.uint8).numpy().tobytes()
            rows.append(self.known.setdefault(key, answer.detach()))
        kept = torch.stack(rows)
        return torch.where((kept - answers).abs().amax(1, keepdim=True) > 1e-6, kept, answers)


class NearestKnown(nn.Module):
    """Logits by the distance to the nearest stored digit of each class, found by argmin and then looked up."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.known, self.labels = load("mnist-mini", "train").batch(slice(0, 500))

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x.flatten(1), self.known.flatten(1)).argmin(1)
        return self.inner(0.5 * x + 0.5 * self.known[nearest])


class Rejecting(nn.Module):
    """Where two networks disagree, the answer is refused: all logits are equal but for a remainder."""

    def __init__(self, inner: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.inner, self.other = inner, other

    def forward(self, x: Tensor) -> Tensor:
        z = self.inner(x)
        same = z.argmax(1) == self.other(x).argmax(1)
        return torch.where(same[:, None], z, 0.001 * self.other(x))


class Optimizing(nn.Module):
    """The image is pulled toward the principal components by gradient descent, taken while it answers."""

    def __init__(self, inner: nn.Module, steps: int = 4) -> None:
        super().__init__()
        self.inner, self.steps, self.projection = inner, steps, Projection(40)

    def forward(self, x: Tensor) -> Tensor:
        z = x.detach()
        for _ in range(self.steps):
            with torch.enable_grad():
                at = z.requires_grad_()
                (g,) = torch.autograd.grad((at - self.projection(at).detach()).square().sum(), at)
            z = (z - 0.2 * g).detach()
        return self.inner(x + (z - x).detach())


class OfBatch(nn.Module):
    """Each image is centered by the mean of the batch."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner((x - 0.2 * (x.mean(0, keepdim=True) - 0.1)).clamp(0, 1))


def optimized_softly() -> nn.Module:
    """The same pull in closed form, with its gradient."""
    projection = Projection(40)
    return nn.Sequential(_Pull(projection), plain())


class _Pull(nn.Module):
    def __init__(self, projection: nn.Module, steps: int = 4) -> None:
        super().__init__()
        self.projection, self.steps = projection, steps

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            x = x - 0.4 * (x - self.projection(x))
        return x


plant(
    "toy-cached", family="habits", fault="an answer once given to a similar image is given again, without a gradient",
    make=lambda: Cached(Linear()), images=images, epsilon=radius(0.25), find=shortest_way,
)  # fmt: skip
habit(
    "nearest-known", fault="half of what is seen is the nearest stored digit", partial=True,
    make=lambda: NearestKnown(plain()), find=through(lambda: NearestKnown(plain()), plain, restarts=2),
)  # fmt: skip
habit(
    "rejecting", fault="where two networks disagree, the answer is refused", make=lambda: Rejecting(plain(), plain(1)),
    find=through(plain, lambda: Sum(plain(), plain(1))), partial=True,
)  # fmt: skip
habit(
    "optimizing", fault="four steps of descent while it answers, detached", make=lambda: Optimizing(plain()),
    find=through(optimized_softly), partial=True,
)  # fmt: skip
habit(
    "optimizing-beside", fault="the half that decides takes steps of descent without a graph; the other half is robust",
    make=lambda: beside(Blind(Optimizing(plain()))), find=through(lambda: beside(optimized_softly())), partial=True,
)  # fmt: skip
habit(
    "of-batch", fault="the answer depends on the mean of the batch", make=lambda: OfBatch(plain()),
    find=through(lambda: OfBatch(plain())),
)  # fmt: skip
habit(
    "habits-control", fault="the pull toward principal components with its gradient, beside a robust network",
    make=lambda: beside(optimized_softly()), find=through(lambda: beside(optimized_softly()), restarts=2), sound=True,
)  # fmt: skip
