"""Losses, per example and never reduced."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from graddiv.errors import GradDivError


def soft_margin(z: Float[Tensor, "b c"], y: Int64[Tensor, " b"]) -> Float[Tensor, " b"]:
    """S = log sum_{j != y} exp z_j - z_y, the log-odds against the label.

    Cross-entropy is softplus(s), so its gradient sigmoid(s) grad s points where grad s points; but grad s does not
    vanish, nor lose its direction to rounding, when the network is sure of itself.
    """
    if len(y) and not (y.min() >= 0 and y.max() < z.shape[1]):
        raise GradDivError(
            f"labels lie in [{y.min()}, {y.max()}], expected 0..{z.shape[1] - 1}: one of the network's outputs"
        )
    others = z.scatter(1, y[:, None], -torch.inf)
    return others.logsumexp(1) - z.gather(1, y[:, None]).squeeze(1)


def ce(z: Float[Tensor, "b c"], y: Int64[Tensor, " b"]) -> Float[Tensor, " b"]:
    """-log softmax(z)_y = softplus(s)."""
    return functional.softplus(soft_margin(z, y), threshold=torch.inf)
