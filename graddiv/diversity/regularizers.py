"""The GradDiv regularizers: pure functions of the unit gradients v: n b p -> b, one value for each example.

They see the gradients through their cosines, an n x n Gram matrix per example, in float64.  See docs/equations.md.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from graddiv.registries import Registry

KAPPA_DELTA = 1e-4  #: added to 1 - rho^2, which bounds R_kappa and its slope where all gradients coincide
KAPPA_FLOOR = 1e-12  #: least rho^2, which bounds the slope of rho where the gradients cancel
DPP_DELTA = 1e-4  #: ridge: det((G + dI) / (1 + d)) is positive, and 1 for orthogonal gradients as without it


def cosines(v: Float[Tensor, "n b p"]) -> Float64[Tensor, "b n n"]:
    """G_ij = cos(g_i, g_j) = v_i . v_j."""
    v = v.double().transpose(0, 1)
    return v @ v.mT


def off_diagonal(v: Float[Tensor, "n b p"]) -> Float64[Tensor, "b m"]:
    """cos(g_i, g_j) for the n(n-1) ordered pairs i != j."""
    return cosines(v)[:, ~torch.eye(len(v), dtype=torch.bool, device=v.device)]


def kappa(v: Float[Tensor, "n b p"]) -> Float64[Tensor, " b"]:
    """R_kappa = kappa^ / p = rho (p - rho) / (p (1 - rho^2)), with rho = |mean_i v_i|.

    Computed from the mean cosine c: n rho^2 = 1 + (n-1) c and 1 - rho^2 = (n-1)/n (1 - c), free of cancellation.
    """
    n, _, p = v.shape
    c = mean_cosine(v)
    rho = ((1 + (n - 1) * c) / n).clamp_min(KAPPA_FLOOR).sqrt()
    return rho * (1 - rho / p) / ((n - 1) / n * (1 - c).clamp_min(0) + KAPPA_DELTA)


def mean_cosine(v: Float[Tensor, "n b p"]) -> Float64[Tensor, " b"]:
    """R_mean = 1/(n(n-1)) sum_{i != j} cos(g_i, g_j)."""
    return off_diagonal(v).mean(1)


def dpp(v: Float[Tensor, "n b p"]) -> Float64[Tensor, " b"]:
    """R_DPP = -log det(V^T V), V = [v_1 .. v_n]: minus the log squared volume that the unit gradients span."""
    ridge = DPP_DELTA * torch.eye(len(v), dtype=torch.float64, device=v.device)
    factor: Tensor = torch.linalg.cholesky((cosines(v) + ridge) / (1 + DPP_DELTA))
    return -2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)


def max_cosine(v: Float[Tensor, "n b p"]) -> Float64[Tensor, " b"]:
    """R_max = max_{i != j} cos(g_i, g_j)."""
    return off_diagonal(v).amax(1)


def smoothmax(v: Float[Tensor, "n b p"]) -> Float64[Tensor, " b"]:
    """R_smoothmax = log sum_{i != j} exp cos(g_i, g_j)."""
    return off_diagonal(v).logsumexp(1)


REGULARIZERS: Registry[Callable[[Tensor], Tensor]] = Registry(
    "regularizer", {"kappa": kappa, "mean": mean_cosine, "dpp": dpp, "max": max_cosine, "smoothmax": smoothmax}
)
