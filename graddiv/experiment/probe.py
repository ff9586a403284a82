"""How fast this machine is, measured: what estimates of time are made of where torch is at hand."""

import time
from functools import cache

from graddiv.data import SOURCES
from graddiv.experiment.cost import forward_work
from graddiv.experiment.schema import Experiment

SECONDS = 2.0
"""How long a network is tried, at most, after a first pass that warms up."""
BATCH = 64


def multiplications_per_second(experiment: Experiment, device: str = "cpu") -> float:
    """Multiplications per second in passes of the experiment's network here, with as many threads as torch has.

    Tried once per process for each architecture and width: narrow networks reach a fraction of the speed of wide ones.
    """
    network = experiment.network
    passes = _passes_per_second(network.architecture, network.width, SOURCES[experiment.data.name].shape, device)
    return passes * forward_work(network)


@cache
def _passes_per_second(name: str, width: float, shape: tuple[int, int, int], device: str) -> float:
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
    begun, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < SECONDS and done < 100:
        one()
        done += 1
    return 2 * BATCH * done / spent
