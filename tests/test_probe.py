"""Estimates of time are made of what this machine was measured to do."""

import time

import pytest
import torch

from graddiv.experiment import TWO_CORES, forward_work, multiplications_per_second, training_seconds
from graddiv.networks import architecture
from graddiv.recipes import recipe


@pytest.mark.slow
def test_the_estimate_of_a_pass_is_about_what_a_pass_takes() -> None:
    experiment = recipe("mnist-mini/no-defense", "demo")
    speed = multiplications_per_second(experiment)
    module, x = architecture("mnist_cnn", experiment.network.width), torch.rand(64, 1, 28, 28).requires_grad_()
    times = []
    for _ in range(20):
        begun = time.perf_counter()
        torch.autograd.grad(module(x).sum(), x)
        times.append(time.perf_counter() - begun)
    estimate = 2 * 64 * forward_work(experiment.network) / speed
    assert 0.1 < estimate / min(times) < 10  # other processes may have had the cores meanwhile


def test_a_network_is_tried_once() -> None:
    experiment = recipe("mnist-mini/no-defense", "demo")
    first = multiplications_per_second(experiment)
    begun = time.perf_counter()
    assert multiplications_per_second(experiment) == first
    assert time.perf_counter() - begun < 0.5


def test_a_short_training_is_estimated_without_trying_its_network() -> None:
    experiment = recipe("mnist/adv-bnn", "quick", ["data.examples=64", "training.epochs=1", "training.decays=[]"])
    begun = time.perf_counter()
    assert training_seconds(experiment) == experiment.work / TWO_CORES
    assert time.perf_counter() - begun < 0.5
