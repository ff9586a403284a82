"""What a defense changes of training: the loss of an example, what is added to it, the network that the loss sees.

Torch is imported when a loss is computed: settings of defenses have these rules and are read without it.
"""

from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from graddiv.networks import RandomizedNetwork


class Minibatch(NamedTuple):
    """What a step of training learns from."""

    x: "Tensor"
    """The images, attacked ones too where training has an adversary."""
    y: "Tensor"
    ids: "Tensor"
    """The data-set index of each image, which addresses its randomness."""
    seed: int
    """Addresses all other randomness of the step."""
    progress: float
    """The share of all steps that is behind, in [0, 1)."""


class Rules:
    """Cross-entropy of a fresh draw, and nothing added to it."""

    interpolated: ClassVar[bool] = False
    """Whether training is on interpolated examples."""

    def trained(self, F: "RandomizedNetwork") -> "RandomizedNetwork":
        """The network that the loss and the inner adversary see: F, unless its noise is no part of training."""
        return F

    def losses(self, F: "RandomizedNetwork", batch: Minibatch) -> "Tensor":
        """CE(f(x), y) for each example, with f drawn for this step; F is what `trained` returns."""
        from graddiv.losses import ce

        return ce(F.bind(F.draw(batch.seed, batch.ids))(batch.x), batch.y)

    def penalties(self, F: "RandomizedNetwork", examples: int) -> "dict[str, Tensor]":
        """What training adds to the loss, by its name in the log; `examples` is the size of the training set."""
        return {}


class WithKL(Rules):
    """A Bayesian network's rules: alpha_kl / N KL(q || p) is added, with N the number of training examples."""

    def __init__(self, alpha_kl: float) -> None:
        self.alpha_kl = alpha_kl

    def penalties(self, F: "RandomizedNetwork", examples: int) -> "dict[str, Tensor]":
        from graddiv.networks import GaussianNetwork

        assert isinstance(F, GaussianNetwork)
        return {"kl": self.alpha_kl / examples * F.kl()}


def neighbours(b: int, device: "torch.device") -> "Tensor":
    """For each row of a batch of b another one: its neighbour, as training visits the examples in random order anyway.

    So an example meets the same one however many processes share the batch, if each has an even number of rows.
    """
    import torch

    return (torch.arange(b, device=device) ^ 1).clamp_max(b - 1)
