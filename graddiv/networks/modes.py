"""Batch norm with its running statistics: the one place where the mode of a layer is switched, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def running_statistics(module: nn.Module) -> Iterator[None]:
    """Let every batch norm inside use its running statistics, and neither read nor move batch statistics.

    Attacks and the regularizer run inside this: it is the gradient the adversary sees, and examples stay independent.
    """
    norms = [norm for norm in norm_layers(module) if norm.training and norm._buffers["running_mean"] is not None]
    for norm in norms:
        norm.training = False
    try:
        yield
    finally:
        for norm in norms:
            norm.training = True


def norm_layers(module: nn.Module) -> list[nn.Module]:
    """Return the batch-norm layers, known by their buffers: foreign (Bayesian, synchronised) ones count too."""
    return [m for m in module.modules() if "running_mean" in m._buffers]
