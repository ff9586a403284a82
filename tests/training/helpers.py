"""Tiny trainings that the tests of this folder share."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graddiv import store
from graddiv.data import Dataset, Source, source_of
from graddiv.experiment import Experiment
from graddiv.recipes import recipe
from graddiv.runs import Run
from graddiv.seeding import generator

METHODS = (
    *("no-defense", "adv-train", "rse", "rse+graddiv", "pni", "mi", "mi+graddiv", "adv-bnn", "adv-bnn+graddiv"),
    *("ensemble", "ensemble+graddiv", "gal", "adp", "dverge", "mc-dropout", "sap", "xie", "crops", "smoothing"),
    *("pixeldp", "wca", "pni-image", "pni-activations", "pni-activations+graddiv", "bit-depth", "jpeg", "tv-min"),
)


def random_data(name: str | Source, examples: int, split: str = "train") -> Dataset:
    """Noise in the shape of a data set, every class among the first labels."""
    g, source = generator(examples), source_of(name)
    images = torch.randint(256, (examples, *source.shape), generator=g, dtype=torch.uint8)
    classes = source.classes
    return Dataset(
        source.name, split, images, torch.arange(examples) % len(classes), torch.arange(examples) + 7, classes
    )


def loader(examples: int) -> Callable[..., Dataset]:
    """Stands in for graddiv.data.load."""
    return lambda name, split="train", root=None: random_data(name, examples, split)


def tiny(name: str, *overrides: str) -> Experiment:
    """A shipped recipe made small: two steps of four images."""
    small = ["network.width=0.05", "training.epochs=1", "training.batch=4", "training.decays=[]", "data.examples=none"]
    e = recipe(name)
    if e.adversary is not None:
        small.append("adversary.m=1")
    if e.graddiv is not None:
        small += ["graddiv.warmup=0", "graddiv.rampup=0", "graddiv.n=2"]
    if e.mixup is not None:
        small.append("mixup.pool=10")
    if e.ensemble is not None and e.ensemble.dverge:
        small += ["ensemble.dverge_m=2", "ensemble.baseline=0"]
    if e.dropout is not None:  # of the few channels of so narrow a network none should be lost
        small.append("dropout.conv_rate=0")
    if e.total_variation is not None:
        small.append("total_variation.iterations=2")
    return recipe(name, overrides=[*small, *overrides])


def two_stages(extra: str = "graddiv", *overrides: str) -> Experiment:
    """Adv-BNN for two epochs, then a stage of two more: four steps and four."""
    name = f"mnist/adv-bnn+{extra}"
    small = ["network.width=0.05", "training.epochs=2", "training.batch=4", "training.decays=[1]", "adversary.m=1"]
    stage = ["stages.0.epochs=2", "stages.0.decays=[1.5]", "stages.0.batch=4"]
    R = ["graddiv.n=2", "graddiv.rampup=1"] if extra == "graddiv" else []
    return recipe(name, "quick", [*small, *stage, *R, *overrides])


def outcome(directory: Path) -> tuple[dict[str, Tensor], Any, list[dict[str, Any]]]:
    """All that a run leaves behind, but for the time it took and how often it was taken up again."""
    tensors, description = store.read_tensors(Run(directory).last_checkpoint)
    lines = Run(directory).log
    timeless = [
        {key: value for key, value in line.items() if key != "images_per_second"}
        for line in lines
        if line["event"] != "resume"
    ]
    del description["progress"]["log_size"]
    return tensors, description, timeless


def assert_same_outcome(a: Path, b: Path) -> None:
    (tensors, *rest), (expected, *others) = outcome(a), outcome(b)
    assert rest == others
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, expected[name]), name


class Stopped(Exception):  # noqa: N818
    """Stands in for a kill."""


class StopAfter:
    """A listener that stops training after so many steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.began: list[int] = []
        self.epochs: list[Mapping[str, float]] = []

    def __call__(self, step: int, steps: int, values: Mapping[str, float], epoch: int | None) -> None:
        if epoch is not None:
            self.epochs.append(values)
        elif not values:
            self.began.append(step)
        elif step == self.steps:
            raise Stopped
