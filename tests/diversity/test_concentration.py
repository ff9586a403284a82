"""Resultant lengths and kappa, against SciPy and 40 digits; Theorem 1 and where it fails."""

import gc
import math
import weakref

import mpmath
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graddiv import GradDivError, bayesian
from graddiv.diversity import concentration as vmf
from graddiv.diversity import input_gradient, loss_increase, mean_gradient, theorem1
from graddiv.diversity.concentration import DUAL, moments
from graddiv.diversity.gradients import directions
from graddiv.diversity.regularizers import mean_cosine
from graddiv.seeding import generator
from tests.helpers import STOCHASTIC, convnet, images, labels, network

DIMENSIONS = [2, 3, 10, 784, 3072, 27648]
KAPPAS = [1e-3, 1e-1, 3.0, 100.0, 1e4, 1e6]


def ratio(p: int, kappa: float) -> mpmath.mpf:
    """A_p(kappa) to 30 digits: the continued fraction from so far up that its start no longer matters."""
    with mpmath.workdps(40):
        x, order = mpmath.mpf(kappa), mpmath.mpf(p) / 2 - 1
        steps = 400 + int(12 * math.sqrt(kappa))
        r = x / (order + steps + 1)
        for j in range(steps, 0, -1):
            r = 1 / (2 * (order + j) / x + r)
        return r


@pytest.mark.parametrize("p", DIMENSIONS)
def test_the_bessel_ratio_to_high_precision(p: int) -> None:
    found = vmf.mean_length(torch.tensor(KAPPAS, dtype=torch.float64), p)
    for a, kappa in zip(found.tolist(), KAPPAS, strict=True):
        exact = ratio(p, kappa)
        assert abs(a - exact) / exact < 1e-13
        assert abs((1 - a) - (1 - exact)) / (1 - exact) < 1e-8  # what kappa is read from when rho is near 1


@pytest.mark.parametrize("p", [2, 3, 10, 50])
def test_the_bessel_ratio_of_scipy_and_mpmath(p: int) -> None:
    for kappa in (0.5, 5.0, 40.0, 500.0):
        a = vmf.mean_length(torch.tensor([kappa]), p).item()
        assert a == pytest.approx(scipy.special.ive(p / 2, kappa) / scipy.special.ive(p / 2 - 1, kappa), rel=1e-12)
        assert a == pytest.approx(float(mpmath.besseli(p / 2, kappa) / mpmath.besseli(p / 2 - 1, kappa)), rel=1e-13)


@pytest.mark.parametrize("p", DIMENSIONS)
def test_the_exact_kappa_inverts_the_ratio(p: int) -> None:
    rho = torch.tensor([float(ratio(p, kappa)) for kappa in KAPPAS], dtype=torch.float64)
    assert torch.allclose(vmf.kappa_mle(rho, p), torch.tensor(KAPPAS, dtype=torch.float64), rtol=1e-7)


@settings(max_examples=20)
@given(st.floats(1e-6, 0.999999), st.integers(2, 30000))
@pytest.mark.slow
def test_round_trip_for_any_rho(rho: float, p: int) -> None:
    value = torch.tensor([rho], dtype=torch.float64)
    assert vmf.mean_length(vmf.kappa_mle(value, p), p).item() == pytest.approx(rho, rel=1e-9)


def test_kappa_at_the_ends() -> None:
    rho = torch.tensor([0.0, 1.0])
    assert vmf.kappa_mle(rho, 10).tolist() == [0, math.inf]
    assert vmf.kappa_approximate(rho, 10).tolist() == [0, math.inf]
    with pytest.raises(GradDivError, match=r"rho lies in \[-0\.5, 1\.2\]"):
        vmf.kappa_mle(torch.tensor([-0.5, 1.2]), 10)


def test_the_papers_approximation_is_close_in_high_dimension() -> None:
    rho = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    exact = vmf.kappa_mle(rho, 784)
    assert (vmf.kappa_approximate(rho, 784) / exact - 1).abs().max() < 0.01
    assert vmf.kappa_approximate(torch.tensor([0.5]), 3).item() == pytest.approx(0.5 * 2.5 / 0.75)


def vonmises_fisher(p: int, kappa: float, n: int, b: int) -> torch.Tensor:
    """n draws for each of b examples, by SciPy."""
    mu = torch.nn.functional.normalize(torch.randn(p, generator=generator(1), dtype=torch.float64), dim=0).numpy()
    return torch.from_numpy(scipy.stats.vonmises_fisher(mu, kappa, seed=2).rvs(n * b)).reshape(n, b, p)


@pytest.mark.parametrize(("p", "kappa"), [(2, 0.5), (2, 300.0), (3, 5.0), (784, 10.0), (784, 2000.0), (3072, 500.0)])
@pytest.mark.slow
def test_the_kappa_of_a_sample_is_recovered(p: int, kappa: float) -> None:
    n = 4000 if p < 1000 else 1000
    v = vonmises_fisher(p, kappa, n, 2)
    debiased = ((n * vmf.mrl(v) ** 2 - 1) / (n - 1)).sqrt()  # vmf.debiased_mrl, without its n x n cosines
    assert torch.allclose(vmf.kappa_mle(debiased, p), torch.full((2,), kappa).double(), rtol=0.15)


