import numpy as np

from graddiv.evaluation import Cell, attack_cell
from graddiv.evaluation.jobs import ensemble_size_job
from graddiv.evaluation.run import IN_MEMORY
from tests.evaluation.common import small_target


def test_accuracy_by_size_is_that_of_single_models_and_of_the_ensemble_that_judges() -> None:
    target = small_target(b=30, n_ensemble=6)
    clean = attack_cell(target, Cell(None, "fixed", 1, 0.0, 0))
    [record] = IN_MEMORY.run([ensemble_size_job(target, n=9)])
    assert record.right.shape == (30, 9)
    np.testing.assert_array_equal(record.right[:, 0], clean.right[:, 0])
    np.testing.assert_array_equal(record.right[:, 5], clean.correct)
    assert (record.right[:, :1] != record.right).any(), "the examples are worth looking at"


def test_a_deterministic_network_has_one_size() -> None:
    [record] = IN_MEMORY.run([ensemble_size_job(small_target("dirac"), n=9)])
    assert record.right.shape == (10, 1)
