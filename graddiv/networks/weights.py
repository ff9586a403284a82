"""Gaussian noise on weights: Adv-BNN (Liu et al. 2019) and PNI (He et al. 2019).  See docs/equations.md."""

import math
import warnings
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.errors import GradDivError, GradDivWarning
from graddiv.networks.activations import WEIGHTED
from graddiv.networks.defense import Rules, defense
from graddiv.networks.inputs import norm_layers
from graddiv.networks.randomized import Noise, RandomizedNetwork, Theta, check_noise
from graddiv.registries import NotNegative, Positive
from graddiv.seeding import generator

KLScope = Literal["all", "last"]
Granularity = Literal["layerwise", "channelwise", "elementwise"]


class WeightNoise(RandomizedNetwork):
    """w~ = w + scale(w) * noise, noise ~ N(0, I), for the parameters in `names`; the others are deterministic."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            raise GradDivError("the weights of a TorchScript module are fixed: make noise of the module it is made of")
        super().__init__(module)
        self.names = names
        self._warned = False
        module.register_forward_pre_hook(self._warn_of_mean_network)

    def _warn_of_mean_network(self, module: nn.Module, inputs: object) -> None:
        """Warn once if the module itself is called in training: without noise, its sigma learns nothing."""
        owner, _, name = self.names[0].rpartition(".")
        # a sample model replaces parameters with tensors
        own = isinstance(module.get_submodule(owner)._parameters[name], nn.Parameter)
        if own and module.training and torch.is_grad_enabled() and not self._warned:
            self._warned = True
            warnings.warn(
                f"the module inside a {type(self).__name__} was called by itself in training: that is the network "
                "without its noise, whose scale then learns nothing; write Objective(F, examples=N)(x, y, step=step), "
                "or F.bind(F.draw(step))(x) for a sample model (.eval() or no_grad to look at the mean on purpose)",
                GradDivWarning,
                stacklevel=4,
            )

    @abstractmethod
    def scale(self, name: str) -> Tensor:
        """Return the standard deviation of the parameter `name`, in its shape or one that broadcasts to it."""

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        g, w = generator(seed, self.device), dict(self.module.named_parameters())
        return {name: _standard_normal(w[name], g) for name in self.names}

    def mean(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(self.module.get_parameter(name)) for name in self.names}

    def theta(self) -> Theta:
        return replace(super().theta(), scales={name: self.scale(name) for name in self.names})

    def realise(self, noise: Noise, theta: Theta) -> dict[str, Tensor]:
        w = dict(theta.parameters)
        noise = check_noise(noise, {name: tuple(w[name].shape) for name in self.names}, self.device)
        return w | {name: _perturbed(w[name], theta.scales[name], noise[name]) for name in self.names}


def _perturbed(w: Tensor, scale: Tensor, noise: Tensor) -> Tensor:
    """w + scale * noise in the memory format of w, which torch would not keep for a single input channel."""
    if torch.is_grad_enabled():  # no `out` for what is differentiated
        return torch.addcmul(w, scale, noise)
    return torch.addcmul(w, scale, noise, out=torch.empty_like(w))


def _standard_normal(like: Tensor, g: torch.Generator) -> Tensor:
    """Draw N(0, I) in the shape of `like`: the same numbers whatever memory format `like` is stored in."""
    noise = torch.randn(like.shape, generator=g, dtype=like.dtype, device=like.device)
    if like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last):
        noise = noise.contiguous(memory_format=torch.channels_last)
    return noise


def _key(name: str) -> str:
    """Return a parameter's name as a key of an `nn.ParameterDict`, which admits no dot."""
    return name.replace(".", "/")


