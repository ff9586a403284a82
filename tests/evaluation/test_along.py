"""Gradients and margins along an attack, and the answers of growing ensembles where it ends."""

import numpy as np
import pytest

from graddiv.attacks import EOT, PGD
from graddiv.evaluation.jobs import STEPS, attacked_ensemble_job, concentration_job, path_job
from graddiv.evaluation.run import IN_MEMORY
from graddiv.networks.prediction import predict
from graddiv.seeding import fold
from tests.evaluation.common import small_target


def test_the_path_begins_at_the_clean_image_and_climbs() -> None:
    target = small_target(b=5)
    [path] = IN_MEMORY.run([path_job(target, epsilon=0.3, n=6)])
    [here] = IN_MEMORY.run([concentration_job(target, n=6)])
    assert path.steps == list(STEPS)
    assert path.mean_cosine[:, 0] == pytest.approx(here.mean_cosine, rel=1e-5)
    assert (path.margin[:, -1] > path.margin[:, 0]).all()
    assert (path.length > 0).all()
    assert "after 20" in path.summary


def test_ensembles_answer_where_the_attack_ends() -> None:
    target = small_target(b=8)
    [found] = IN_MEMORY.run([attacked_ensemble_job(target, epsilon=0.2, n=7, m=3, models=4)])
    x, y, ids = target.examples(slice(0, 8))
    view = EOT(target.F, 4, fold(target.seed, "ensemble size", "view"))
    x_adv = PGD(m=3)(view, x, y, 0.2, ids=ids)
    alone = predict(target.F, x_adv, n=1, seed=fold(target.seed, "ensemble size")).label == y
    assert found.right.shape == (8, 7)
    assert np.array_equal(found.right[:, 0], alone.numpy())
    assert found.file_name({"epsilon": 0.36}) == "ensemble-size-attacked-eps0.36.record"
