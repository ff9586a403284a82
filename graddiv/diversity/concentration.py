"""How concentrated gradient directions are, and by Theorem 1 how much a step can raise the expected loss.

pdf(v; mu, kappa) = C_p(kappa) exp(kappa mu.v) on S^(p-1), C_p(kappa) = kappa^(p/2-1) / ((2 pi)^(p/2) I_{p/2-1}(kappa)):
the von Mises-Fisher law.  Delta(alpha g) = E[l_F(X + alpha g) - l_F(X)] = alpha g^.g + O(alpha^2), g^ = E grad l_F(X).
Everything is batched over examples, in float64.  See docs/equations.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor
from torch.nn.functional import logsigmoid

from graddiv.diversity.gradients import directions, input_gradient
from graddiv.diversity.regularizers import mean_cosine
from graddiv.errors import GradDivError
from graddiv.geometry import Images, Labels, PerExample, per_example
from graddiv.losses import ce
from graddiv.networks import SampleModel

DUAL = {2.0: 2.0, torch.inf: 1.0}  #: p -> q with 1/p + 1/q = 1, for the norms of the two perturbation balls


def mrl(v: Float[Tensor, "n b p"], q: float = 2.0) -> Float64[Tensor, " b"]:
    """rho^_q = |1/n sum_i v_i|_q, the sample l_q mean resultant length; biased upward, so never compare it across n."""
    rho: Tensor = torch.linalg.vector_norm(v.double().mean(0), ord=q, dim=1)
    return rho.clamp_max(1) if q == 2 else rho  # equal directions: the sum of squares may round above 1


def debiased_mrl(v: Float[Tensor, "n b p"]) -> Float64[Tensor, " b"]:
    """sqrt(max(0, R_mean)): E R_mean = |E v|^2 = rho^2 without the bias of rho^."""
    return mean_cosine(v).clamp_min(0).sqrt()


def kappa_approximate(rho: Float[Tensor, "..."], p: int) -> Float64[Tensor, "..."]:
    """kappa^ = rho (p - rho) / (1 - rho^2), the paper's estimate; infinite at rho = 1."""
    rho = rho.double()
    return rho * (p - rho) / ((1 - rho) * (1 + rho))


def kappa_mle(rho: Float[Tensor, "..."], p: int) -> Float64[Tensor, "..."]:
    """Solve A_p(kappa) = rho: the exact maximum-likelihood estimate, 0 at rho = 0 and infinite at rho = 1.

    Newton with A' = 1 - A^2 - (p-1)/kappa A, from Banerjee's kappa = rho (p - rho^2) / (1 - rho^2).
    """
    rho = rho.double()
    if not ((rho >= 0) & (rho <= 1)).all():
        raise GradDivError(f"rho lies in [{rho.min():.4g}, {rho.max():.4g}], expected within [0, 1]")
    inside = rho.clamp(1e-300, 1 - 2**-53)
    kappa = inside * (p - inside**2) / ((1 - inside) * (1 + inside))
    for _ in range(12):
        a = mean_length(kappa, p)
        slope = 1 - a**2 - (p - 1) / kappa * a
        kappa = (kappa - (a - inside) / slope).clamp(kappa / 4, kappa * 4)
    return torch.where(rho == 0, 0.0, torch.where(rho == 1, torch.inf, kappa))


def mean_length(kappa: Float[Tensor, "..."], p: int) -> Float64[Tensor, "..."]:
    """A_p(kappa) = I_{p/2}(kappa) / I_{p/2-1}(kappa), the mean resultant length of vMF(mu, kappa).

    The ratio comes from an asymptotic series at an order 200 higher, carried down by r_{j-1} = 1 / (2j/x + r_j).  The
    recurrence multiplies errors by r^2 < 1; where x is so large that r is near 1, the series is exact to rounding.
    """
    x, high = kappa.double(), p / 2 - 1 + 200
    r = _ratio_series(high, x)
    for step in range(200):
        r = 1 / (2 * (high - step) / x + r)
    return r


