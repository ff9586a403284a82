from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from graddiv.geometry import L1, L2, Geometry, Linf
from graddiv.seeding import generator, uniform

BOXES = [(0.0, 1.0), (-1.0, 2.0)]
every_norm = pytest.mark.parametrize("geometry", [norm(box) for norm in (Linf, L2, L1) for box in BOXES], ids=str)
seeds = st.integers(0, 2**32)


def points(seed: int, low: float, high: float, b: int = 5) -> Tensor:
    return low + (high - low) * torch.rand(b, 2, 3, generator=generator(seed), dtype=torch.float64)


@every_norm
@given(seeds, st.floats(0, 3))
def test_projections_lie_in_ball_and_box_and_points_inside_stay(geometry: Geometry, seed: int, size: float) -> None:
    x0, x = points(seed, *geometry.bounds), points(seed + 1, -3, 4)
    epsilon = torch.rand(5, generator=generator(seed), dtype=torch.float64) * size
    inside = geometry.project(x, x0, epsilon)
    assert (geometry.norm(inside - x0) <= epsilon * (1 + 1e-12) + 1e-14).all()
    assert inside.min() >= geometry.bounds[0]
    assert inside.max() <= geometry.bounds[1]
    assert torch.allclose(geometry.project(inside, x0, epsilon), inside, atol=1e-13)


@every_norm
@given(seeds, st.floats(1e-3, 5), st.sampled_from([1e-200, 1.0, 1e100]))
def test_the_steepest_step_attains_the_dual_norm(geometry: Geometry, seed: int, alpha: float, scale: float) -> None:
    """max over |d|_p <= alpha of <g, d> is alpha |g|_q."""
    g = torch.randn(5, 2, 3, generator=generator(seed), dtype=torch.float64)
    radius = torch.full((5,), alpha, dtype=torch.float64)
    d = geometry.steepest(g * scale, radius)
    assert torch.allclose(geometry.norm(d), radius)
    assert torch.allclose((g * d).flatten(1).sum(1), alpha * g.flatten(1).norm(p=geometry.q, dim=1))


@every_norm
def test_a_zero_gradient_is_no_step(geometry: Geometry) -> None:
    assert (geometry.steepest(torch.zeros(2, 3), torch.ones(2)) == 0).all()


@pytest.mark.parametrize("geometry", [Linf((-9.0, 9.0)), L2((-9.0, 9.0)), L1((-9.0, 9.0))], ids=str)
def test_random_starts_are_uniform_in_the_ball(geometry: Geometry) -> None:
    x0 = torch.zeros(4000, 3, dtype=torch.float64)
    x = geometry.random(uniform(0, torch.arange(4000), 3), x0, torch.full((4000,), 2.0, dtype=torch.float64))
    volume = (geometry.norm(x) / 2) ** 3  # uniform in [0, 1] for a uniform point in three dimensions
    assert volume.max() <= 1 + 1e-12
    assert volume.mean().item() == pytest.approx(0.5, abs=0.02)
    assert volume.var().item() == pytest.approx(1 / 12, abs=0.006)
    assert x.mean(0).abs().max() < 0.06


