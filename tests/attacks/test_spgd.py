"""Stochastic PGD: where it begins, how its steps shrink, and what it keeps."""

from itertools import pairwise

import pytest
import torch

from graddiv import GradDivError
from graddiv.attacks import EOT, PGD, Given, StochasticPGD
from graddiv.attacks.spgd import SCHEDULES
from graddiv.geometry import Linf
from tests.helpers import images, labels, network, no_type_checks


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_begin_at_one_and_never_rise(schedule: str) -> None:
    steps = [SCHEDULES[schedule](k / 20) for k in range(20)]  # type: ignore[index]
    assert steps[0] == 1
    assert all(later <= earlier for earlier, later in pairwise(steps))
    assert (steps[-1] < 0.2) == (schedule != "constant")


def test_with_steps_of_constant_length_it_is_pgd() -> None:
    F, x, y = network("bayesian"), images(3), labels(3)
    plain = PGD(m=4, objective="margin")(EOT(F, 2), x, y, 0.1)
    assert torch.equal(StochasticPGD(m=4, schedule="constant", alpha=0.25)(EOT(F, 2), x, y, 0.1), plain)


def test_it_begins_at_the_best_of_the_starts_it_is_given() -> None:
    F, x, y = network("bayesian"), images(4), labels(4)
    view = EOT(F, 4)
    good = StochasticPGD(m=30)(view, x, y, 0.2)
    away = x + (x - good)
    attack = StochasticPGD(m=1, alpha=1e-9)
    begun = attack(view, x, y, 0.2, starts=[away, good])
    assert torch.allclose(begun, good, atol=1e-6)
    assert torch.allclose(attack(view, x, y, 0.2, starts=[away]), x, atol=1e-6), "x itself is better than that"
    outside = attack(view, x, y, 0.2, starts=[x + 10 * (good - x)])
    assert (Linf().norm(outside - x) <= 0.2).all()


def test_a_transfer_attack_is_a_start() -> None:
    F, x, y = network("bayesian"), images(4), labels(4)
    source = PGD(m=10)(Given(network("pni").sample(3, 0)), x, y, 0.2)
    view = EOT(F, 4)
    StochasticPGD(m=2)(view, x, y, 0.2, starts=[source])
    assert view.cost.forwards == 2 * 4 + 2 * 20, "two points, chosen by 20 models each"


def test_an_attack_without_starts_refuses_them() -> None:
    F, x, y = network("dirac"), images(2), labels(2)
    with pytest.raises(GradDivError, match="PGD was given 1 starts, but begins where it likes"):
        PGD()(F, x, y, 0.1, starts=[x])


def test_the_mean_network_is_a_start_where_there_is_one() -> None:
    x, y = images(2), labels(2)
    StochasticPGD(m=1, start="mean")(EOT(network("bayesian"), 2), x, y, 0.1)
    with pytest.raises(GradDivError, match="this view has no mean network"):
        StochasticPGD(m=1, start="mean")(EOT(network("foreign"), 2), x, y, 0.1)


def test_settings_that_make_no_sense_are_refused() -> None:
    for settings in ({"m": 0}, {"alpha": 0.0}, {"kept": 0}):
        with pytest.raises(GradDivError, match="expected at least 1, 1 and a positive number"):
            StochasticPGD(**settings)  # type: ignore[arg-type]
    with no_type_checks(), pytest.raises(GradDivError, match="unknown schedule 'cosin', did you mean 'cosine'"):
        StochasticPGD(schedule="cosin")  # type: ignore[arg-type]
