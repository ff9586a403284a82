"""Gaussian noise on activations: RSE (Liu et al. 2018), PNI (He et al. 2019), WCA-Net (Eustratiadis et al. 2021).

Sites stand around the layers of a network, and `bind` hands the noise to them.  See docs/zoo.md, docs/equations.md.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.geometry import per_example
from graddiv.networks.architectures import Normalize
from graddiv.networks.defense import Rules, defense
from graddiv.networks.inputs import running_statistics
from graddiv.networks.randomized import Noise, RandomizedNetwork, RowNoise, SampleModel, Theta, check_rows
from graddiv.registries import Count, NotNegative, Positive
from graddiv.seeding import fold, generator, isolated

NoisePlace = Literal["image", "outputs", "inputs"]

TINY = 1e-12  #: added to the variance, whose root has no slope at 0
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
WEIGHTED = (*CONVOLUTIONS, nn.Linear)


class Site(nn.Module, ABC):
    """layer(h~), or with `after` h~ for h = layer(x): h perturbed by noise, which is no part of the state_dict.

    layer: the layer that it replaces.
    settings: the values of attributes that a subclass declares.
    """

    defense: ClassVar[str]  #: the name of its defense, for messages
    after: bool = False  #: whether the output of the layer is perturbed, not its input

    def __init__(self, layer: nn.Module, **settings: Any) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("noise", None, persistent=False)
        vars(self).update(settings)

    @abstractmethod
    def perturbed(self, h: Float[Tensor, "b ..."], noise: Float[Tensor, "r ..."]) -> Float[Tensor, "b ..."]:
        """Return h~; the noise has one row, or one for each example."""

    def noise_shape(self, activation: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the noise for one activation of this shape: the same, unless units share noise."""
        return activation

    def forward(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        output: Tensor = self._noisy(self.layer(x)) if self.after else self.layer(self._noisy(x))
        return output

    def _noisy(self, h: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        noise, shape = self._buffers["noise"], self.noise_shape(tuple(h.shape[1:]))
        if noise is None:
            how = "call a sample model, f = F.bind(F.draw(seed)), then f(x)"
            raise GradDivError(f"a module with {self.defense} noise was called without noise: {how}")
        if (made := tuple(noise.shape[1:])) != shape:
            found = f"{self.defense} noise was made for activations of shape {made} but met {shape}"
            raise GradDivError(f"{found}: pass the true input_shape")
        if len(noise) == 0:  # stands for the layer without noise
            return h
        check_rows(len(noise), len(h))
        return self.perturbed(h, noise)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self).__annotations__ if name != "layer")


class Visit(NamedTuple):
    """One call of a layer."""

    layer: nn.Module
    x: Tensor
    y: Tensor  #: its output
    calls: int = 1  #: how often in one pass


class SiteNetwork(RowNoise):
    """Noise at sites, which replace their layers in the module; `find` returns the `visits`."""

    def __init__(
        self, module: nn.Module, sites: Mapping[str, Site], visits: Mapping[str, Visit], **settings: Any
    ) -> None:
        shapes = {}
        for name, site in sites.items():
            if visits[name].calls > 1:
                raise GradDivError(f"layer {name!r} is used twice in one pass: {site.defense} needs noise for each use")
            h = visits[name].y if site.after else visits[name].x
            shapes[f"{name}.noise"] = site.noise_shape(tuple(h.shape[1:]))
        super().__init__(module, shapes, **settings)
        replace(module, {site.layer: site for site in sites.values()})

    def realise(self, noise: Noise, theta: Theta) -> dict[str, Tensor]:
        return {**theta.parameters, **self.checked(noise)}