def exactly(x: Tensor) -> list[list[Fraction]]:
    return [[Fraction(value) for value in row] for row in x.flatten(1).tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("epsilon", [0.3, 0.1, 8 / 255, 0.031, 1e-9, 0.0])
@pytest.mark.parametrize("geometry", [Linf(), L2(), L1()], ids=lambda geometry: geometry.name)
def test_shrunk_points_are_within_epsilon_in_exact_arithmetic(
    geometry: Geometry, epsilon: float, dtype: torch.dtype
) -> None:
    g = generator(0)
    x0 = torch.rand(40, 30, generator=g, dtype=dtype)
    x0[::3] = (x0[::3] * 255).round() / 255
    x0[1] = epsilon  # so that x0 - epsilon is next to 0, where floating-point numbers are dense
    radius = torch.full((40,), epsilon, dtype=torch.float64)
    pushed = x0 + 2 * (torch.rand(x0.shape, generator=g, dtype=dtype) - 0.5)
    projected = geometry.project(pushed, x0, radius.to(dtype))
    x = geometry.shrink(projected, x0, radius)
    for row, row0 in zip(exactly(x), exactly(x0), strict=True):
        moved = [abs(a - b) for a, b in zip(row, row0, strict=True)]
        if geometry.name == "Linf":
            assert max(moved) <= Fraction(epsilon)
        elif geometry.name == "L1":
            assert sum(moved) <= Fraction(epsilon)
        else:
            assert sum(m * m for m in moved) <= Fraction(epsilon) ** 2
    assert x.min() >= 0
    assert x.max() <= 1
    assert (x - projected).abs().max() <= 1e-6  # no farther than rounding makes necessary


def nearest_by_bisection(x: Tensor, x0: Tensor, epsilon: float, bounds: tuple[float, float]) -> Tensor:
    """The nearest point of l_1 ball and box: soft thresholding, cut by the box, at the threshold that fits the ball."""
    delta, room = x - x0, torch.where(x > x0, bounds[1] - x0, x0 - bounds[0])

    def at(t: float) -> Tensor:
        return delta.sign() * torch.minimum((delta.abs() - t).clamp_min(0), room)

    inner, outer = 0.0, float(delta.abs().max())
    if at(0.0).abs().sum() <= epsilon:
        return x0 + at(0.0)
    for _ in range(100):
        middle = (inner + outer) / 2
        inner, outer = (middle, outer) if at(middle).abs().sum() > epsilon else (inner, middle)
    return x0 + at(outer)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 2.0)])
@pytest.mark.parametrize("size", [0.0, 0.3, 1.5, 4.0, 50.0])
def test_l1_projections_are_the_nearest_points_of_ball_and_box(size: float, bounds: tuple[float, float]) -> None:
    g = generator(0)
    x0 = bounds[0] + (bounds[1] - bounds[0]) * torch.rand(20, 9, generator=g, dtype=torch.float64)
    x0[::4] = x0[::4].round()
    x = x0 + 2 * torch.randn(20, 9, generator=g, dtype=torch.float64)
    x[::3, :4] = x0[::3, :4]  # pixels that have not moved
    found = L1(bounds).project(x, x0, torch.full((20,), size, dtype=torch.float64))
    for point, start, ours in zip(x, x0, found, strict=True):
        assert torch.allclose(ours, nearest_by_bisection(point, start, size, bounds), atol=1e-12)


def test_an_l1_projection_is_nearer_than_what_a_solver_for_convex_problems_finds() -> None:
    g = generator(1)
    x0, x = torch.rand(6, dtype=torch.float64, generator=g), 3 * torch.randn(6, dtype=torch.float64, generator=g)
    ours = L1().project(x[None], x0[None], torch.tensor([1.2], dtype=torch.float64))[0]
    ball = {"type": "ineq", "fun": lambda d: 1.2 - np.abs(d).sum()}
    box = [(-float(v), 1 - float(v)) for v in x0]
    theirs = minimize(lambda d: ((x0.numpy() + d - x.numpy()) ** 2).sum(), np.zeros(6), bounds=box, constraints=[ball])
    assert float((ours - x).square().sum()) <= theirs.fun * (1 + 1e-6)
    assert torch.allclose(ours, x0 + torch.from_numpy(theirs.x), atol=1e-2)


def test_an_l1_step_takes_the_best_pixels_to_the_end_of_the_box() -> None:
    x = torch.tensor([[0.5, 0.9, 0.2, 0.4]], dtype=torch.float64)
    g = torch.tensor([[1.0, 3.0, -2.0, 0.0]], dtype=torch.float64)
    for alpha, expected in (
        (0.05, [0.5, 0.95, 0.2, 0.4]),
        (0.2, [0.5, 1.0, 0.1, 0.4]),
        (0.7, [0.9, 1.0, 0.0, 0.4]),
        (9.0, [1.0, 1.0, 0.0, 0.4]),
    ):
        stepped = L1().step(x, g, torch.tensor([alpha], dtype=torch.float64))
        assert torch.allclose(stepped, torch.tensor([expected], dtype=torch.float64))
