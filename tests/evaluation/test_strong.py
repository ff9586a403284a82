"""The strong suite: how many models it looks at is measured, and the measurement is a record."""

from pathlib import Path

import pytest
import torch
from torch import nn

from graddiv import GradDivError, bayesian
from graddiv.attacks import ARC, StochasticPGD
from graddiv.evaluation import Target, evaluate, strong_cells
from graddiv.evaluation.jobs import gradient_noise_job
from graddiv.evaluation.robustness import strong_plan
from graddiv.evaluation.run import IN_MEMORY, Session
from graddiv.geometry import L2, Linf
from graddiv.networks import Dirac
from graddiv.records import read_all
from graddiv.seeding import generator
from tests.evaluation.common import small_target
from tests.helpers import images, labels, network


def noisy_target(sigma: float, b: int = 6) -> Target:
    """A linear network of two classes whose gradients have q = |mu|^2 / (2 d sigma^2)."""
    head = nn.Linear(36, 2, bias=False).double()
    with torch.no_grad():
        head.weight.copy_(torch.randn(2, 36, generator=generator(0), dtype=torch.float64).sign())
    F = bayesian(nn.Sequential(nn.Flatten(), head), sigma)
    return Target.of(F, images(b), labels(b) % 2, n_ensemble=3)


@pytest.mark.slow
def test_the_pilot_tells_a_noisy_network_from_a_quiet_one() -> None:
    quiet, noisy, starved = (strong_plan(noisy_target(sigma), 0.1, passes=200) for sigma in (0.1, 0.7, 30.0))
    assert quiet.n == 1
    assert 1 < noisy.n <= 4
    assert starved.n == 4
    assert starved.starved
    assert not noisy.starved


def test_the_record_holds_what_was_predicted_and_what_was_found(tmp_path: Path) -> None:
    [record] = Session(tmp_path).run([gradient_noise_job(noisy_target(0.7), epsilon=0.1)])
    assert record.rho.shape == (6, 2)
    assert record.predicted.mean() == pytest.approx(record.measured.mean(), abs=0.1)
    assert "at x0: rho 0." in record.summary
    assert "at the attacked x: rho 0." in record.summary
    assert [type(each) for each in read_all(tmp_path)] == [type(record)]


@pytest.mark.parametrize("pilot_first", [True, False])
@pytest.mark.slow
def test_the_pilot_and_the_measurement_do_not_meet(pilot_first: bool, tmp_path: Path) -> None:
    many = noisy_target(0.7, 60)

    def pilot() -> None:
        assert strong_plan(many, 0.1, session=Session(tmp_path)) == strong_plan(many, 0.1)

    def measured() -> None:
        [record] = Session(tmp_path).run([gradient_noise_job(many, epsilon=0.1)])
        assert record.examples == 60

    for each in (pilot, measured) if pilot_first else (measured, pilot):
        each()
    assert sorted(record.examples for record in read_all(tmp_path)) == [50, 60]


@pytest.mark.slow
def test_pilots_in_two_norms_do_not_meet(tmp_path: Path) -> None:
    target = small_target()
    jobs = [gradient_noise_job(target, epsilon=0.5, geometry=norm) for norm in (Linf(), L2())]
    assert [job.file for job in jobs] == ["gradient-noise-eps0.5.record", "gradient-noise-l2-eps0.5.record"]
    first, second = IN_MEMORY.run(jobs)
    assert (first.norm, second.norm) == ("Linf", "L2")
    assert not (first.trace[:, 1] == second.trace[:, 1]).all()


@pytest.mark.slow
def test_evaluate_with_the_strong_suite_leaves_records_of_pilot_and_attacks(tmp_path: Path) -> None:
    F = network("bayesian")
    records = evaluate(F, images(4), labels(4), epsilon=0.1, suite="strong", n_ensemble=2, directory=tmp_path)
    assert records[0].label == "clean"
    assert {record.label.replace("EOT^1-", "EOT-") for record in records} == {"clean", "EOT-SPGD", "EOT-SPGD-ce"}
    for record in records[1:]:
        assert record.cost_forwards[0] == record.n * record.m
        assert 350 <= record.n * record.m <= 400
    assert "gradient-noise" in {record.kind for record in read_all(tmp_path)}


def test_a_deterministic_network_has_no_pilot() -> None:
    target = Target.of(Dirac(network("dirac").module), images(3), labels(3))
    wanted = strong_cells(target, [0.1], passes=60)
    assert [cell.attack and cell.attack.iterations for cell in wanted] == [None, 60, 60]
    assert all(isinstance(cell.attack, StochasticPGD) for cell in wanted if cell.attack)
    assert not any(isinstance(cell.attack, ARC) for cell in wanted)


def test_passes_must_be_positive() -> None:
    with pytest.raises(GradDivError, match="passes is 0, expected at least 1"):
        strong_plan(noisy_target(0.1), 0.1, passes=0)
