"""WCA-Net (Eustratiadis et al. 2021): Gaussian noise with a learned covariance on the last features."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.sites import Site, SiteNetwork, place, replace
from graddiv.seeding import fold, isolated


class HeadNoise(Site):
    """W (h + L noise) + b, L lower triangular."""

    defense = "WCA-Net"
    layer: nn.Linear

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        d = layer.in_features
        self.factor = nn.Parameter(torch.rand(d, d).tril().to(layer.weight))

    def perturbed(self, h: Float[Tensor, "b d"], noise: Float[Tensor, "r d"]) -> Float[Tensor, "b d"]:
        return h + noise @ self.factor.tril().mT


class WCANetwork(SiteNetwork):
    """logits = W (h(x) + L noise) + b, noise ~ N(0, I_d), so their covariance is W L L^T W^T whatever x.

    The noise is a constant added to the logits.  Every sample model has the same Jacobian of the logits, the mean
    network has their expectation, and an average over draws removes most of the defense: its adversary attacks the
    noise-free network, at `mean()`, with a margin loss, and is judged on draws.
    """

    def __init__(self, module: nn.Module, shapes: dict[str, tuple[int, ...]], head: HeadNoise) -> None:
        super().__init__(module, shapes)
        self._head = (head,)  # in a tuple, since it is a part of the module already

    @property
    def head(self) -> HeadNoise:
        """The classifier with its noise."""
        return self._head[0]

    def log_variances(self) -> Float[Tensor, " c"]:
        """ln(w_c^T L L^T w_c) of each class, which training maximises."""
        return (self.head.layer.weight @ self.head.factor.tril()).square().sum(1).log()

    def decay(self) -> Float[Tensor, ""]:
        """(|L|^2 + |W|^2) / 2, without which the variances would grow for ever."""
        return (self.head.factor.tril().square().sum() + self.head.layer.weight.square().sum()) / 2


def wca(module: nn.Module, input_shape: Sequence[int], *, features: int = 32) -> WCANetwork:
    """Put a layer of `features` units before the classifier of `module` (in place), with noise on its output.

        F = wca(module, input_shape=x.shape[1:])

    Returns a `RandomizedNetwork` whose parameters include the covariance of the noise.

    module: the network; its last layer must be linear.
    input_shape: the shape of one image.
    features: the dimension of the noise; 32 in the released code.
    """
    if features < 1:
        raise GradDivError(f"features is {features}, expected at least 1")
    layers = [(n, m) for n, m in module.named_modules() if n and isinstance(m, nn.Linear)]
    if not layers:
        raise GradDivError(f"{type(module).__name__} has no linear layer inside, expected a linear classifier")
    name, last = layers[-1]
    # New weights are addressed by those they replace, so that another initialisation has another head.
    with isolated(fold(0, "wca", float(last.weight.detach().flatten()[0]).hex())):
        like = last.weight
        projection = nn.Linear(last.in_features, features).to(like.device, like.dtype)
        head = HeadNoise(nn.Linear(features, last.out_features).to(like.device, like.dtype))
    both = nn.Sequential(projection, head.layer)
    replace(module, {last: both})
    try:
        shapes = place(module, {f"{name}.1": head}, input_shape)
    except Exception:
        replace(module, {both: last})
        raise
    return WCANetwork(module, {f"{n}.noise": shape for n, shape in shapes.items()}, head)
