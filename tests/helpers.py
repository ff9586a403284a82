"""What several test modules share: small networks of every noise kind, and a watch on the global random state."""

import copy
import random
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from jaxtyping import config
from torch import Tensor, nn

from graddiv.networks import (
    Dirac,
    PNINetwork,
    RandomizedNetwork,
    bayesian,
    compressed,
    ensemble,
    mc_dropout,
    mixup_inference,
    pixeldp,
    pni,
    pni_activations,
    random_crops,
    randomize,
    resize_and_pad,
    rse,
    sap,
    smoothing,
    total_variation,
    wca,
)
from graddiv.seeding import generator, isolated

SHAPE = (1, 6, 6)
CLASSES = 4

SHAPES = {"mnist_cnn": (1, 28, 28), "vgg16": (3, 32, 32), "stl10_cnn": (3, 96, 96)}  #: the images of each architecture


@contextmanager
def global_rng_untouched() -> Iterator[None]:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state()
    yield
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state()
    assert before[0] == after[0], "Python's random state moved"
    assert before[1] == after[1], "NumPy's random state moved"
    assert torch.equal(before[2], after[2]), "torch's random state moved"


@contextmanager
def no_type_checks() -> Iterator[None]:
    """As outside pytest: a wrong argument meets our own message instead of beartype's."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)


def images(b: int, seed: int = 0, shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(b, *shape, generator=generator(seed), dtype=dtype)


def labels(b: int, seed: int = 0, classes: int = CLASSES) -> Tensor:
    return torch.randint(classes, (b,), generator=generator(seed))


def convnet(
    activation: Callable[[], nn.Module] = nn.Softplus, batch_norm: bool = False, seed: int = 0
) -> nn.Sequential:
    """A small smooth network in float64: smooth, since finite differences of input gradients jump at ReLU kinks."""
    with isolated(seed):
        norm = [nn.BatchNorm2d(3)] if batch_norm else []
        return nn.Sequential(
            *(nn.Conv2d(1, 3, 3, padding=1), *norm, activation(), nn.AvgPool2d(2)),
            *(nn.Conv2d(3, 4, 3, padding=1), activation(), nn.Flatten(), nn.Linear(36, CLASSES)),
        ).double()


def with_dropout(module: nn.Sequential) -> nn.Sequential:
    return nn.Sequential(*module[:-1], nn.Dropout(0.3), module[-1])


def siblings(module: nn.Module, count: int) -> list[nn.Module]:
    """The module and others of its kind with weights of their own."""
    others = [copy.deepcopy(module) for _ in range(count - 1)]
    for seed, other in enumerate(others):
        for p in other.parameters():
            p.data += torch.randn(p.shape, generator=generator(seed), dtype=p.dtype) * p.std(correction=0)
    return [module, *others]


KINDS: dict[str, Callable[[nn.Sequential], RandomizedNetwork]] = {
    "dirac": Dirac,
    "bayesian": lambda module: bayesian(module, 0.1),
    "pni": lambda module: pni(module, 0.25, granularity="channelwise"),
    "rse": lambda module: rse(module, SHAPE),
    "mixup": lambda module: mixup_inference(module, (images(40, 7), torch.arange(40) % CLASSES)),
    "foreign": lambda module: randomize(with_dropout(module)),
    "ensemble": lambda module: ensemble(siblings(module, 3)),
    "dropout": lambda module: mc_dropout(module, SHAPE, conv_rate=0.0, dense_rate=0.3),
    "sap": lambda module: sap(module, SHAPE, fraction=4.0, gradient="exact"),
    "resized": lambda module: resize_and_pad(module, SHAPE, margin=1, shrink=True),
    "crops": lambda module: random_crops(module, SHAPE),
    "smoothing": lambda module: smoothing(module, SHAPE),
    "pixeldp": lambda module: pixeldp(module, SHAPE),
    "wca": lambda module: wca(module, SHAPE, features=5),
    "pni-activations": lambda module: pni_activations(module, SHAPE),
    "pni-image": lambda module: pni_activations(module, SHAPE, at="image"),
    "compressed": lambda module: compressed(module, bits=3, quality=75),
    "total-variation": lambda module: total_variation(module, SHAPE, iterations=5, gradient="unrolled"),
    "total-variation-bpda": lambda module: total_variation(module, SHAPE, iterations=5),
}
DETERMINISTIC = ["dirac", "compressed"]
STOCHASTIC = [kind for kind in KINDS if kind not in DETERMINISTIC]
FINITE = ["ensemble", "resized", "crops"]
"""Kinds of which two draws may be the same sample model."""
PER_EXAMPLE = [kind for kind in STOCHASTIC if kind not in ("bayesian", "pni", "foreign", "ensemble")]
"""Kinds whose noise training draws for each example apart."""
WITH_TENSORS = [kind for kind in KINDS if kind != "foreign"]
"""Kinds whose noise is a set of tensors."""
UNBOUNDED = [kind for kind in STOCHASTIC if kind not in FINITE]
REPRESENTATIVE = ("dirac", "bayesian", "rse", "mixup", "foreign", "ensemble", "total-variation-bpda")
"""One of each way in which noise enters; laws that cost much are tried on the others with --slow."""


def costly(kinds: Iterable[str]) -> list[object]:
    """Return the kinds as parameters of a test, of which those that are not representative run with --slow alone."""
    return [kind if kind in REPRESENTATIVE else pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


def differentiable(F: RandomizedNetwork) -> dict[str, Tensor]:
    """The parameters whose gradient is the derivative: PNI holds std(w) constant, on purpose, when it moves w."""
    held = {f"module.{name}" for name in F.names} if isinstance(F, PNINetwork) else set()
    return {name: p for name, p in F.named_parameters() if name not in held}


def network(
    kind: str, activation: Callable[[], nn.Module] = nn.Softplus, batch_norm: bool = False
) -> RandomizedNetwork:
    return KINDS[kind](convnet(activation, batch_norm))


@contextmanager
def room(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: the system itself refuses, in the middle of a write, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


SETTINGS = (
    *("data.name=mnist-mini", "data.examples=8", "network.width=0.05", "adversary.m=1"),
    *("training.epochs=1", "training.batch=4", "training.decays=[]"),
)
"""Overrides that make a recipe small enough for a test."""

TINY = [
    argument
    for setting in (
        "training.epochs=1",
        "training.batch=16",
        "training.decays=[]",
        "data.examples=32",
        "network.width=0.05",
    )
    for argument in ("--set", setting)
]
"""The options that do the same for `graddiv reproduce`."""
