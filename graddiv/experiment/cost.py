"""An estimate of training time: multiplications, divided by the speed that is measured on this machine."""

import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch.utils.benchmark import Timer

from graddiv.networks import ARCHITECTURES
from graddiv.networks.architectures import multiplications_of
from graddiv.performance import channels_last
from graddiv.registries import MOST
from graddiv.seeding import generator

if TYPE_CHECKING:
    from graddiv.experiment.settings import DataSection, Experiment, NetworkSection

LOOKED_AT = 512  #: images of which three gradients are measured before training and after each epoch
#: Training time over the time of its passes, for noise, batch norm's statistics and the optimizer.  Measured on one
#: core at widths 1/8 and 1/4: 1.07 to 1.19 on MNIST's digits, 1.15 on CIFAR-10, 1.2 to 1.45 on STL-10.
BESIDES = 1.2
TWO_CORES = 30e9  #: multiplications per second on two cores of 2020s servers, to a factor of three (docs/benchmarks.md)
SECONDS = 1.0  #: Roughly how long a network is timed.
BATCH = 64
TOO_SHORT = 5.0  #: Seconds of training on two cores, below which the speed is not measured.
Clock = Callable[[], float]  #: Tells seconds: of the day, or of the processor's work.


def forward_work(experiment: "Experiment") -> float:
    """Multiplications of a forward pass of one image; counted where the network or the data are the user's own."""
    network, data = experiment.network, experiment.data
    if network.file is None and data.file is None:
        return ARCHITECTURES[network.architecture].multiplications * network.width**2
    return _counted(network, data)


@cache
def _counted(network: "NetworkSection", data: "DataSection") -> float:
    return multiplications_of(network.module(data), data.shape)


def work_of_steps(experiment: "Experiment", done: int = 0) -> float:
    """Approximate multiplications of the training steps that are left after `done` epochs.

    Per image two passes for each step of the inner PGD, the passes of the rules, and six for each gradient of R.
    """
    passes = 0.0
    for stage in experiment.schedule:
        adversary = experiment.adversary_of(stage)
        attack = 2 * adversary.m * adversary.n if adversary is not None else 0
        halves = 2 if adversary is not None and 0 < adversary.clean_weight < 1 else 1
        regularizer = 6 * stage.graddiv.n if stage.graddiv is not None and stage.graddiv.lam > 0 else 0
        left, done = max(stage.epochs - done, 0), max(done - stage.epochs, 0)
        passes += left * (attack + experiment.rules.passes * halves + regularizer)
    return _examples(experiment) * passes * forward_work(experiment)


def training_work(experiment: "Experiment", done: int = 0) -> float:
    """Approximate multiplications of training that are left after `done` epochs, measurements included."""
    looks = experiment.epochs - done + (done == 0)
    measured = 6.0 * min(LOOKED_AT, _examples(experiment)) * looks * forward_work(experiment)
    return BESIDES * (work_of_steps(experiment, done) + measured)


def _examples(experiment: "Experiment") -> int:
    data = experiment.data
    if data.examples is not None and data.file is None:
        return data.examples
    return min(data.examples or MOST, data.source.training_examples)


def duration(seconds: float) -> str:
    """A rounded time such as 3 h."""
    minutes = seconds / 60
    unit, name = (1, "min") if minutes < 90 else (60, "h") if minutes < 48 * 60 else (24 * 60, "days")
    return f"{minutes / unit:.0f} {name}" if minutes >= 1 else "<1 min"


def training_seconds(experiment: "Experiment", device: str = "cpu", done: int = 0) -> float:
    """Approximate seconds of training left here after `done` epochs, in one process."""
    work = training_work(experiment, done)
    return work / (TWO_CORES if work / TWO_CORES < TOO_SHORT else multiplications_per_second(experiment, device))


def multiplications_per_second(
    experiment: "Experiment", device: str = "cpu", clock: Clock = time.perf_counter
) -> float:
    """Multiplications per second in passes of the experiment's network here, with as many threads as torch has.

    Timed once per process for each network: narrow ones reach a fraction of the speed of wide ones.
    """
    return 2 * BATCH * forward_work(experiment) / _seconds(experiment.network, experiment.data, device, clock)


@cache
def _seconds(network: "NetworkSection", data: "DataSection", device: str, clock: Clock) -> float:
    """The time of a forward pass and a backward pass to the input, about two forward passes, of a batch."""
    module = channels_last(network.module(data).eval().requires_grad_(False)).to(device)
    x = channels_last(torch.rand(BATCH, *data.shape, generator=generator(0))).to(device).requires_grad_()
    # reading the sum waits for a device that works on its own
    statement = "torch.autograd.grad(module(x).sum(), x)[0].sum().item()"
    names, threads = {"torch": torch, "module": module, "x": x}, torch.get_num_threads()
    return Timer(statement, timer=clock, globals=names, num_threads=threads).blocked_autorange(None, SECONDS).mean
