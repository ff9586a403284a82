"""What the adversary sees of a network: `view(k)` yields the sample models of iteration k, one at a time.

[Attack] looks through `Fixed(F)`, EOT^1-[Attack] through `EOT(F, 1)`, EOT-[Attack] through `EOT(F, n)`, a transfer
attack through `Given(models)`; through `Exact(F)` it sees every model there is, where there are finitely many.  A view
is pure in k: the models of an iteration can be looked at again, so that a candidate and an incumbent are compared on
the same ones.  In the paper: docs/equations.md.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
from torch import nn

from graddiv.attacks.view import HeldView, View
from graddiv.errors import GradDivError
from graddiv.networks import Dirac, Noise, RandomizedNetwork, SampleModel, running_statistics
from graddiv.seeding import fold


class NetworkView(View):
    """A view of a randomized network.

    theta is read once, as constants: attacks build no graph of the parameters and leave `requires_grad` alone.
    """

    def __init__(self, F: RandomizedNetwork | nn.Module, seed: int) -> None:
        super().__init__()
        self.F = F if isinstance(F, RandomizedNetwork) else Dirac(F)
        self.seed = seed
        with torch.no_grad():
            self._theta = self.F.theta()

    @property
    def random(self) -> bool:
        return self.F.random

    def mean_model(self) -> View | None:
        noise = self.F.mean()
        return None if noise is None else HeldView([self._bind(noise)], self)

    def _draw(self, *address: int | str) -> Noise:
        self.cost.draws += self.random
        return self.F.draw(fold(self.seed, "view", *address))

    def _bind(self, noise: Noise) -> SampleModel:
        with torch.no_grad():
            return self.F.bind(noise, self._theta)

    def context(self) -> AbstractContextManager[None]:
        return running_statistics(self.F)


class Fixed(NetworkView):
    """[Attack]: one sample model, drawn once and the same in every iteration."""

    fresh = False

    def __init__(self, F: RandomizedNetwork | nn.Module, seed: int = 0) -> None:
        super().__init__(F, seed)
        self._fixed = self._bind(self._draw("fixed"))

    def __call__(self, k: int) -> Iterator[SampleModel]:
        yield self._fixed


class EOT(NetworkView):
    """EOT-[Attack]: n fresh sample models at each iteration; a deterministic network has one model, whatever n.

    `antithetic` draws them in pairs of opposite noise, which cancels what is odd in the noise.  The variance of the
    mean is (1 + r) / n of that of one draw, r the correlation within a pair: ask `pilot.antithetic_correlation` first.
    """

    def __init__(self, F: RandomizedNetwork | nn.Module, n: int = 1, seed: int = 0, antithetic: bool = False) -> None:
        super().__init__(F, seed)
        if n < 1:
            raise GradDivError(f"n is {n}, expected at least one sample model")
        if antithetic and self.random and (n % 2 or self.F.mirrored(self.F.draw(seed)) is None):
            raise GradDivError(
                f"antithetic pairs were asked for with n = {n} on a {type(self.F).__name__}: "
                "expected an even n, and noise with a mirror image, such as Gaussian noise"
            )
        self.n = n if self.random else 1
        self.antithetic = antithetic and self.random
        self.fresh = self.random
        self.prefix = "" if not self.random else "EOT^1-" if n == 1 else "EOT-"

    def __call__(self, k: int) -> Iterator[SampleModel]:
        if not self.antithetic:
            return (self._bind(self._draw(k, i)) for i in range(self.n))
        pairs = ((noise, self.F.mirrored(noise)) for noise in (self._draw(k, i) for i in range(self.n // 2)))
        return (self._bind(noise) for pair in pairs for noise in pair if noise is not None)

    def sized(self, n: int) -> "EOT":
        other = EOT(self.F, n, self.seed, self.antithetic)
        other.cost = self.cost
        return other


class Exact(NetworkView):
    """EOT as an exact sum: all the models there are, with their probabilities, at each iteration."""

    fresh = False
    prefix = "EOT-"

    def __init__(self, F: RandomizedNetwork | nn.Module) -> None:
        super().__init__(F, seed=0)
        support = self.F.support()
        if support is None:
            raise GradDivError(
                f"the noise of {type(self.F).__name__} has no finite support: look through EOT(F, n) instead"
            )
        self.noises, self.n = support.noises, len(support.noises)
        p = support.probabilities
        self.probabilities = None if torch.equal(p, p[:1].expand_as(p)) else p
        self.prefix = "EOT-" if len(p) > 1 else ""

    def __call__(self, k: int) -> Iterator[SampleModel]:
        return (self._bind(noise) for noise in self.noises)


def as_view(target: View | nn.Module) -> View:
    """Return a view unchanged, and make one of a deterministic module; a random network needs an explicit view."""
    if isinstance(target, View):
        return target
    if isinstance(target, RandomizedNetwork) and target.random:
        raise GradDivError(
            f"{type(target).__name__} is random: say how the adversary sees it, "
            "with Fixed(F), EOT(F, n) or Given(models)"
        )
    return Fixed(target)
