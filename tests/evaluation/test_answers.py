"""A directory knows its network again by its answers, where parameters say nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from graddiv import evaluate, smoothing
from graddiv.errors import GradDivError
from graddiv.evaluation import Target, evaluate_total
from graddiv.networks import RandomizedNetwork
from graddiv.records import Record
from tests.audit.planted import Linear, Noisy
from tests.helpers import convnet, images, labels

BOTH = pytest.mark.parametrize("how", [evaluate, evaluate_total])
HOW: dict[str, Any] = {"epsilon": 0.1, "attacks": "fgsm", "modes": "fixed", "n_ensemble": 2}


def smoothed(sigma: float, scale: float = 1.0) -> RandomizedNetwork:
    """Sigma is a number of the code: all these networks have the same parameters."""

    class Scaled(nn.Module):
        def forward(self, x: Any) -> Any:
            return scale * x

    return smoothing(nn.Sequential(convnet(), Scaled()), (1, 6, 6), sigma=sigma)


def made(how: Callable[..., list[Record]], F: nn.Module, directory: Path | None, **changed: Any) -> np.ndarray:
    found = how(F, images(6), labels(6), directory=directory, **{**HOW, **changed})
    return np.stack([record.arrays["margin"] for record in found])


@BOTH
def test_records_of_another_network_of_the_same_parameters_are_not_returned(
    how: Callable[..., list[Record]], tmp_path: Path
) -> None:
    first = made(how, smoothed(0.01), tmp_path)
    with pytest.raises(GradDivError, match="holds records of a network that answers otherwise"):
        made(how, smoothed(50.0), tmp_path)
    assert np.array_equal(made(how, smoothed(0.01), tmp_path), first)
    assert not np.array_equal(made(how, smoothed(50.0), None), first), "it would have been the wrong answer"


@BOTH
def test_a_directory_without_the_file_is_taken_as_that_of_the_network(
    how: Callable[..., list[Record]], tmp_path: Path
) -> None:
    first = made(how, smoothed(0.01), tmp_path)
    (path,) = tmp_path.glob("answers-*.json")
    path.unlink()
    assert np.array_equal(made(how, smoothed(0.01), tmp_path), first)
    assert path.exists()


def test_other_settings_are_named_and_not_taken_for_another_network(tmp_path: Path) -> None:
    made(evaluate, smoothed(0.1), tmp_path)
    with pytest.raises(GradDivError, match="was made with seed = 0, now it is 1"):
        made(evaluate, smoothed(0.1), tmp_path, seed=1)
    made(evaluate_total, smoothed(0.1), tmp_path, seed=1)


def test_noise_is_noticed_by_a_network_that_is_sure(tmp_path: Path) -> None:
    target = Target.of(smoothed(0.01, scale=300), images(6), labels(6))
    target.check_answers(tmp_path / "answers.json")
    answers = np.array(json.loads((tmp_path / "answers.json").read_text())["answers"])
    assert answers.max(1).min() > 0.9999
    target.check_answers(tmp_path / "answers.json")
    with pytest.raises(GradDivError, match="answers otherwise"):
        Target.of(smoothed(0.05, scale=300), images(6), labels(6)).check_answers(tmp_path / "answers.json")


def test_a_module_that_draws_by_itself_is_known_again(tmp_path: Path) -> None:
    for _ in range(2):
        evaluate(Noisy(Linear()), images(6).float(), labels(6), directory=tmp_path, **HOW)


@pytest.mark.parametrize("answers", [None, "x", [[0.5], [0.5, 0.5]], [[0.5, 0.5]]])
def test_a_file_that_holds_something_else(answers: object, tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_text(json.dumps({"answers": answers}))
    with pytest.raises(GradDivError, match=r"answers\.json says answers = |answers otherwise"):
        Target.of(smoothed(0.1), images(6), labels(6)).check_answers(path)
