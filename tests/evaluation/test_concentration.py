from pathlib import Path

import numpy as np
import pytest
import torch

from graddiv.diversity import concentration as vmf
from graddiv.diversity.concentration import theorem1
from graddiv.diversity.gradients import directions, input_gradient
from graddiv.diversity.regularizers import cosines, mean_cosine
from graddiv.errors import GradDivError
from graddiv.evaluation import Target
from graddiv.evaluation.jobs import boundary_job, concentration_job, gradients_job, loss_increase_job, rotation_job
from graddiv.evaluation.measurements import l2_radius
from graddiv.evaluation.run import IN_MEMORY, Session
from graddiv.geometry import L2
from graddiv.networks.prediction import models_of, predict
from graddiv.records import ConcentrationRecord
from graddiv.seeding import fold
from tests.evaluation.common import small_target
from tests.helpers import STOCHASTIC, convnet, images, labels


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_running_sums_equal_the_statistics_of_all_gradients_at_once(kind: str) -> None:
    target = small_target(kind, b=5, batch=5)
    [record] = IN_MEMORY.run([concentration_job(target, n=9)])
    x, y, _ = target.examples(slice(0, 5))
    models = list(models_of(target.F, 9, fold(0, "gradients")))
    s, g = map(torch.stack, zip(*(input_gradient(f, x, y) for f in models), strict=True))
    v, w = directions(g).v, s.sigmoid().reshape(*s.shape, 1, 1, 1)
    expected = {
        "rho": vmf.mrl(v),
        "rho_1": vmf.mrl(v, 1.0),
        "rho_debiased": vmf.debiased_mrl(v),
        "mean_cosine": mean_cosine(v),
        "kappa": vmf.kappa_approximate(vmf.mrl(v), 36),
        "kappa_mle": vmf.kappa_mle(vmf.mrl(v), 36),
        "norm_ratio": (w * g).mean(0).flatten(1).norm(dim=1) / (w * g).flatten(2).norm(dim=2).mean(0),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(record, name), values.numpy(), rtol=1e-5, err_msg=name)
    assert record.usable.all()


def test_the_bound_is_theorem_1s() -> None:
    target = small_target(b=4, batch=4)
    [record] = IN_MEMORY.run([loss_increase_job(target, epsilon=0.2, n=2, m=2, fresh=2, gradients=8)])
    x, y, _ = target.examples(slice(0, 4))
    report = theorem1(list(models_of(target.F, 8, fold(0, "gradients"))), x, y, 0.2, torch.inf)
    for name in ("first_order", "theorem", "tightness", "holds", "excess"):
        np.testing.assert_allclose(getattr(record, name), getattr(report, name).numpy(), rtol=1e-5, err_msg=name)


def test_a_deterministic_network_is_wholly_concentrated() -> None:
    [record] = IN_MEMORY.run([concentration_job(Target.of(convnet(), images(3), labels(3)))])
    np.testing.assert_allclose(record.rho, 1, atol=1e-6)
    assert (record.mean_cosine == 1).all()
    assert (record.kappa > 1e5).all()


def test_examples_without_gradients_are_marked() -> None:
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU(), torch.nn.Linear(36, 3)).double()
    with torch.no_grad():
        flat[2].weight.zero_()
    [record] = IN_MEMORY.run([concentration_job(Target.of(flat, images(3), labels(3, classes=3)))])
    assert not record.usable.any()
    assert np.isnan(record.rho).all()
    assert np.isnan(record.kappa_mle).all()


def test_the_gradients_kept_are_those_measured(tmp_path: Path) -> None:
    target = small_target(b=6)
    everything, first = Session(tmp_path).run([concentration_job(target, n=7), gradients_job(target, n=7, examples=2)])
    assert first.gradients.shape == (2, 7, 36)
    assert first.gradients.dtype == np.float16
    v = torch.from_numpy(first.gradients).double().transpose(0, 1)
    np.testing.assert_allclose(vmf.mrl(v), everything.rho[:2], atol=2e-3)
    np.testing.assert_allclose(first.cosines, cosines(v), atol=4e-3)
    assert {path.name for path in tmp_path.iterdir()} == {"concentration.record", "gradients.record"}


def test_too_few_gradients_are_refused() -> None:
    with pytest.raises(GradDivError, match="n is 1, expected at least 2"):
        concentration_job(small_target(), n=1)


def test_turned_gradients_gain_in_proportion_to_the_cosine() -> None:
    """One small l_2 step on one model: exactly so, to first order."""
    target = small_target(b=8, batch=8)
    angles = [0.0, 60.0, 90.0]
    [record] = IN_MEMORY.run([rotation_job(target, epsilon=1e-4, geometry=L2(), m=1, angles=angles)])
    assert record.angles == angles
    gains = record.increase / record.increase[:, :1]
    np.testing.assert_allclose(gains[:, 1], 0.5, atol=0.01)
    np.testing.assert_allclose(gains[:, 2], 0.0, atol=0.01)
    np.testing.assert_array_equal(record.right[:, 0], record.right_clean)


def test_the_l2_ball_grows_with_the_image() -> None:
    assert l2_radius(0.3, 784) == pytest.approx(2.1)


@pytest.mark.parametrize("kind", ["bayesian", "dirac", "foreign"])
def test_decision_regions(kind: str) -> None:
    target = small_target(kind, b=3)
    [record] = IN_MEMORY.run([boundary_job(target, epsilon=0.3, examples=2, models=2, grid=5, n=2, m=2)])
    models = 1 if kind == "dirac" else 2
    assert record.regions.shape == (2, models + 1, 5, 5)
    assert record.regions.dtype == np.uint8
    axes = record.axes.reshape(2, 2, -1).astype(np.float64)
    np.testing.assert_allclose((axes[:, 0] * axes[:, 1]).sum(1), 0, atol=1e-6)
    np.testing.assert_allclose(*np.linalg.norm(axes, axis=2).T, rtol=1e-5)
    assert record.coordinates == [-3.0, -1.5, 0.0, 1.5, 3.0]
    x, _, _ = target.examples(slice(0, 2))
    if kind != "foreign":  # whose masks depend on the place in the batch
        at_center = predict(target.F, x, n=3, seed=fold(0, "boundary", "models"))
        np.testing.assert_array_equal(record.regions[:, -1, 2, 2], at_center.label)
        np.testing.assert_array_equal(record.regions[:, 0, 2, 2], at_center.answers[0])
        i, j = 4, 1
        corner = x + torch.from_numpy(3.0 * record.axes[:, 0] - 1.5 * record.axes[:, 1]).double()
        named = predict(target.F, corner.clamp(0, 1), n=3, seed=fold(0, "boundary", "models")).label
        np.testing.assert_array_equal(record.regions[:, -1, i, j], named)


@pytest.mark.parametrize(("kind", "there_are"), [("ensemble", 3), ("crops", 9)])
def test_decision_regions_of_a_network_with_fewer_models_than_are_asked_for(kind: str, there_are: int) -> None:
    [record] = IN_MEMORY.run([boundary_job(small_target(kind, b=1), epsilon=0.3, models=10, grid=3, n=2, m=1)])
    assert record.models == there_are
    assert record.regions.shape == (1, there_are + 1, 3, 3)


def test_measurements_resume(tmp_path: Path) -> None:
    target = small_target(b=5)
    [record] = Session(tmp_path).run([concentration_job(target, n=3)])
    with pytest.raises(GradDivError, match="was made with n = 3, now it is 4"):
        Session(tmp_path).run([concentration_job(target, n=4)])
    assert isinstance(record, ConcentrationRecord)
