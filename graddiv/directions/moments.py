"""Means over the gradients of many sample models, with the memory of one: E v, E g, E|g| and max |g|."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid

from graddiv.directions import vmf
from graddiv.directions.gradients import directions, input_gradient
from graddiv.errors import GradDivError
from graddiv.geometry import per_example
from graddiv.networks import SampleModel


class Moments(NamedTuple):
    """Means over the gradients g_i = w_i grad s_i of n sample models, per example, and over their directions v_i.

    w_i = sigmoid(s_i) makes g_i the gradient of the cross-entropy.  Lengths are divided by exp(log_scale), the greatest
    weight, as weights may underflow.
    """

    n: int
    resultant: Float64[Tensor, "b p"]
    """1/n sum_i v_i."""
    gradient: Float64[Tensor, "b p"]
    """1/n sum_i g_i."""
    length: Float64[Tensor, " b"]
    """1/n sum_i |g_i|."""
    longest: Float64[Tensor, " b"]
    """max_i |g_i|."""
    log_scale: Float64[Tensor, " b"]
    """max_i log w_i."""
    usable: Bool[Tensor, " b"]
    """Whether all n gradients have a direction."""

    def rho(self, q: float = 2.0) -> Float64[Tensor, " b"]:
        """|1/n sum_i v_i|_q; NaN where not all gradients have a direction."""
        return self._if_usable(vmf.mrl(self.resultant[None], q))

    def mean_cosine(self) -> Float64[Tensor, " b"]:
        """c = (n rho^2 - 1) / (n - 1), the mean over pairs; 1 for the only gradient of a deterministic network."""
        if self.n == 1:
            return self._if_usable(torch.ones_like(self.length))
        return (self.n * self.rho() ** 2 - 1) / (self.n - 1)

    def norm_ratio(self) -> Float64[Tensor, " b"]:
        """|E g| / E |g|."""
        ratio: Tensor = torch.linalg.vector_norm(self.gradient, dim=1) / self.length
        return ratio

    def _if_usable(self, values: Tensor) -> Tensor:
        return torch.where(self.usable, values, torch.nan)


def moments(models: Iterable[SampleModel], x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"]) -> Moments:
    """Take one gradient after the other and keep running sums: memory does not grow with the number of models."""
    return moments_of(input_gradient(f, x, y) for f in models)


def moments_of(gradients: Iterable[tuple[Float[Tensor, " b"], Float[Tensor, "b ..."]]]) -> Moments:
    """Return the moments of gradients given as pairs s_i, grad s_i, the way `input_gradient` returns them."""
    zero = torch.zeros((), dtype=torch.float64)
    resultant, gradient, length, longest = zero, zero, zero, zero
    log_scale, usable, n = zero - torch.inf, torch.ones((), dtype=torch.bool), 0
    for s, g in gradients:
        found = directions(g[None])
        resultant, usable, n = resultant + found.v[0], usable & found.usable, n + 1
        log_w = logsigmoid(s.double())
        new_scale = torch.maximum(log_scale, log_w)
        before, weight, g = (log_scale - new_scale).exp(), (log_w - new_scale).exp(), g.flatten(1).double()
        size = weight * torch.linalg.vector_norm(g, dim=1)
        gradient = gradient * per_example(before, g) + g * per_example(weight, g)
        length, longest, log_scale = length * before + size, torch.maximum(longest * before, size), new_scale
    if n == 0:
        raise GradDivError("there are 0 sample models, expected at least one to take gradients of")
    return Moments(n, resultant / n, gradient / n, length / n, longest, log_scale, usable)
