"""F ~ q_theta(F): a randomized network is theta plus a law of noise, and noise is a value.

`draw(seed)` makes a noise value, `bind(noise)` the sample model f: x -> logits that belongs to it.  The same noise
gives the same function, so nothing samples behind the caller's back.  See docs/equations.md.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd

from graddiv.errors import GradDivError
from graddiv.networks.inputs import check_is_module, logits_of
from graddiv.networks.prediction import predict as ensemble_prediction
from graddiv.seeding import Law, fold, numbers, uniform

#: The value of all randomness of one sample model: named tensors, or a seed where the module draws by itself.
Noise = Mapping[str, Tensor] | int
SampleModel = Callable[[Tensor], Tensor]  #: f: an ordinary deterministic function x -> logits
Shapes = Mapping[str, tuple[int | None, ...]]  #: of noise by its names, None being any length
DROPOUT = (_DropoutNd,)  #: layers that draw by themselves in train mode


class RandomizedNetwork(nn.Module, ABC):
    """F = f_theta(., noise) with noise ~ p: `module` is the architecture, its parameters are (part of) theta.

        f = F.bind(F.draw(seed=0))  # a sample model: the same seed gives the same function
        logits = f(x)
        models = F.sample(5, seed=0)  # five of them
        label = F.predict(x).label  # what an ensemble of 20 says

    `bayesian`, `rse`, `randomize` and the others make one of a module; a subclass has `draw`, and `realise` or `bind`.

    Under `torch.no_grad()`, `bind` computes the weights once, as constants: bind again once theta has moved.
    With gradients enabled any number of sample models, differentiable in theta, may be alive at once.

    module: the architecture, with its parameters.
    """

    random: bool = True  #: whether there is more than one sample model; a deterministic network is asked once
    pointwise: bool = True  #: whether f(x)[i] depends on x[i] alone (batch norm aside): batches may be cut and joined

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        check_is_module(module)
        if isinstance(module, RandomizedNetwork):
            raise GradDivError(f"{type(module).__name__} is a RandomizedNetwork already: use it as it is")
        # functional_call takes a module of TorchScript only inside of another one
        self.module = nn.Sequential(module) if isinstance(module, torch.jit.ScriptModule) else module

    @property
    def proxy_gradient(self) -> bool:
        """Whether gradients are those of a stand-in, because a step inside has none of its own (`straight_through`)."""
        return any(isinstance(m, StraightThrough) for m in self.modules())

    @abstractmethod
    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> Noise:
        """Draw noise ~ p, a pure function of the seed, on the parameters' device.

        With `batch`, data-set indices, noise on images and activations is drawn for each example apart, addressed by
        its index; without it one value serves every x, which makes f one function.
        """

    def bind(self, noise: Noise, theta: "Theta | None" = None) -> SampleModel:
        """Return the sample model f_theta(., noise), for theta as it is now or as `theta()` once gave it."""
        return BoundModel(self.module, self.realise(noise, theta or self.theta()))

    def realise(self, noise: Noise, theta: "Theta") -> dict[str, Tensor]:
        """Return the tensors, by name, with which `module` computes f_theta(., noise): its own, unless random."""
        return dict(theta.parameters)

    def theta(self) -> "Theta":
        """Return theta as it is now, computed once for any number of sample models; under no_grad as constants."""
        wanted = torch.is_grad_enabled()
        return Theta({name: p if wanted else p.detach() for name, p in self.module.named_parameters()})

    def mean(self) -> Noise | None:
        """E noise, the noise of the mean network, at which an adversary may begin; None where the law has no mean."""
        return None

    def support(self) -> "Support | None":
        """Return every value of the noise with its probability, where there are finitely many; None otherwise."""
        return None

    def distinct_draws(
        self, seeds: Sequence[int], batch: Int64[Tensor, " b"] | None = None
    ) -> list[Callable[[], Noise]]:
        """Return a draw for each seed; finitely many values are drawn without replacement, and shared by the batch."""
        support = self.support()
        if support is None or len(support.noises) == 1:
            return [partial(self.draw, seed, batch) for seed in seeds]
        order = support.without_replacement(len(seeds), seeds[0])
        return [partial(support.noises.__getitem__, i) for i in order]

    def sample(self, n: int, seed: int, batch: Int64[Tensor, " b"] | None = None) -> list[SampleModel]:
        """Return f_1 .. f_n ~ q_theta; the first 3 of 10 are the same as the first 3 of 3."""
        # With gradients, models must not share sigma's graph: a backward pass through one would free it for the others.
        theta = None if torch.is_grad_enabled() else self.theta()
        return [self.bind(self.draw(fold(seed, "model", i), batch), theta) for i in range(n)]

    predict = ensemble_prediction

    def forward(self, x: Tensor) -> Tensor:
        raise TypeError(
            f"{type(self).__name__} is a distribution over networks and has no output of its own: to predict write "
            "F.predict(x).label, to train Objective(F, examples=N)(x, y, step=step), and for one sample model "
            "f = F.bind(F.draw(seed)), then f(x)"
        )

    @property
    def device(self) -> torch.device:
        """The device of the parameters, on which noise is drawn."""
        return next(chain(self.module.parameters(), self.module.buffers()), torch.empty(0, device="cpu")).device


class Support(NamedTuple):
    """All values of a noise that has finitely many: expectations over it are exact sums."""

    noises: Sequence[Noise]
    probabilities: Float64[Tensor, " outcomes"]  #: they sum to 1

    @property
    def is_uniform(self) -> bool:
        return bool((self.probabilities == self.probabilities[0]).all())

    def number(self, u: Float64[Tensor, " r"]) -> Int64[Tensor, " r"]:
        """Return the index of the value that each u ~ U[0, 1) chooses."""
        return torch.searchsorted(self.probabilities.cumsum(0), u.cpu(), right=True).clamp_max(len(self.noises) - 1)

    def without_replacement(self, n: int, seed: int) -> list[int]:
        """Draw the indices of n different values, or of all, each in proportion to the probabilities of those left."""
        u = uniform(seed, torch.arange(len(self.noises)), 1)[:, 0]
        waiting = -torch.log1p(-u) / self.probabilities.cpu()  # exponential times: the first ones come in this law
        return [int(i) for i in waiting.argsort()[:n]]


@dataclass(frozen=True, eq=False)
class Theta:
    """The parameters of the module, by name, and the standard deviation of those that are random."""

    parameters: Mapping[str, Tensor]
    scales: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class BoundModel:
    """f = module with some of its tensors replaced; the module itself is left as it is."""

    module: nn.Module
    tensors: Mapping[str, Tensor] = field(repr=False)

    def __call__(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
        if any(isinstance(m, DROPOUT) and m.training for m in self.module.modules()):
            raise GradDivError(
                f"{type(self.module).__name__} has dropout in train mode, which draws behind the noise: "
                "call .eval() on the network, or randomize(module) to make dropout its noise"
            )
        output = functional_call(self.module, dict(self.tensors), (x,))
        return logits_of(output, type(self.module).__name__, len(x))


class Dirac(RandomizedNetwork):
    """q_theta is a point mass: a deterministic network (*No defense*, *Adv. train*) in the same vocabulary.

        F = Dirac(module)
        logits = F(x)  # as the module itself; draw, bind, sample and predict are there, too

    module: the network.
    """

    random = False

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> Noise:
        return {}

    def mean(self) -> Noise:
        return {}

    def support(self) -> Support:
        return Support([{}], torch.ones(1, dtype=torch.float64))

    def realise(self, noise: Noise, theta: Theta) -> dict[str, Tensor]:
        check_noise(noise, {}, self.device)
        return dict(theta.parameters)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.module(x)
        return logits


class Noiseless(Dirac):
    """F with its noise held at the mean: the deterministic network that some defenses train before they add noise."""

    def __init__(self, F: RandomizedNetwork) -> None:
        super().__init__(F.module)
        if F.mean() is None:
            raise GradDivError(f"the noise of {type(F).__name__} has no mean, expected a network that can be quiet")
        self.F = F

    def theta(self) -> Theta:
        return self.F.theta()

    def realise(self, noise: Noise, theta: Theta) -> dict[str, Tensor]:
        return self.F.realise(self.F.mean() or {}, theta)


class RowNoise(RandomizedNetwork):
    """Noise whose tensors have one row for every x, or a row for each example; N(0, I) unless `law` says otherwise.

    shapes: those of a row, by the name of the tensor.
    settings: the values of attributes that a subclass declares.
    """

    law: ClassVar[Law] = "normal"
    counts: Mapping[str, int] = {}  #: for noise that is an index: how many values it has

    def __init__(self, module: nn.Module, shapes: Mapping[str, tuple[int, ...]], **settings: Any) -> None:
        super().__init__(module)
        self.shapes = dict(shapes)
        vars(self).update(settings)

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        noise = numbers(self.law, seed, batch, sum(sizes), next(self.module.parameters()))
        parts = zip(self.shapes.items(), torch.split_with_sizes(noise, sizes, dim=1), strict=True)
        return {name: part.reshape(-1, *shape) for (name, shape), part in parts}

    def mean(self) -> dict[str, Tensor]:
        like = next(self.module.parameters())
        return {name: like.new_zeros(1, *shape) for name, shape in self.shapes.items()}

    def checked(self, noise: Noise) -> Mapping[str, Tensor]:
        """Return the noise once its names, shapes and device are right."""
        return check_noise(noise, {n: (None, *shape) for n, shape in self.shapes.items()}, self.device, self.counts)


class StraightThrough(nn.Module):
    """y = fn(x) exactly, with dy/dx taken to be the identity, however often it is differentiated.

        F = Dirac(torch.nn.Sequential(straight_through(torch.round), module))  # attacks can differentiate it

    This is BPDA (Athalye et al. 2018): the true gradient is zero or missing.  `proxy_gradient` and records report it.

    fn: a function of images that keeps their shape and treats every example alike; parameters inside it get no
        gradient.
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
        return y + (x - x.detach())  # y to the bit, which x + (y - x) would not be


