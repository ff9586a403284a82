import math

import mpmath
import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import vonmises_fisher

from graddiv import GradDivError
from graddiv.directions import vmf
from graddiv.seeding import generator

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


@pytest.mark.parametrize("kappa", [0.5, 20.0, 800.0])
@pytest.mark.parametrize("p", [2, 3, 20, 100])
def test_log_density_is_scipys(p: int, kappa: float) -> None:
    mu = torch.zeros(1, p, dtype=torch.float64)
    mu[0, -1] = 1
    v = vmf.sample(mu, torch.tensor([kappa]), 50, seed=1)
    expected = vonmises_fisher(mu[0].numpy(), kappa).logpdf(v[:, 0].numpy())
    assert np.allclose(vmf.log_density(v, mu, torch.tensor([kappa]))[:, 0].numpy(), expected, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize(("p", "kappa"), [(2, 0.5), (2, 300.0), (3, 5.0), (784, 10.0), (784, 2000.0), (3072, 500.0)])
def test_the_sampler_recovers_its_kappa(p: int, kappa: float) -> None:
    mu = torch.nn.functional.normalize(torch.randn(2, p, generator=generator(1), dtype=torch.float64), dim=1)
    n = 4000 if p < 1000 else 1000
    v = vmf.sample(mu, torch.tensor([kappa, kappa]), n, seed=2)
    assert torch.allclose(v.norm(dim=2), torch.ones((), dtype=torch.float64))
    along = (v * mu).sum(2).mean(0)
    a = vmf.mean_length(torch.tensor([kappa]), p)
    deviation = (1 - a**2 - (p - 1) / kappa * a).sqrt()  # Var(mu.v) = A'(kappa)
    assert ((along - a).abs() < 4 * deviation / math.sqrt(n)).all()
    across = v - (v * mu).sum(2, keepdim=True) * mu
    assert (across.mean(0).norm(dim=1) < 4 / math.sqrt(n)).all()
    debiased = ((n * vmf.mrl(v) ** 2 - 1) / (n - 1)).sqrt()  # vmf.debiased_mrl, without its n x n cosines
    assert torch.allclose(vmf.kappa_mle(debiased, p), torch.full((2,), kappa).double(), rtol=0.15)


def test_uniform_directions_show_the_bias_of_rho_and_how_it_is_removed() -> None:
    v = vmf.sample(torch.eye(100, 3072, dtype=torch.float64), torch.full((100,), 1e-3), 10, seed=0)
    assert vmf.mrl(v).mean().item() == pytest.approx(1 / math.sqrt(10), rel=0.01)
    assert vmf.debiased_mrl(v).mean() < 0.1
    assert torch.allclose(vmf.debiased_mrl(v) ** 2, ((10 * vmf.mrl(v) ** 2 - 1) / 9).clamp_min(0), atol=1e-12)


def test_l_q_lengths() -> None:
    v = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert vmf.mrl(v).item() == pytest.approx(math.sqrt(0.5))
    assert vmf.mrl(v, 1.0).item() == pytest.approx(1.0)


@given(st.integers(0, 2**32), st.floats(-300, 300))
def test_the_norm_weighted_length_knows_no_scale(seed: int, shift: float) -> None:
    g = torch.randn(5, 4, 2, 3, generator=generator(seed), dtype=torch.float64)
    log_w = torch.randn(5, 4, generator=generator(seed + 1), dtype=torch.float64)
    found = vmf.norm_weighted_mrl(g, log_w + shift)
    weighted = (log_w.exp()[..., None, None] * g).flatten(2)
    assert torch.allclose(found, weighted.mean(0).norm(dim=1) / weighted.norm(dim=2).mean(0))
    equal = torch.nn.functional.normalize(g.flatten(2), dim=2)
    assert torch.allclose(vmf.norm_weighted_mrl(equal), vmf.mrl(equal))


def test_identical_directions_have_rho_one_and_infinite_kappa() -> None:
    g = torch.randn(1, 200, 784, generator=generator(0), dtype=torch.float64)
    v = torch.nn.functional.normalize(g, dim=2).expand(7, -1, -1)
    rho = vmf.mrl(v)
    assert rho.max() <= 1
    assert (vmf.kappa_mle(rho, 784) > 1e12).all()
    assert (vmf.kappa_approximate(rho, 784) > 1e12).all()


def test_kappa_out_of_range_is_refused_and_zero_is_uniform() -> None:
    mu = torch.eye(1, 3, dtype=torch.float64)
    for bad in (math.inf, -1.0, math.nan):
        with pytest.raises(GradDivError, match="expected finite numbers >= 0"):
            vmf.sample(mu, torch.tensor([bad]), 2, 0)
    density = vmf.log_density(mu[None], mu, torch.tensor([0.0]))
    assert density.item() == pytest.approx(-math.log(4 * math.pi))