class GaussianNetwork(WeightNoise):
    """w = mu + sigma * noise, noise ~ N(0, I), sigma = exp(log_sigma): q_theta(w) = N(mu, diag sigma^2).

    mu *is* the module's own parameter; log_sigma is kept beside it under the same name (with "/" for ".").
    """

    def __init__(self, module: nn.Module, names: list[str], prior_sigma: float, init_sigma: float, kl_scope: KLScope):
        super().__init__(module, names)
        self.prior_sigma = prior_sigma
        last_layer = names[-1].rpartition(".")[0]
        self.kl_names = [name for name in names if kl_scope == "all" or name.rpartition(".")[0] == last_layer]
        mu = dict(module.named_parameters())
        self.log_sigma = nn.ParameterDict({_key(n): torch.full_like(mu[n], math.log(init_sigma)) for n in names})

    def scale(self, name: str) -> Tensor:
        return torch.exp(self.log_sigma[_key(name)])

    def kl(self) -> Float[Tensor, ""]:
        """KL(q || N(0, sigma_0^2)) = sum_i log(sigma_0 / sigma_i) + (sigma_i^2 + mu_i^2) / (2 sigma_0^2) - 1/2."""
        parts, prior = [], self.prior_sigma
        for name in self.kl_names:
            mu, log_sigma = self.module.get_parameter(name), self.log_sigma[_key(name)]
            second_moment = (2 * log_sigma).exp() + mu.square()
            parts.append((math.log(prior) - log_sigma + second_moment / (2 * prior**2) - 0.5).sum())
        return torch.stack(parts).sum()


@dataclass(frozen=True)
class WithKL(Rules):
    """A Bayesian network's rules: alpha_kl / N KL(q || p) is added, with N the number of training examples."""

    alpha_kl: NotNegative = 0.02  #: the weight of the KL divergence, which is divided by N

    def penalties(self, F: RandomizedNetwork, examples: int) -> dict[str, Tensor]:
        assert isinstance(F, GaussianNetwork)
        return {"kl": self.alpha_kl / examples * F.kl()}


@defense("gaussian", WithKL)
def bayesian(
    module: nn.Module,
    prior_sigma: Positive,
    *,
    init_sigma: Positive | None = None,
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
    kl_scope: what the KL counts: "all", or "last" for the classifier alone, as the released code did by mistake.
    batch_norm: whether batch-norm scale and shift are random too.
    """
    fixed = set() if batch_norm else {id(p) for norm in norm_layers(module) for p in norm.parameters(recurse=False)}
    if not (names := [name for name, p in module.named_parameters() if id(p) not in fixed]):
        raise GradDivError(f"{type(module).__name__} has no parameters to make Bayesian")
    return GaussianNetwork(module, names, prior_sigma, init_sigma or prior_sigma, kl_scope)


class PNINetwork(WeightNoise):
    """w~ = w + alpha * std(w) * noise, noise ~ N(0, I).

    std(w) is that of the whole layer and a constant for the gradient; alpha is learned, and its sign is free.  Keep
    `F.alpha.parameters()` out of weight decay.
    """

    def __init__(self, module: nn.Module, alpha: dict[str, Tensor]) -> None:
        super().__init__(module, list(alpha))
        self.alpha = nn.ParameterDict({_key(name): value for name, value in alpha.items()})

    def scale(self, name: str) -> Tensor:
        """alpha * std(w)."""
        w = self.module.get_parameter(name).detach()
        std = w.std(correction=min(1, w.numel() - 1))  # without a correction where one weight alone makes a layer
        return torch.mul(self.alpha[_key(name)], std)


@defense("pni")
def pni(module: nn.Module, alpha: Positive = 0.25, *, granularity: Granularity = "layerwise") -> PNINetwork:
    """Add learned noise to the weights of every convolution and linear layer; biases and batch norm stay clean.

        F = pni(module)

    Returns a `RandomizedNetwork` whose parameters include the noise levels.

    module: the network; it must contain a convolution or linear layer.
    alpha: the initial noise level, in standard deviations of a layer's weights.
    granularity: whether each layer has a level, each output channel ("channelwise") or each weight ("elementwise").
    """
    noisy = {id(m.weight) for m in module.modules() if isinstance(m, WEIGHTED)}
    levels: dict[str, Tensor] = {}
    for name, w in ((name, p.detach()) for name, p in module.named_parameters() if id(p) in noisy):
        shapes = {"layerwise": (), "channelwise": (len(w), *(1,) * (w.dim() - 1)), "elementwise": tuple(w.shape)}
        levels[name] = w.new_full(shapes[granularity], alpha)
    if not levels:
        raise GradDivError(f"{type(module).__name__} has no convolution or linear layer to add noise to")
    return PNINetwork(module, levels)