def find(module: nn.Module, kinds: tuple[type[nn.Module], ...], input_shape: Sequence[int]) -> dict[str, Visit]:
    """Return how `module` calls its layers of these kinds for `an_image`, by name in order of execution."""
    if site := next((m for m in module.modules() if isinstance(m, Site)), None):
        raise GradDivError(f"{type(module).__name__} has noise sites already: {site.defense} was put on it before")
    layers = {name: m for name, m in module.named_modules() if name and isinstance(m, kinds)}
    try:
        with torch.no_grad(), isolated(0), running_statistics(module):
            visits = watched(module, layers, an_image(module, input_shape)) if layers else []
    except RuntimeError as error:
        raise GradDivError(f"input_shape is {tuple(input_shape)}, which the module does not take: {error}") from error
    calls = Counter(name for name, _ in visits)
    return {name: visit._replace(calls=calls[name]) for name, visit in visits}


def watched(f: SampleModel, layers: Mapping[str, nn.Module], x: Tensor) -> list[tuple[str, Visit]]:
    """Call f(x) and return how it calls these layers, in order."""
    visits: list[tuple[str, Visit]] = []

    def note(name: str, layer: nn.Module, inputs: tuple[Tensor, ...], y: Tensor) -> None:
        visits.append((name, Visit(layer, inputs[0], y)))

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(partial(note, name)))
        f(x)
    return visits


def an_image(module: nn.Module, shape: Sequence[int]) -> Tensor:
    """Return a batch of one random image on the device of the parameters."""
    return torch.rand(1, *shape, generator=generator(0)).to(next(module.parameters()))


def replace(module: nn.Module, new: Mapping[nn.Module, nn.Module]) -> None:
    """Replace every m with new[m], under each of its names."""
    for parent in list(module.modules()):
        for name, child in parent._modules.items():  # named_children() leaves out second names
            if child is not None and child in new:
                parent._modules[name] = new[child]


class NoiseSite(Site):
    """layer(x + sigma * noise)."""

    defense = "RSE"
    sigma: float

    def perturbed(self, h: Float[Tensor, "b ..."], noise: Float[Tensor, "r ..."]) -> Float[Tensor, "b ..."]:
        return torch.add(h, noise, alpha=self.sigma)


class RSENetwork(SiteNetwork):
    """h <- h + sigma * noise, noise ~ N(0, I), before every convolution, in training (per example) and later."""


@defense("rse")
def rse(
    module: nn.Module, input_shape: Sequence[int], *, sigma_init: NotNegative = 0.2, sigma_inner: NotNegative = 0.1
) -> RSENetwork:
    """Insert a noise site before every convolution of `module` (in place); the first has sigma_init, in pixel units.

        F = rse(module, input_shape=x.shape[1:])

    Returns a `RandomizedNetwork`.

    module, input_shape: the network, which must contain a convolution, and the shape of one image.
    sigma_init: the standard deviation of the noise on the image, before any normalization; 0.2 as in RSE.
    sigma_inner: that of the noise at the later sites, in units of the activations; 0.1 as in RSE.
    """
    visits = find(module, (*CONVOLUTIONS, Normalize), input_shape)
    if all(isinstance(visit.layer, Normalize) for visit in visits.values()):
        raise GradDivError(f"{type(module).__name__} has no convolution inside: RSE adds noise before convolutions")
    first, *later = visits
    if isinstance(visits[first].layer, Normalize):  # its site serves the first convolution, too
        del later[0]
    sigmas = {first: sigma_init, **dict.fromkeys(later, sigma_inner)}
    sites = {name: NoiseSite(visits[name].layer, sigma=sigma) for name, sigma in sigmas.items()}
    return RSENetwork(module, sites, visits)


class ActivationNoise(Site):
    """h~ = h + alpha * std(h) * noise, with std(h) of each example."""

    defense = "PNI"

    def __init__(self, layer: nn.Module, alpha: float, *, after: bool = False) -> None:
        super().__init__(layer, after=after)
        self.alpha = nn.Parameter(next(layer.parameters()).new_tensor(alpha))

    def perturbed(self, h: Float[Tensor, "b ..."], noise: Float[Tensor, "r ..."]) -> Float[Tensor, "b ..."]:
        std = (h.flatten(1).var(1, correction=0) + TINY).sqrt()
        return h + self.alpha * per_example(std, h) * noise


