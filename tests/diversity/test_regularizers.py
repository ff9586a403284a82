import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graddiv import GradDivError
from graddiv.diversity import REGULARIZERS, directions
from graddiv.diversity import regularizers as R
from graddiv.diversity.concentration import mrl
from graddiv.seeding import generator

seeds = st.integers(0, 2**32)
numbers = st.integers(2, 20)


def unit(n: int, b: int, p: int, seed: int, spread: float = 1.0) -> Tensor:
    """Directions around one common direction; the smaller the spread the closer."""
    g = generator(seed)
    around = torch.randn(1, b, p, generator=g, dtype=torch.float64)
    return directions(around + spread * torch.randn(n, b, p, generator=g, dtype=torch.float64)).v


@given(numbers, seeds, st.floats(1e-3, 10))
def test_the_mean_cosine_is_a_function_of_rho(n: int, seed: int, spread: float) -> None:
    """R_mean = (n rho^2 - 1) / (n - 1)."""
    v = unit(n, 3, 30, seed, spread)
    assert torch.allclose(R.mean_cosine(v), (n * mrl(v) ** 2 - 1) / (n - 1), atol=1e-12)


@given(numbers, seeds, st.floats(0.1, 10))
def test_r_kappa_is_the_papers_formula(n: int, seed: int, spread: float) -> None:
    p = 30
    v = unit(n, 3, p, seed, spread)
    rho = mrl(v)
    assert torch.allclose(R.kappa(v), rho * (p - rho) / (p * (1 - rho**2 + R.KAPPA_DELTA)), rtol=1e-9)


@given(numbers, seeds, st.floats(0.1, 10))
def test_r_dpp_is_minus_the_log_determinant(n: int, seed: int, spread: float) -> None:
    v = unit(n, 2, 40, seed, spread)
    gram = torch.einsum("ibp,jbp->bij", v, v)
    exact = -torch.logdet((gram + R.DPP_DELTA * torch.eye(n, dtype=torch.float64)) / (1 + R.DPP_DELTA))
    assert torch.allclose(R.dpp(v), exact, rtol=1e-9, atol=1e-12)
    assert (R.dpp(v) >= -1e-12).all()


@given(numbers, seeds)
def test_orthogonal_gradients_are_the_optimum(n: int, seed: int) -> None:
    frame = torch.linalg.qr(torch.randn(1, 25, n, generator=generator(seed), dtype=torch.float64)).Q
    v = frame.permute(2, 0, 1)
    assert mrl(v).item() == pytest.approx(1 / math.sqrt(n))
    assert R.dpp(v).item() == pytest.approx(0, abs=1e-12)
    assert R.mean_cosine(v).item() == pytest.approx(0, abs=1e-12)
    assert R.max_cosine(v).item() == pytest.approx(0, abs=1e-12)
    assert R.smoothmax(v).item() == pytest.approx(math.log(n * (n - 1)))


def test_r_dpp_vanishes_only_for_orthogonal_gradients() -> None:
    v = torch.eye(3, dtype=torch.float64)[:, None, :].clone()
    v[1, 0] = torch.tensor([math.sin(0.1), math.cos(0.1), 0])
    assert R.dpp(v).item() == pytest.approx(-2 * math.log(math.cos(0.1)), rel=1e-3)


@pytest.mark.parametrize("c", [-0.4, 0.0, 0.3, 0.9])
def test_closed_forms_for_three_gradients_with_equal_cosines(c: float) -> None:
    """Det = (1 - c)^2 (1 + 2c)."""
    gram = torch.full((3, 3), c, dtype=torch.float64).fill_diagonal_(1.0)
    v = torch.linalg.cholesky(gram)[:, None, :]
    assert R.mean_cosine(v).item() == pytest.approx(c)
    assert R.max_cosine(v).item() == pytest.approx(c)
    assert R.smoothmax(v).item() == pytest.approx(math.log(6) + c)
    assert R.dpp(v).item() == pytest.approx(-math.log((1 - c) ** 2 * (1 + 2 * c)), abs=3e-3)


@pytest.mark.parametrize("name", REGULARIZERS)
@given(numbers, seeds, st.floats(0.01, 10))
def test_rotations_and_permutations_change_nothing(name: str, n: int, seed: int, spread: float) -> None:
    v = unit(n, 3, 12, seed, spread)
    g = generator(seed + 1)
    rotation = torch.linalg.qr(torch.randn(12, 12, generator=g, dtype=torch.float64)).Q
    shuffle = torch.randperm(n, generator=g)
    value = REGULARIZERS[name](v)
    assert torch.allclose(REGULARIZERS[name](v @ rotation), value, rtol=1e-6, atol=1e-9)
    assert torch.allclose(REGULARIZERS[name](v[shuffle]), value, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", REGULARIZERS)
def test_more_concentrated_gradients_cost_more(name: str) -> None:
    values = [REGULARIZERS[name](unit(4, 200, 50, 0, spread)).mean().item() for spread in (10, 1, 0.3, 0.1, 0.01)]
    assert values == sorted(values)
    assert values[-1] > values[0] + 0.5


def hard_case(case: str, n: int, p: int = 16) -> Tensor:
    """Gradients, not unit, of one example for which a naive formula breaks down."""
    g = torch.randn(n, 1, p, generator=generator(n))
    match case:
        case "identical":
            return g[:1].expand(n, -1, -1).clone()
        case "nearly identical":
            return g[:1] + 1e-7 * g
        case "opposite":
            return g[:1] * (-1.0) ** torch.arange(n)[:, None, None]
        case "orthogonal":
            return torch.eye(n, 32)[:, None, :]
        case "tiny":
            return 1e-18 * g
        case "one zero":
            return torch.cat([0 * g[:1], g[1:]])
        case "all zero":
            return 0 * g
    raise AssertionError(case)


CASES = ["identical", "nearly identical", "opposite", "orthogonal", "tiny", "one zero", "all zero"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [2, 3, 10, 20])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", REGULARIZERS)
def test_value_and_gradient_are_finite_where_naive_formulas_break(
    name: str, case: str, n: int, dtype: torch.dtype
) -> None:
    g = hard_case(case, n).to(dtype).requires_grad_()
    v, usable = directions(g)
    value = torch.where(usable, REGULARIZERS[name](v), 0.0).sum()
    value.backward()
    assert value.isfinite()
    assert g.grad is not None
    assert g.grad.isfinite().all()
    assert usable.item() == (case not in ("one zero", "all zero"))
    assert usable.item() or (value == 0 and (g.grad == 0).all())


@pytest.mark.parametrize("name", REGULARIZERS)
def test_concentration_is_never_rewarded_at_its_extreme(name: str) -> None:
    """Identical float32 gradients, whose rho rounds above 1 now and then, cost more than any spread ones."""
    g = torch.randn(1, 500, 100, generator=generator(0)).expand(3, -1, -1)
    close = g + 0.01 * torch.randn(3, 500, 100, generator=generator(1))
    assert REGULARIZERS[name](directions(g).v).min() >= REGULARIZERS[name](directions(close).v).max() - 1e-9


@pytest.mark.parametrize("name", REGULARIZERS)
def test_gradients_with_respect_to_the_gradients_match_finite_differences(name: str) -> None:
    g = torch.randn(4, 3, 7, generator=generator(3), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda g: REGULARIZERS[name](directions(g).v), [g])


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(
        GradDivError, match=r"unknown regularizer 'kapa', did you mean 'kappa'\? expected one of kappa, mean"
    ):
        _ = REGULARIZERS["kapa"]
