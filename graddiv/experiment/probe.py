"""How fast this machine is, measured: what estimates of time are made of where torch is at hand."""

import time
from collections.abc import Callable
from functools import cache

from graddiv.data import SOURCES
from graddiv.experiment.cost import forward_work, training_work
from graddiv.experiment.schema import Experiment
from graddiv.experiment.speed import TWO_CORES, known_speed, remember

SECONDS = 2.0
"""How long a network is tried, at most, after a first pass that warms up."""
BATCH = 64
TOO_SHORT = 5.0
"""Seconds of training, by the constant, below which it is not worth while to try its network."""

Clock = Callable[[], float]
"""Tells seconds: of the day, or of the processor's work."""


def training_seconds(experiment: Experiment, device: str = "cpu", done: int = 0) -> float:
    """How long training takes here, about, in one process, once so many epochs are done."""
    work = training_work(experiment, done)
    if work / TWO_CORES < TOO_SHORT:
        return work / (known_speed(experiment, device) or TWO_CORES)
    return work / multiplications_per_second(experiment, device)


def multiplications_per_second(experiment: Experiment, device: str = "cpu", clock: Clock = time.perf_counter) -> float:
    """Multiplications per second in passes of the experiment's network here, with as many threads as torch has.

    Tried once per process for each architecture and width: narrow networks reach a fraction of the speed of wide ones.
    What was found is remembered, for lists that are made without torch.
    """
    network, before = experiment.network, _passes_per_second.cache_info().misses
    shape = SOURCES[experiment.data.name].shape
    speed = _passes_per_second(network.architecture, network.width, shape, device, clock) * forward_work(network)
    if _passes_per_second.cache_info().misses > before and clock is time.perf_counter:
        remember(experiment, device, speed)
    return speed


@cache
def _passes_per_second(name: str, width: float, shape: tuple[int, int, int], device: str, clock: Clock) -> float:
    """Forward-equivalents per second and image: a forward and an input backward are two."""
    import torch

    from graddiv.networks import architecture
    from graddiv.performance import channels_last
    from graddiv.seeding import generator

    module = channels_last(architecture(name, width).eval().requires_grad_(False)).to(device)
    x = channels_last(torch.rand(BATCH, *shape, generator=generator(0))).to(device).requires_grad_()

    def one() -> None:
        (g,) = torch.autograd.grad(module(x).sum(), x)
        float(g.sum())  # waits for a device that works on its own

    one()
    begun, done = clock(), 0
    while (spent := clock() - begun) < SECONDS and done < 100:
        one()
        done += 1
    return 2 * BATCH * done / spent
