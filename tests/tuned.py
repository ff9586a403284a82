"""A tiny search that the tests of tuning share, and what watches it."""

from pathlib import Path
from typing import Any

import pytest

from graddiv import store, tuning
from graddiv.data import Dataset
from graddiv.experiment import Experiment
from graddiv.tuning import Judge, Search
from tests.training.helpers import random_data, tiny

JUDGE = Judge(epsilon=0.1, n=2, m=2, examples=6)
EXPERIMENT = tiny("mnist/adv-bnn+graddiv")
GRID = Search(("kappa", "dpp"), (0.1, 1.0))


class Watch:
    """Which splits were loaded, and which runs were trained."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.splits: list[str] = []
        self.trained: list[str] = []
        self.fails: dict[str, type[BaseException]] = {}
        train = tuning.train

        def watched(experiment: Experiment, directory: Path, **rest: Any) -> object:
            self.trained.append(directory.name)
            if (error := self.fails.get(directory.name)) is not None:
                store.make_directory(directory)
                raise error("stopped")
            return train(experiment, directory, **rest)

        monkeypatch.setattr("graddiv.tuning.train", watched)
        monkeypatch.setattr("graddiv.tuning.load", self.load)
        monkeypatch.setattr("graddiv.data.load", self.load)

    def load(self, name: str, split: str = "train", root: str | None = None) -> Dataset:
        self.splits.append(split)
        return random_data(name, 8, split)