straight_through = StraightThrough


def check_noise(
    noise: Noise, shapes: Shapes, device: torch.device, counts: Mapping[str, int] | None = None
) -> Mapping[str, Tensor]:
    """Return `noise` if it has these names and shapes (None: any length) on this device, and indices below `counts`."""
    if isinstance(noise, int):
        raise GradDivError(f"noise is the integer {noise}, expected a set of tensors: make it with F.draw(seed)")
    if odd := sorted(noise.keys() ^ shapes.keys()):
        raise GradDivError(
            f"noise belongs to another network: it has {len(noise)} tensors, expected {len(shapes)}, and "
            f"{', '.join(map(repr, odd[:3]))}{' and others' if len(odd) > 3 else ''} stand on one side only"
        )
    for name, shape in shapes.items():
        found = tuple(noise[name].shape)
        if len(found) != len(shape) or any(e not in (f, None) for f, e in zip(found, shape, strict=True)):
            wanted = tuple("any" if length is None else length for length in shape)
            raise GradDivError(f"noise {name!r} has shape {found}, expected {wanted}: it belongs to another network")
        if noise[name].device != device:
            raise GradDivError(f"noise {name!r} lies on {noise[name].device}, but the parameters on {device}")
    for name, count in (counts or {}).items():
        first, last = (int(end) for end in noise[name].aminmax())
        if first < 0 or last >= count:
            raise GradDivError(f"noise names {name} {last} of {count}: it belongs to another network")
    return noise


def check_rows(rows: int, batch: int) -> None:
    """Refuse noise that was drawn for a batch of another size; noise of one row serves every x."""
    if rows not in (1, batch):
        raise GradDivError(f"noise was drawn for {rows} examples and met {batch}: draw it with the ids of this batch")
