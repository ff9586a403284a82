"""What is measured of a network before and while it trains: speed, concentration, the scale of its noise."""

import math
import time

import pytest
import torch

from graddiv.data import load
from graddiv.experiment import TWO_CORES, forward_work, multiplications_per_second, training_seconds
from graddiv.experiment.cost import training_work
from graddiv.networks import Dirac, architecture, bayesian
from graddiv.recipes import recipe
from graddiv.training.probe import concentration, noise_scales


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
    estimate = 2 * 64 * forward_work(experiment) / speed
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
    assert training_seconds(experiment) == training_work(experiment) / TWO_CORES
    assert time.perf_counter() - begun < 0.5


def test_the_error_of_rho_is_that_of_other_draws() -> None:
    F, data = bayesian(architecture("mnist_cnn", 0.125, seed=0), 0.1), load("mnist-mini")
    found = [concentration(F, data, seed) for seed in range(12)]
    rho = torch.tensor([each["rho"] for each in found])
    told = sum(each["rho_error"] for each in found) / len(found)
    assert 0.4 < told / float(rho.std()) < 2.5


def test_the_scales_of_noise_are_those_of_the_layers() -> None:
    F = bayesian(torch.nn.Linear(3, 2), 0.5)
    with torch.no_grad():
        F.log_sigma["bias"][1] = math.log(1.5)
    assert noise_scales(F)["weight"] == pytest.approx([0.5, 0.5])
    assert noise_scales(F)["bias"] == pytest.approx([((0.25 + 2.25) / 2) ** 0.5, 0.5])
    assert noise_scales(Dirac(torch.nn.Linear(3, 2))) == {}
