import numpy as np
import pytest
import torch

from graddiv.attacks import PGD, Given
from graddiv.errors import GradDivError
from graddiv.evaluation.jobs import transfer_job
from graddiv.evaluation.run import IN_MEMORY, Session
from graddiv.networks.prediction import models_of
from graddiv.seeding import fold
from tests.evaluation.common import small_target
from tests.helpers import STOCHASTIC


@pytest.mark.parametrize("kind", STOCHASTIC)
@pytest.mark.slow
def test_the_matrix_is_that_of_the_double_loop_and_its_diagonal_white_box_accuracy(kind: str) -> None:
    target = small_target(kind, b=9, batch=9)
    [record] = IN_MEMORY.run([transfer_job(target, epsilon=0.3, k=3, m=3)])
    x, y, ids = target.examples(slice(0, 9))
    models = list(models_of(target.F, 3, fold(0, "transfer")))
    for i, source in enumerate(models):
        x_adv = PGD(m=3)(Given([source]), x, y, 0.3, ids=ids)
        for j, f in enumerate(models):
            with torch.no_grad():
                right = (f(x_adv).argmax(1) == y).numpy()
            np.testing.assert_array_equal(record.right[:, i, j], right)
            if i == j:
                assert record.accuracies.matrix[i, i] == pytest.approx(right.mean())


def test_a_small_ensemble_has_each_member_once() -> None:
    told: list[float] = []
    job = transfer_job(small_target("ensemble", b=2), epsilon=0.3, k=5, m=2)
    [record] = Session(progress=lambda done, of, label: told.append(done / of)).run([job])
    assert record.right.shape == (2, 3, 3)
    assert record.accuracies.matrix.shape == (3, 3)
    assert told[:3] == pytest.approx([4 / 21, 8 / 21, 12 / 21])  # 3 attacks of 4 passes, then 9 answers


def test_what_stands_off_the_diagonal() -> None:
    target = small_target(b=9, batch=4)
    [record] = IN_MEMORY.run([transfer_job(target, epsilon=0.3, k=3, m=2)])
    found = record.accuracies
    others = [found.matrix[i, j] for i in range(3) for j in range(3) if i != j]
    assert (found.mean, found.low, found.high) == (pytest.approx(np.mean(others)), min(others), max(others))
    assert found.own == pytest.approx(np.trace(found.matrix) / 3)


def test_there_is_no_transfer_within_one_model() -> None:
    for target, k in ((small_target("dirac"), 5), (small_target(), 1)):
        with pytest.raises(GradDivError, match="a transfer matrix of 1 models has nothing off its diagonal"):
            transfer_job(target, epsilon=0.1, k=k)
