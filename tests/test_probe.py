"""Estimates of time are made of what this machine was measured to do."""

import time
from pathlib import Path

import pytest
import torch

from graddiv.data.files import cache_folder
from graddiv.experiment import TWO_CORES, duration, forward_work, listed_speed
from graddiv.experiment.probe import multiplications_per_second, training_seconds
from graddiv.experiment.speed import known_speed, remember
from graddiv.networks import architecture
from graddiv.recipes import recipe


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


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_folder() / "speed.json"


def test_what_was_tried_is_remembered_for_lists(empty_cache: Path) -> None:
    experiment = recipe("mnist/adv-bnn", "quick")
    assert known_speed(experiment) is None
    assert listed_speed(experiment) == TWO_CORES
    remember(experiment, "cpu", 5e9)
    remember(experiment, "cuda", 5e12)
    assert listed_speed(experiment) == 5e9
    assert experiment.cost == duration(experiment.work / 5e9)
    assert [path.name for path in empty_cache.parent.iterdir()] == ["speed.json"]


@pytest.mark.usefixtures("empty_cache")
def test_the_nearest_width_stands_for_another_but_not_one_far_off() -> None:
    for width, speed in ((0.25, 2e9), (0.5, 3e9)):
        remember(recipe("mnist/adv-bnn", "quick", [f"network.width={width}"]), "cpu", speed)

    def at(width: float) -> float | None:
        return known_speed(recipe("mnist/adv-bnn", "quick", [f"network.width={width}"]))

    assert [at(width) for width in (0.125, 0.3, 0.5, 1.0, 0.1)] == [2e9, 2e9, 3e9, 3e9, None]
    assert known_speed(recipe("cifar10/adv-bnn", "quick")) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"mnist_cnn": 3}', '{"mnist_cnn": {"0.25": "fast"}}'])
def test_a_damaged_file_of_speeds_counts_as_none_and_is_written_anew(empty_cache: Path, damage: str) -> None:
    experiment = recipe("mnist/adv-bnn", "quick")
    empty_cache.parent.mkdir()
    empty_cache.write_text(damage)
    assert known_speed(experiment) is None
    remember(experiment, "cpu", 5e9)
    assert known_speed(experiment) == 5e9


def test_a_cache_that_cannot_be_written_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    remember(recipe("mnist/adv-bnn", "quick"), "cpu", 5e9)
    assert known_speed(recipe("mnist/adv-bnn", "quick")) is None


@pytest.mark.usefixtures("empty_cache")
def test_a_short_training_is_estimated_without_trying_its_network() -> None:
    experiment = recipe("mnist/adv-bnn", "quick", ["data.examples=64", "training.epochs=1", "training.decays=[]"])
    begun = time.perf_counter()
    assert training_seconds(experiment) == experiment.work / TWO_CORES
    assert time.perf_counter() - begun < 0.5
    assert known_speed(experiment) is None
