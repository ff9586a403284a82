"""The von Mises-Fisher distribution on the sphere S^(p-1), and how concentrated gradient directions are.

pdf(v; mu, kappa) = C_p(kappa) exp(kappa mu.v), C_p(kappa) = kappa^(p/2-1) / ((2 pi)^(p/2) I_{p/2-1}(kappa)).
Everything is batched over examples, in float64.

In the paper: docs/equations.md.
"""

import math

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from graddiv.directions.regularizers import mean_cosine as mean_cosine
from graddiv.errors import GradDivError

_STEPS = 200
"""How far above the wanted order a Bessel ratio is started: the error there shrinks on the way down."""


def mrl(v: Float[Tensor, "n b p"], q: float = 2.0) -> Float64[Tensor, " b"]:
    """rho^_q = |1/n sum_i v_i|_q, the sample l_q mean resultant length; rho^ itself for q = 2.

    Biased upward by chance alone: about 1/sqrt(n) for uniform directions, so never compare it across n.
    """
    rho: Tensor = torch.linalg.vector_norm(v.double().mean(0), ord=q, dim=1)
    return rho.clamp_max(1) if q == 2 else rho  # equal directions: the sum of squares may round above 1


def debiased_mrl(v: Float[Tensor, "n b p"]) -> Float64[Tensor, " b"]:
    """sqrt(max(0, R_mean)): E R_mean = |E v|^2 = rho^2 without the bias of rho^."""
    return mean_cosine(v).clamp_min(0).sqrt()


def norm_weighted_mrl(g: Float[Tensor, "n b ..."], log_w: Float[Tensor, "n b"] | None = None) -> Float64[Tensor, " b"]:
    """|E w g| / E |w g|: what is left of the gradients' length in their mean.  NaN where every gradient is 0.

    It is rho where norm and direction are independent, and shows what rho hides where they are not.
    """
    g = g.flatten(2).double()
    if log_w is not None:
        log_w = log_w.double()
        g = g * (log_w - log_w.amax(0)).exp()[..., None]
    ratio: Tensor = torch.linalg.vector_norm(g.mean(0), dim=1) / torch.linalg.vector_norm(g, dim=2).mean(0)
    return ratio


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
    """A_p(kappa) = I_{p/2}(kappa) / I_{p/2-1}(kappa), the mean resultant length of vMF(mu, kappa)."""
    kappa = kappa.double()
    return _ratio_at(p / 2 - 1, kappa)[0]


def log_density(
    v: Float[Tensor, "n b p"], mu: Float[Tensor, "b p"], kappa: Float[Tensor, " b"]
) -> Float64[Tensor, "n b"]:
    """log pdf(v; mu, kappa) = kappa mu.v + (p/2-1) log kappa - p/2 log 2 pi - log I_{p/2-1}(kappa)."""
    _check_kappa(kappa)
    p, kappa = v.shape[-1], kappa.double().clamp_min(1e-150)  # kappa = 0, the uniform law, is the limit
    _, log_bessel = _ratio_at(p / 2 - 1, kappa)
    log_c = (p / 2 - 1) * kappa.log() - p / 2 * math.log(2 * math.pi) - log_bessel
    return kappa * (mu.double() * v.double()).sum(-1) + log_c


def sample(mu: Float[Tensor, "b p"], kappa: Float[Tensor, " b"], n: int, seed: int) -> Float64[Tensor, "n b p"]:
    """v = w mu + sqrt(1 - w^2) u, u uniform on the sphere orthogonal to mu: n draws for each example (Wood 1994).

    w has density proportional to exp(kappa w) (1 - w^2)^((p-3)/2); it is drawn by rejection from an envelope.
    """
    b, p = mu.shape
    mu = mu.double()
    _check_kappa(kappa)
    rng = np.random.default_rng(seed)
    w = torch.from_numpy(_cosine_to_mean(rng, kappa.double().cpu().numpy(), n, p)).to(mu.device)[..., None]
    u = torch.from_numpy(rng.standard_normal((n, b, p))).to(mu.device)
    u = u - (u * mu).sum(-1, keepdim=True) * mu
    return w * mu + (1 - w**2).sqrt() * torch.nn.functional.normalize(u, dim=-1)


def _check_kappa(kappa: Tensor) -> None:
    if not ((kappa >= 0) & torch.isfinite(kappa)).all():
        raise GradDivError(f"kappa lies in [{kappa.min():.4g}, {kappa.max():.4g}], expected finite numbers >= 0")


def _cosine_to_mean(rng: np.random.Generator, kappa: np.ndarray, n: int, p: int) -> np.ndarray:
    shape = (p - 1) / 2
    b = shape / (kappa + np.sqrt(kappa**2 + shape**2))
    x0 = (1 - b) / (1 + b)
    top = kappa * x0 + 2 * shape * np.log(4 * b / (1 + b) ** 2)  # log(1 - x0^2), free of cancellation
    w = np.full((n, len(kappa)), np.nan)
    while (todo := np.isnan(w)).any():
        z = rng.beta(shape, shape, w.shape)
        proposal = (1 - (1 + b) * z) / (1 - (1 - b) * z)
        accept = kappa * proposal + 2 * shape * np.log1p(-x0 * proposal) - top >= np.log(rng.uniform(size=w.shape))
        w = np.where(todo & accept, proposal, w)
    return w


def _ratio_at(order: float, x: Float64[Tensor, "..."]) -> tuple[Float64[Tensor, "..."], Float64[Tensor, "..."]]:
    """r = I_{order+1}(x) / I_order(x) and log I_order(x).

    Both come from an asymptotic series at a high order, carried down by r_{j-1} = 1 / (2j/x + r_j).  The recurrence
    multiplies errors by r^2 < 1; where x is so large that r is near 1, the series is exact to rounding already.
    """
    high = order + _STEPS
    r, log_bessel = _ratio_series(high, x), _log_bessel_series(high, x)
    for step in range(_STEPS):
        r = 1 / (2 * (high - step) / x + r)
        log_bessel = log_bessel - r.log()
    return r, log_bessel


def _ratio_series(order: float, x: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """Solve r' = 1 - r^2 - 2 m r / x, m = order + 1/2, to three terms in powers of 1/s, s^2 = m^2 + x^2."""
    m = order + 0.5
    s = torch.hypot(x, torch.full_like(x, m))
    r0 = x / (m + s)
    r1 = -m * r0 / (2 * s**2)
    slope_r1 = -m * r0 / 2 * (m / (s**3 * x) - 2 * x / s**4)
    r2 = -(slope_r1 + r1**2) * x / (2 * s)
    return torch.where(x > 0, r0 + r1 + r2, 0.0)


def _log_bessel_series(order: float, x: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """log I_order(x) for a high order, uniformly in x: Debye's expansion (DLMF 10.41.3) to the third term."""
    s = torch.hypot(x, torch.full_like(x, order))
    t = order / s
    u1 = (3 * t - 5 * t**3) / 24
    u2 = (81 * t**2 - 462 * t**4 + 385 * t**6) / 1152
    u3 = (30375 * t**3 - 369603 * t**5 + 765765 * t**7 - 425425 * t**9) / 414720
    series = torch.log1p(u1 / order + u2 / order**2 + u3 / order**3)
    return s + order * (x / (order + s)).log() - 0.5 * (2 * math.pi * s).log() + series