def test_uniform_directions_show_the_bias_of_rho_and_how_it_is_removed() -> None:
    v = torch.nn.functional.normalize(torch.randn(10, 100, 3072, generator=generator(0), dtype=torch.float64), dim=2)
    assert vmf.mrl(v).mean().item() == pytest.approx(1 / math.sqrt(10), rel=0.01)
    assert vmf.debiased_mrl(v).mean() < 0.1
    assert torch.allclose(vmf.debiased_mrl(v) ** 2, ((10 * vmf.mrl(v) ** 2 - 1) / 9).clamp_min(0), atol=1e-12)


def test_l_q_lengths() -> None:
    v = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert vmf.mrl(v).item() == pytest.approx(math.sqrt(0.5))
    assert vmf.mrl(v, 1.0).item() == pytest.approx(1.0)


def test_identical_directions_have_rho_one_and_infinite_kappa() -> None:
    g = torch.randn(1, 200, 784, generator=generator(0), dtype=torch.float64)
    v = torch.nn.functional.normalize(g, dim=2).expand(7, -1, -1)
    rho = vmf.mrl(v)
    assert rho.max() <= 1
    assert (vmf.kappa_mle(rho, 784) > 1e12).all()
    assert (vmf.kappa_approximate(rho, 784) > 1e12).all()


def norm_ratio(g: torch.Tensor, log_w: torch.Tensor) -> torch.Tensor:
    """|E w g| / E |w g|."""
    weighted = g.flatten(2).double() * (log_w.double() - log_w.double().amax(0)).exp()[..., None]
    return weighted.mean(0).norm(dim=1) / weighted.norm(dim=2).mean(0)


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_running_sums_equal_the_statistics_of_all_gradients_at_once(kind: str) -> None:
    F, x, y = network(kind), images(4), labels(4)
    models = F.sample(7, 0)
    found = moments(models, x, y)
    s, g = map(torch.stack, zip(*(input_gradient(f, x, y) for f in models), strict=True))
    v = directions(g).v
    torch.testing.assert_close(found.rho(), vmf.mrl(v))
    torch.testing.assert_close(found.rho(1.0), vmf.mrl(v, 1.0))
    torch.testing.assert_close(found.mean_cosine(), mean_cosine(v))
    torch.testing.assert_close(found.norm_ratio(), norm_ratio(g, torch.nn.functional.logsigmoid(s)))
    assert found.n == 7
    assert found.usable.all()


def test_without_models_there_are_no_moments() -> None:
    with pytest.raises(GradDivError, match="there are 0 sample models"):
        moments([], images(2), labels(2))


def test_weights_that_underflow_leave_ratios_intact() -> None:
    def model(shift: float, scale: float) -> object:
        return lambda x: torch.stack([scale * x.flatten(1).sum(1) + shift, -x.flatten(1)[:, 0]], 1)

    x, y = images(2), torch.zeros(2, dtype=torch.int64)
    models = [model(4020.0, 3.0), model(4000.0, 1.0), model(4010.0, 2.0)]  # the greatest weight is met second
    found = moments(models, x, y)  # type: ignore[arg-type]
    s, g = map(torch.stack, zip(*(input_gradient(f, x, y) for f in models), strict=True))  # type: ignore[arg-type]
    sizes = (s - s.amax(0)).exp() * g.flatten(2).norm(dim=2)
    torch.testing.assert_close(found.log_scale, s.amax(0))
    torch.testing.assert_close(found.longest, sizes.amax(0))
    torch.testing.assert_close(found.length, sizes.mean(0))
    torch.testing.assert_close(found.norm_ratio(), norm_ratio(g, s))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_gradients() -> None:
    """One model and one gradient at a time: the next is made when the last is gone."""
    F = network("bayesian")
    alive: list[weakref.ref[object]] = []

    def models() -> object:
        for f in (F.bind(F.draw(seed)) for seed in range(5)):
            gc.collect()
            assert sum(ref() is not None for ref in alive) <= 1
            alive.append(weakref.ref(f))
            yield f

    moments(models(), images(2), labels(2))  # type: ignore[arg-type]


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
    assert r.excess.item() > 1e6


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
def test_confidence_does_not_change_tightness(margin: float) -> None:
    """The same two gradients of s at growing margins; at 800 every gradient of the loss underflows."""
    gradients = [[1.0, 0.0], [1.1, 0.1], [-0.1, 0.2]]
    models = [lambda x, g=torch.tensor(g).double(): torch.stack([margin - x @ g, x @ g], 1) for g in gradients]
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0])
    sure, unsure = theorem1(models, x, y, 1.0, 2.0), report(gradients)
    for name in ("tightness", "excess"):
        assert getattr(sure, name).item() == pytest.approx(getattr(unsure, name).item(), rel=1e-6), name


def test_models_of_very_different_confidence_keep_their_directions() -> None:
    u, w = torch.tensor([1.0, 0.0]).double(), torch.tensor([0.0, 1.0]).double()
    models = [lambda x: torch.stack([60 - x @ u, x @ u], 1), lambda x: torch.stack([-(x @ w), x @ w], 1)]
    r = theorem1(models, torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0]), 1.0, 2.0)
    assert r.theorem.item() == pytest.approx(math.sqrt(0.5))  # M_X = 1, rho = |(1, 1)| / 2
