"""Steps without a useful gradient (rounding, compression, solvers): exact forward, identity backward."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graddiv.errors import GradDivError


class StraightThrough(nn.Module):
    """y = fn(x) exactly, with dy/dx taken to be the identity, however often it is differentiated.

    This is BPDA (Athalye et al. 2018), and it belongs to the network: whoever differentiates the network gets it.  The
    true gradient of such a step is zero or missing, so every gradient is then that of a stand-in; a randomized network
    that holds one of these modules says so in its `proxy_gradient`, and the records of attacks repeat it.
    """

    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        with torch.no_grad():
            y = self.fn(x.detach())
        if y.shape != x.shape:
            raise GradDivError(
                f"a straight-through step turned shape {tuple(x.shape)} into {tuple(y.shape)}, expected the same: "
                "the gradient is handed from the one to the other unchanged"
            )
        # y + (x - x) is y to the bit, which x + (y - x) would not be
        return y + (x - x.detach())


def straight_through(fn: Callable[[Tensor], Tensor]) -> StraightThrough:
    """Make a layer of `fn`: exact forward, identity backward.

        F = Dirac(torch.nn.Sequential(straight_through(torch.round), module))  # attacks can differentiate it

    Returns a module; a network that holds it has `proxy_gradient`, which records and audits tell.

    fn: a function of images that keeps their shape and treats every example alike; parameters inside it get no
        gradient.
    """
    return StraightThrough(fn)