def _ratio_series(order: float, x: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """Solve r' = 1 - r^2 - 2 m r / x, m = order + 1/2, to three terms in powers of 1/s, s^2 = m^2 + x^2."""
    m = order + 0.5
    s = torch.hypot(x, torch.full_like(x, m))
    r0 = x / (m + s)
    r1 = -m * r0 / (2 * s**2)
    slope_r1 = -m * r0 / 2 * (m / (s**3 * x) - 2 * x / s**4)
    r2 = -(slope_r1 + r1**2) * x / (2 * s)
    return torch.where(x > 0, r0 + r1 + r2, 0.0)


class Moments(NamedTuple):
    """Means over g_i = sigmoid(s_i) grad s_i, the gradients of cross-entropy, and their directions v_i, per example.

    Lengths are divided by exp(log_scale), the greatest weight, as weights may underflow.
    """

    n: int
    resultant: Float64[Tensor, "b p"]  #: 1/n sum_i v_i
    gradient: Float64[Tensor, "b p"]  #: 1/n sum_i g_i
    length: Float64[Tensor, " b"]  #: 1/n sum_i |g_i|
    longest: Float64[Tensor, " b"]  #: max_i |g_i|
    log_scale: Float64[Tensor, " b"]  #: max_i log w_i
    usable: Bool[Tensor, " b"]  #: whether all n gradients have a direction

    def rho(self, q: float = 2.0) -> Float64[Tensor, " b"]:
        """|1/n sum_i v_i|_q; NaN where not all gradients have a direction."""
        return torch.where(self.usable, mrl(self.resultant[None], q), torch.nan)

    def mean_cosine(self) -> Float64[Tensor, " b"]:
        """c = (n rho^2 - 1) / (n - 1), the mean over pairs; 1 for the only gradient of a deterministic network."""
        if self.n == 1:
            return torch.where(self.usable, torch.ones_like(self.length), torch.nan)
        return (self.n * self.rho() ** 2 - 1) / (self.n - 1)

    def norm_ratio(self) -> Float64[Tensor, " b"]:
        """|E g| / E |g|: rho where norm and direction are independent; it shows what rho hides where they are not."""
        ratio: Tensor = torch.linalg.vector_norm(self.gradient, dim=1) / self.length
        return ratio


def moments(models: Iterable[SampleModel], x: Images, y: Labels) -> Moments:
    """Take one gradient after the other and keep running sums: memory does not grow with the number of models."""
    return moments_of(input_gradient(f, x, y) for f in models)


def moments_of(gradients: Iterable[tuple[PerExample, Images]]) -> Moments:
    """Return the moments of gradients given as pairs s_i, grad s_i, the way `input_gradient` returns them."""
    resultant = gradient = length = longest = zero = torch.zeros((), dtype=torch.float64)
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


def loss_increase(models: Iterable[SampleModel], x: Images, y: Labels, delta: Images) -> Float64[Tensor, " b"]:
    """Delta(delta) = 1/n sum_i l_{f_i}(x + delta) - l_{f_i}(x), by evaluation; l is the cross-entropy."""
    with torch.no_grad():
        increases = [ce(f(x + delta).double(), y) - ce(f(x).double(), y) for f in models]
    return torch.stack(increases).mean(0)


@dataclass(frozen=True, eq=False)
class BoundReport:
    """Theorem 1 at each example, for steps of length alpha in the l_p ball; expectations are means over n gradients."""

    first_order: Float64[Tensor, " b"]  #: alpha |E g|_q: the largest increase to first order, that of EOT's own step
    theorem: Float64[Tensor, " b"]  #: alpha M_X rho_q, with M_X = max_i |g_i|_2: what Theorem 1 gives
    tightness: Float64[Tensor, " b"]  #: first_order / theorem: 1 where the bound is attained, above 1 where it fails
    holds: Bool[Tensor, " b"]  #: whether first_order <= theorem; the proof needs norm and direction uncorrelated
    excess: Float64[Tensor, " b"]  #: |E g|_q / (E|g| rho_q): 1 where they are, above 1 where unequal norms help EOT


def theorem1(models: Iterable[SampleModel], x: Images, y: Labels, alpha: float, norm: float) -> BoundReport:
    """Delta(alpha g) <= alpha M_X rho_q + O(alpha^2) for |g|_p <= 1, 1/p + 1/q = 1, p = `norm`: how the bound fares.

    A gradient of 0 counts as a direction of 0; an example all of whose gradients are 0 has NaN ratios.
    """
    if norm not in DUAL:
        raise GradDivError(f"norm is {norm}, expected 2 or infinity")
    g, q = moments(models, x, y), DUAL[norm]
    rho_q = mrl(g.resultant[None], q)
    scale = alpha * g.log_scale.exp()  # apart from the ratios: it may underflow
    length: Tensor = torch.linalg.vector_norm(g.gradient, ord=q, dim=1)
    bound, excess = g.longest * rho_q, length / (g.length * rho_q)
    return BoundReport(scale * length, scale * g.longest * rho_q, length / bound, length <= bound * (1 + 1e-9), excess)
