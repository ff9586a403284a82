import math

import pytest
import torch
from torch import Tensor

from graddiv import GradDivError, bayesian
from graddiv.directions import input_gradient, loss_increase, mean_gradient, theorem1
from graddiv.directions.bounds import DUAL
from tests.helpers import convnet, images, labels, network

NORMS = [2.0, torch.inf]


def best_step(g: Tensor, norm: float, alpha: float) -> Tensor:
    """The point of the l_p ball with the largest inner product with g."""
    return alpha * (g.sign() if norm == torch.inf else g / g.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", ["bayesian", "rse", "pni"])
def test_the_first_order_value_is_the_limit_of_the_evaluated_one(kind: str, norm: float) -> None:
    """Delta(alpha g) / alpha -> |E g|_q along EOT's own step."""
    F, x, y = network(kind), images(4), labels(4)
    models = F.sample(6, 0)
    mean = mean_gradient(models, x, y)
    errors = []
    for alpha in (1e-2, 1e-3, 1e-4):
        evaluated = loss_increase(models, x, y, best_step(mean.direction, norm, alpha))
        report = theorem1(models, x, y, alpha, norm)
        errors.append((evaluated - report.first_order).abs().max() / alpha)
    assert errors[2] < errors[1] < errors[0]  # O(alpha)
    assert errors[2] < 1e-3


@pytest.mark.parametrize("norm", NORMS)
def test_no_step_does_better_to_first_order(norm: float) -> None:
    F, x, y = network("bayesian"), images(4), labels(4)
    models, alpha = F.sample(6, 0), 1e-5
    best = theorem1(models, x, y, alpha, norm).first_order
    for seed in range(20):
        step = best_step(images(4, seed) - 0.5, norm, alpha)
        assert (loss_increase(models, x, y, step) <= best * (1 + 1e-3)).all()


def planted(gradients: list[list[float]]) -> list[object]:
    """Sample models with two classes whose loss gradients at 0 are the given vectors."""
    return [lambda x, g=torch.tensor(g).double(): torch.stack([-(x @ g), x @ g], 1) for g in gradients]


def report(gradients: list[list[float]], norm: float = 2.0) -> object:
    x = torch.zeros(1, len(gradients[0]), dtype=torch.float64)
    return theorem1(planted(gradients), x, torch.tensor([0]), 1.0, norm)  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", NORMS)
def test_equal_gradients_attain_the_bound(norm: float) -> None:
    r = report([[3.0, 4.0]] * 3, norm)
    assert r.tightness.item() == pytest.approx(1)
    assert r.first_order.item() == pytest.approx(torch.tensor([3.0, 4.0]).norm(p=DUAL[norm]).item())
    assert r.holds.all()
    assert r.correlation.item() == 0


def test_orthogonal_gradients_of_equal_length() -> None:
    r = report([[1.0, 0.0], [0.0, 1.0]])
    assert r.theorem.item() == pytest.approx(math.sqrt(0.5))
    assert r.tightness.item() == pytest.approx(1)
    assert r.excess.item() == pytest.approx(1)


def test_the_case_in_which_the_theorem_fails_is_reported() -> None:
    """G in {u, -0.1 u}: |E v| = 0, but |E g| = 0.45."""
    r = report([[1.0, 0.0], [-0.1, 0.0]])
    assert r.first_order.item() == pytest.approx(0.45)
    assert r.theorem.item() == pytest.approx(0, abs=1e-12)
    assert not r.holds.any()
    assert r.correlation.item() == pytest.approx(1)
    assert r.excess.item() > 1e6


def test_short_gradients_against_the_mean_make_the_correlation_positive_and_long_ones_negative() -> None:
    assert report([[1.0, 0.0], [1.1, 0.1], [-0.1, 0.2]]).correlation.item() > 0.9
    assert report([[1.0, 0.0], [1.1, 0.1], [-1.9, 0.2]]).correlation.item() < -0.9


def test_a_saturated_network_is_reported_as_any_other() -> None:
    F, x = bayesian(convnet(), 0.01), images(4)
    y = torch.stack([f(x) for f in F.sample(20, 9)]).mean(0).argmax(1)
    models = [lambda x, f=f: 8000 * f(x) for f in F.sample(5, 0)]
    assert max(input_gradient(f, x, y)[0].max() for f in models) < -40
    r = theorem1(models, x, y, 1.0, 2.0)
    assert r.tightness.isfinite().all()
    assert (r.tightness > 0).all()


def test_a_gradient_without_direction_counts_as_zero() -> None:
    """One model of three is flat: E g and E v are two thirds of the others'."""
    r = report([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]])
    assert r.first_order.item() == pytest.approx(10 / 3)
    assert r.theorem.item() == pytest.approx(10 / 3)
    assert r.holds.all()


def test_an_unknown_norm() -> None:
    with pytest.raises(GradDivError, match=r"norm is 3\.0, expected 2 or infinity"):
        report([[1.0, 0.0]] * 2, 3.0)


@pytest.mark.parametrize("margin", [10.0, 60.0, 800.0])
def test_confidence_changes_neither_tightness_nor_correlation(margin: float) -> None:
    """The same two gradients of s at growing margins; at 800 every gradient of the loss underflows."""
    gradients = [[1.0, 0.0], [1.1, 0.1], [-0.1, 0.2]]
    models = [lambda x, g=torch.tensor(g).double(): torch.stack([margin - x @ g, x @ g], 1) for g in gradients]
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0])
    sure, unsure = theorem1(models, x, y, 1.0, 2.0), report(gradients)
    for name in ("tightness", "correlation", "excess"):
        assert getattr(sure, name).item() == pytest.approx(getattr(unsure, name).item(), rel=1e-6), name


def test_models_of_very_different_confidence_keep_their_directions() -> None:
    u, w = torch.tensor([1.0, 0.0]).double(), torch.tensor([0.0, 1.0]).double()
    models = [lambda x: torch.stack([60 - x @ u, x @ u], 1), lambda x: torch.stack([-(x @ w), x @ w], 1)]
    r = theorem1(models, torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0]), 1.0, 2.0)
    assert r.theorem.item() == pytest.approx(math.sqrt(0.5))  # M_X = 1, rho = |(1, 1)| / 2
