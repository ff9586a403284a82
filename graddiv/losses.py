"""Losses per example, which grow as the prediction gets worse; expectations over models.  See docs/equations.md."""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from graddiv.errors import GradDivError

PerExample = Float[Tensor, " b"]
Weights = Float[Tensor, " n"] | None  #: probabilities of n sample models; None where all are equally likely


def soft_margin(z: Float[Tensor, "b c"], y: Int64[Tensor, " b"]) -> Float[Tensor, " b"]:
    """s = log sum_{j != y} exp z_j - z_y, the log-odds against the label.

    Cross-entropy is softplus(s), so its gradient sigmoid(s) grad s points where grad s points; but grad s does not
    vanish, nor lose its direction to rounding, when the network is sure of itself.
    """
    own, others = _apart(z, y)
    return others.logsumexp(1) - own


def soft_margin_and_slope(z: Float[Tensor, "b c"], y: Int64[Tensor, " b"]) -> tuple[PerExample, Float[Tensor, "b c"]]:
    """s and ds/dz: exp(z_j) / sum_{i != y} exp z_i for j != y, and -1 for y.

    To the bit what autograd finds, in a third of its time: attacks take the gradient of every sample model.
    """
    own, others = _apart(z, y)
    level = others.logsumexp(1)
    return level - own, (others - level[:, None]).exp_().scatter_(1, y[:, None], -1.0)


def ce(z: Float[Tensor, "b c"], y: Int64[Tensor, " b"]) -> Float[Tensor, " b"]:
    """-log softmax(z)_y = softplus(s)."""
    return softplus(soft_margin(z, y))


def softplus(s: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """log(1 + exp s), which beyond 80 is s to the last digit; there exp s would soon overflow in float32."""
    return functional.softplus(s, threshold=80.0)


def margin(z: Float[Tensor, "b c"], y: Int64[Tensor, " b"]) -> Float[Tensor, " b"]:
    """max_{j != y} z_j - z_y: above 0 where the prediction is wrong."""
    own, others = _apart(z, y)
    return others.amax(1) - own


def dlr(z: Float[Tensor, "b c"], y: Int64[Tensor, " b"]) -> Float[Tensor, " b"]:
    """(max_{j != y} z_j - z_y) / (z_(1) - z_(3)), z_(k) the k-th largest logit: the margin, free of z's scale."""
    if z.shape[1] < 3:
        raise GradDivError(
            f"the network has {z.shape[1]} classes, expected at least 3 for the DLR loss: use ce or margin"
        )
    top = z.topk(3, dim=1).values
    return margin(z, y) / (top[:, 0] - top[:, 2] + 1e-12)


def targeted_dlr(z: Float[Tensor, "b c"], y: Int64[Tensor, " b"], t: Int64[Tensor, " b"]) -> Float[Tensor, " b"]:
    """(z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2), t the class that z should be taken for (Croce & Hein 2020)."""
    if z.shape[1] < 4:
        found = f"the network has {z.shape[1]} classes"
        raise GradDivError(f"{found}, expected at least 4 for the targeted DLR loss: use ce or margin")
    top = z.topk(4, dim=1).values
    gap = z.gather(1, t[:, None]) - z.gather(1, y[:, None])
    return gap.squeeze(1) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + 1e-12)


def expectation(values: Float[Tensor, "n b"], p: Weights = None) -> Float[Tensor, " b"]:
    """sum_i p_i values_i over sample models."""
    return values.mean(0) if p is None else (p[:, None] * values).sum(0)


def log_expectation(log_values: Float[Tensor, "n ..."], p: Weights = None) -> Float[Tensor, "..."]:
    """log sum_i p_i exp(log_values_i)."""
    if p is None:
        return log_values.logsumexp(0) - math.log(len(log_values))
    return (log_values + p.log().reshape(-1, *(1,) * (log_values.dim() - 1))).logsumexp(0)


def _apart(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logit of the true class, and all logits with -inf in its place."""
    if z.shape[1] < 2:
        raise GradDivError(
            f"the network has {z.shape[1]} class, expected at least 2: a single output z stands for the logits "
            "torch.cat([0 * z, z], 1)"
        )
    if len(y) and not (y.min() >= 0 and y.max() < z.shape[1]):
        last = z.shape[1] - 1
        raise GradDivError(f"labels lie in [{y.min()}, {y.max()}], expected 0..{last}: one of the network's outputs")
    return z.gather(1, y[:, None]).squeeze(1), z.scatter(1, y[:, None], -torch.inf)
