"""A linear classifier with Gaussian weight noise, where every number is known."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from graddiv.attacks import PGD
from graddiv.evaluation import Target, evaluate
from graddiv.evaluation.jobs import concentration_job, loss_increase_job
from graddiv.evaluation.run import IN_MEMORY
from graddiv.geometry import L2, Linf
from tests.evaluation.common import SIGMA, examples, linear

pytestmark = pytest.mark.filterwarnings("ignore:clean accuracy is above chance")  # it is known, and often low


@pytest.mark.slow
def test_accuracy_per_draw_is_phi_of_m_over_sd() -> None:
    F, mu = linear()
    x, y, m = examples(40, mu)
    draws = 600
    clean, _ = evaluate(F, x, y, epsilon=0.0, attacks=[PGD(m=1)], modes=["fixed"], n_ensemble=draws)
    # z_y - z_other = m + sigma (noise_y - noise_other).x
    p = norm.cdf(m / (SIGMA * np.sqrt(2) * x.flatten(1).norm(dim=1)))
    error = np.sqrt(p * (1 - p) / draws)
    assert np.abs((clean.right.mean(1) - p) / error).max() < 4.5
    assert p.min() < 0.6 < 0.9 < p.max(), "the examples are worth looking at"


@pytest.mark.parametrize("geometry", [Linf(), L2()], ids=["Linf", "L2"])
def test_the_infinite_ensemble_is_robust_iff_the_margin_exceeds_epsilon_times_the_dual_norm(
    geometry: Linf | L2,
) -> None:
    F, mu = linear()
    x, y, m = examples(150, mu)
    reach = float(torch.linalg.vector_norm(mu, ord=geometry.q))
    epsilon = float(m.median()) / reach
    attack = PGD(geometry=geometry, m=8)
    record = evaluate(F, x, y, epsilon=epsilon, attacks=[attack], modes=["eot"], n=10, n_ensemble=100, batch=150)[1]
    left = m - epsilon * reach
    sd = SIGMA * np.sqrt(2) * x.flatten(1).norm(dim=1) / np.sqrt(100)
    sure = (left.abs() > 4 * sd + 0.02 * epsilon * reach).numpy()  # in l_2, EOT's direction has a little noise
    assert sure.mean() > 0.4
    np.testing.assert_array_equal(record.correct[sure], (left > 0).numpy()[sure])
    np.testing.assert_array_equal(record.correct_again[sure], (left > 0).numpy()[sure])


def test_repeats_differ_and_attacks_of_a_repeat_share_their_judges() -> None:
    F, mu = linear(sigma=0.5)
    x, y, _ = examples(100, mu)
    attacks = [PGD(m=1, alpha=1.0), PGD(m=2, alpha=1.0)]  # on a linear network both end in the same corner
    records = evaluate(F, x, y, epsilon=0.01, attacks=attacks, modes=["eot"], n=25, n_ensemble=3, repeats=2, batch=100)
    clean, one, two, clean_again, _, _ = records
    assert (clean.right != clean_again.right).any()
    same = (one.distance == two.distance).mean()
    assert same > 0.5
    assert (one.right == two.right).mean() > 0.98, "the same models judge them"


def test_concentration_of_a_linear_network() -> None:
    """Gradients of the soft margin are w_other - w_y ~ N(-mu, 2 sigma^2): their mean cosine is known for large p."""
    F, mu = linear(sigma=0.3)
    x, y, _ = examples(5, mu)
    [record] = IN_MEMORY.run([concentration_job(Target.of(F, x, y), n=300)])
    rng = np.random.default_rng(0)
    g = mu.numpy() + 0.3 * np.sqrt(2) * rng.standard_normal((200_000, 16))
    rho = np.linalg.norm((g / np.linalg.norm(g, axis=1, keepdims=True)).mean(0))
    np.testing.assert_allclose(record.rho, rho, atol=0.04)
    np.testing.assert_allclose(record.rho_debiased, rho, atol=0.04)


def test_the_loss_increase_of_small_steps_is_the_first_order_one() -> None:
    F, mu = linear(sigma=0.1)
    x, y, _ = examples(20, mu)
    [record] = IN_MEMORY.run([loss_increase_job(Target.of(F, x, y), epsilon=1e-4, n=20, m=4, fresh=60, gradients=60)])
    np.testing.assert_allclose(record.increase, record.first_order, rtol=0.2)
    assert record.holds.all()
    assert (record.increase <= record.theorem).all()