class ActivationPNINetwork(SiteNetwork):
    """v~ = v + alpha * std(v) * noise, noise ~ N(0, I), alpha learned for each site, its sign free."""


@defense("pni_activations")
def pni_activations(
    module: nn.Module, input_shape: Sequence[int], alpha: Positive = 0.25, *, at: NoisePlace = "outputs"
) -> ActivationPNINetwork:
    """Add learned noise inside `module` (in place).

        F = pni_activations(module, input_shape=x.shape[1:], at="outputs")

    Returns a `RandomizedNetwork` whose parameters include the noise levels.

    module, input_shape: the network, which must contain a convolution or linear layer, and the shape of one image.
    alpha: the initial noise level, in standard deviations of the activation.
    at: "image" for noise on the input alone (PNI-I), "outputs" for the outputs of all convolutions and linear layers
        (PNI-A-a), "inputs" for their inputs, that of the first included (PNI-A-b).
    """
    visits = find(module, WEIGHTED, input_shape)
    if not visits:
        raise GradDivError(f"{type(module).__name__} has no convolution or linear layer inside to add noise to")
    names = list(visits)[: 1 if at == "image" else None]
    sites = {name: ActivationNoise(visits[name].layer, alpha, after=at == "outputs") for name in names}
    return ActivationPNINetwork(module, sites, visits)


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
    """logits = W (h(x) + L noise) + b, noise ~ N(0, I_d), so their covariance is W L L^T W^T whatever x."""

    @property
    def head(self) -> HeadNoise:
        return next(m for m in self.module.modules() if isinstance(m, HeadNoise))

    def log_variances(self) -> Float[Tensor, " c"]:
        """ln(w_c^T L L^T w_c) of each class, which training maximizes."""
        return (self.head.layer.weight @ self.head.factor.tril()).square().sum(1).log()


@dataclass(frozen=True)
class LargeVariances(Rules):
    """-weight sum_c ln(w_c^T L L^T w_c) + decay (|L|^2 + |W|^2) / 2, which bounds the variances."""

    weight: NotNegative = 1.0  #: the weight of the first term
    variances: Literal["sum of logs", "log of sum"] = "sum of logs"  #: the released code has "log of sum"
    decay: NotNegative = 1e-4  #: the weight decay of L and W

    def penalties(self, F: RandomizedNetwork, examples: int) -> dict[str, Tensor]:
        assert isinstance(F, WCANetwork)
        logs = F.log_variances()
        variances = logs.sum() if self.variances == "sum of logs" else logs.logsumexp(0)
        size = (F.head.factor.tril().square().sum() + F.head.layer.weight.square().sum()) / 2
        return {"variances": -self.weight * variances, "decay": self.decay * size}


@defense("wca", LargeVariances)
def wca(module: nn.Module, input_shape: Sequence[int], *, features: Count = 32) -> WCANetwork:
    """Put a layer of `features` units before the classifier of `module` (in place), with noise on its output.

        F = wca(module, input_shape=x.shape[1:])

    Returns a `RandomizedNetwork` whose parameters include the covariance of the noise.

    module, input_shape: the network, whose last layer must be linear, and the shape of one image.
    features: the dimension of the noise; 32 in the released code.
    """
    visits = find(module, (nn.Linear,), input_shape)
    if not visits:
        raise GradDivError(f"{type(module).__name__} has no linear layer inside, expected a linear classifier")
    name, (last, *_) = visits.popitem()
    assert isinstance(last, nn.Linear)
    # another initialization has another head
    with isolated(fold(0, "wca", float(last.weight.detach().flatten()[0]).hex())):
        projection = nn.Linear(last.in_features, features).to(last.weight)
        head = HeadNoise(nn.Linear(features, last.out_features).to(last.weight))
    replace(module, {last: nn.Sequential(projection, head.layer)})
    return WCANetwork(module, {f"{name}.1": head}, find(module, (nn.Linear,), input_shape))
