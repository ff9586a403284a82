"""How noisy are the gradients that an adversary sees, and how many draws do they need?  Measured before it sets out."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from graddiv.attacks.spgd import StochasticPGD
from graddiv.attacks.view import View
from graddiv.attacks.views import EOT
from graddiv.errors import GradDivError
from graddiv.geometry import Geometry

COSINE = 0.85
"""Draws at an iteration are enough at this cosine to the true gradient: what is left averages out over the steps."""

STARVED = 0.5
"""Below this cosine a gradient is mostly noise, and momenta pay; above it they slow the attack down."""

FEWEST_STEPS = 50
"""More draws never leave fewer iterations than this."""

PATH_STEPS = 10
"""Iterations of the short attack along which the gradients are looked at, as at x0."""


class GradientNoise(NamedTuple):
    """What n gradients g_i of one example say about their mean mu and covariance, for each of b examples."""

    n: int
    rho: Float64[Tensor, " b"]
    """Mean resultant length of g_i / |g_i|, debiased: the root of the mean cosine of two, 0 where that is negative."""
    mean_length: Float64[Tensor, " b"]
    """|mu|: the root of |mean g|^2 - tr Cov / n, 0 where that is negative."""
    trace: Float64[Tensor, " b"]
    """tr Cov = n / (n - 1) (mean |g|^2 - |mean g|^2)."""

    @property
    def q(self) -> Float64[Tensor, " b"]:
        """|mu|^2 / tr Cov: 1 / q draws give a cosine of 0.71."""
        return self.mean_length.square() / self.trace.clamp_min(torch.finfo(torch.float64).tiny)

    def cosine(self, n: int) -> Float64[Tensor, " b"]:
        """1 / sqrt(1 + 1 / (n q)): the expected cosine of the mean of n draws to mu, to leading order."""
        nq = n * self.q
        return (nq / (1 + nq)).sqrt()

    def cosine_of_two(self, n: int) -> Float64[Tensor, " b"]:
        """1 / (1 + 1 / (n q)): of two means of n draws each, which can be measured."""
        return self.cosine(n).square()


def gradient_noise(view: View, k: int, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"]) -> GradientNoise:
    """Measure the noise of the margin's gradients on the models of iteration k."""
    total = unit = square = torch.zeros((), dtype=torch.float64, device=x.device)
    n = 0
    for gradient in view.gradients(k, x, y):
        g = gradient.flatten(1).double()
        length = torch.linalg.vector_norm(g, dim=1)
        total, square = total + g, square + length.square()
        unit, n = unit + g / length.clamp_min(1e-300)[:, None], n + 1
    if n < 2:
        raise GradDivError(f"there are {n} gradients at an iteration, expected at least 2 to measure their noise")
    of_mean = (total / n).square().sum(1)
    trace = ((square / n - of_mean) * n / (n - 1)).clamp_min(0)
    cosine = (unit.square().sum(1) - n) / (n * (n - 1))
    return GradientNoise(n, cosine.clamp_min(0).sqrt(), (of_mean - trace / n).clamp_min(0).sqrt(), trace)


def measured_cosine(view: View, k: int, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"]) -> Float64[Tensor, " b"]:
    """Return the cosine of the mean gradients of iterations k and k + 1, per example: two means of n draws each."""
    first, second = (
        torch.stack([g.flatten(1) for g in view.gradients(each, x, y)]).double().mean(0) for each in (k, k + 1)
    )
    return torch.nn.functional.cosine_similarity(first, second, dim=1)


def antithetic_correlation(
    view: EOT, k: int, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"]
) -> Float64[Tensor, " b"]:
    """r = E <g(noise) - mu, g(-noise) - mu> / tr Cov over the pairs of iteration k: pairs pay where r < 0.

    view: an EOT view with antithetic=True.

    The variance of a mean of n is (1 + r) / n of that of one draw.
    """
    if not view.antithetic:
        raise GradDivError("the view draws no antithetic pairs: expected EOT(F, n, antithetic=True)")
    g = torch.stack([each.flatten(1).double() for each in view.gradients(k, x, y)])
    centred = g - g.mean(0)
    product = (centred[0::2] * centred[1::2]).sum(2).mean(0)
    return product / centred.square().sum(2).mean(0).clamp_min(torch.finfo(torch.float64).tiny)


def check_antithetic(view: EOT, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"]) -> float:
    """Return the mean of r, and refuse antithetic pairs where it is above 0: they would add variance."""
    r = antithetic_correlation(view, PILOT, x, y).mean().item()
    if r > 0:
        raise GradDivError(
            f"gradients at opposite noise correlate with r = {r:+.3f}, expected below 0: "
            "antithetic pairs would have more variance than independent draws, use EOT(F, n)"
        )
    return r


PILOT = -1000
"""The iteration whose models the pilot looks at: no attack ever sees them."""


@dataclass(frozen=True)
class Plan:
    """How a budget of passes is spent: n models at each of m iterations."""

    n: int
    m: int
    starved: bool = False
    """Whether even n models leave the gradient mostly noise, so that the memory of earlier iterations has to help."""

    def spent_on(self, attack: StochasticPGD) -> StochasticPGD:
        """The attack of this plan, to be seen through EOT(F, n)."""
        return replace(attack, m=self.m, memory="aggmo" if self.starved else attack.memory)


def choose(q: float, passes: int) -> Plan:
    """n = the draws at which the cosine to the true gradient is 0.85, as long as 50 steps are left; m = passes / n."""
    q = max(q, 1e-9)
    wanted = math.ceil(COSINE**2 / (1 - COSINE**2) / q)
    n = max(1, min(wanted, passes // FEWEST_STEPS))
    return Plan(n, max(1, passes // n), starved=n * q < STARVED**2 / (1 - STARVED**2))


def along_the_attack(
    view: View, x0: Float[Tensor, "b ..."], y: Int64[Tensor, " b"], epsilon: float, geometry: Geometry
) -> Float[Tensor, "b ..."]:
    """Return where a short attack leads: noise at x0 says little about noise where the adversary is going."""
    return StochasticPGD(geometry, m=PATH_STEPS)(view, x0, y, epsilon)
