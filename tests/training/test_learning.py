"""The loop really learns, and against the attack: thresholds that an untrained network or a broken loop misses."""

from pathlib import Path

import pytest

from graddiv.recipes import recipe
from graddiv.training import train
from graddiv.tuning import Judge
from tests.helpers import no_type_checks


@pytest.mark.slow
def test_adv_bnn_learns_digits_that_withstand_an_attack(tmp_path: Path) -> None:
    from graddiv.data import load

    small = ["data.examples=2000", "training.epochs=5", "training.batch=64", "adversary.epsilon=0.1", "adversary.m=2"]
    experiment = recipe("mnist-mini/adv-bnn", "demo", small)
    validation = load("mnist-mini", "validation").take(slice(0, 200))
    judge = Judge(epsilon=0.1, n=3, m=10)
    with no_type_checks():
        F = train(experiment, tmp_path)
        clean, robust = judge(F, validation, seed=0)
    assert clean > 0.9
    assert robust > 0.6
