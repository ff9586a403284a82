"""Gaussian posteriors over weights: the Bayesian network of Adv-BNN (Liu et al. 2019).

In the paper: docs/equations.md.
"""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.randomized import norm_layers
from graddiv.networks.weight_noise import WeightNoise, parameter_key

KLScope = Literal["all", "last"]


class GaussianNetwork(WeightNoise):
    """w = mu + sigma * noise, noise ~ N(0, I), sigma = exp(log_sigma): q_theta(w) = N(mu, diag sigma^2).

    mu *is* the module's own parameter; log_sigma is kept beside it under the same name (with "/" for ".").
    """

    def __init__(self, module: nn.Module, names: list[str], prior_sigma: float, init_sigma: float, kl_scope: KLScope):
        super().__init__(module, names)
        self.prior_sigma = prior_sigma
        self.kl_names = names if kl_scope == "all" else _last_layer(names)
        mu = dict(module.named_parameters())
        self.log_sigma = nn.ParameterDict(
            {parameter_key(n): torch.full_like(mu[n], math.log(init_sigma)) for n in names}
        )

    def scale(self, name: str) -> Tensor:
        """sigma = exp(log_sigma)."""
        return torch.exp(self.log_sigma[parameter_key(name)])

    def kl(self) -> Float[Tensor, ""]:
        """KL(q || N(0, sigma_0^2)) = sum_i log(sigma_0 / sigma_i) + (sigma_i^2 + mu_i^2) / (2 sigma_0^2) - 1/2.

        Summed over the scalars of every parameter in the scope.
        """
        pairs = [(self.module.get_parameter(name), self.log_sigma[parameter_key(name)]) for name in self.kl_names]
        return torch.stack([self._kl(mu, log_sigma) for mu, log_sigma in pairs]).sum()

    def _kl(self, mu: Tensor, log_sigma: Tensor) -> Float[Tensor, ""]:
        second_moment = (2 * log_sigma).exp() + mu.square()
        return (math.log(self.prior_sigma) - log_sigma + second_moment / (2 * self.prior_sigma**2) - 0.5).sum()


def bayesian(
    module: nn.Module,
    prior_sigma: float,
    *,
    init_sigma: float | None = None,
    kl_scope: KLScope = "all",
    batch_norm: bool = True,
) -> GaussianNetwork:
    """Make every named parameter of `module` Gaussian, as Adv-BNN does: weights, biases, batch-norm scale and shift.

        F = bayesian(module, prior_sigma=0.05)
        optimizer = torch.optim.Adam(F.parameters())  # the means and the logarithms of the standard deviations
        loss = cross_entropy(F.bind(F.draw(seed=0))(x), y) + 0.02 / 50_000 * F.kl()

    Returns a `RandomizedNetwork` that also has `kl()`, the KL divergence from the prior.

    module: the network; its own parameters become the means mu.
    prior_sigma: sigma_0, the standard deviation of the prior N(0, sigma_0^2); positive, in units of the weights.
    init_sigma: the first standard deviation of every weight; sigma_0 by default, as in Adv-BNN.
    kl_scope: which parameters the KL counts: "all", or "last" for the classifier's alone, as the released Adv-BNN code
        did by mistake for VGG.
    batch_norm: whether batch-norm scale and shift are random too; False leaves them deterministic.
    """
    init_sigma = prior_sigma if init_sigma is None else init_sigma
    for name, value in (("prior_sigma", prior_sigma), ("init_sigma", init_sigma)):
        if not (math.isfinite(value) and value > 0):
            raise GradDivError(f"{name} is {value}, expected a positive number")
    if kl_scope not in get_args(KLScope):
        raise GradDivError(f"kl_scope is {kl_scope!r}, expected one of {get_args(KLScope)}")
    fixed = set() if batch_norm else {id(p) for norm in norm_layers(module) for p in norm.parameters(recurse=False)}
    names = [name for name, p in module.named_parameters() if id(p) not in fixed]
    if not names:
        raise GradDivError(f"{type(module).__name__} has no parameters to make Bayesian")
    return GaussianNetwork(module, names, prior_sigma, init_sigma, kl_scope)


def _last_layer(names: list[str]) -> list[str]:
    layer = names[-1].rpartition(".")[0]
    return [name for name in names if name.rpartition(".")[0] == layer]
