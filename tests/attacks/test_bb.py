"""B&B: the solver beside SciPy's, true distances on linear networks, and what randomness must not do to it."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from graddiv import GradDivError, bayesian
from graddiv.attacks import BB, EOT, FAB, Fixed, Given
from graddiv.attacks.bb import BISECTIONS, TRIALS, along_hyperplane
from graddiv.attacks.minimal import FRESH, KEPT
from graddiv.geometry import L2, Linf
from graddiv.losses import margin
from graddiv.seeding import generator
from tests.attacks.common import with_distances
from tests.helpers import convnet, images, labels, network


def regions(b: int, d: int, size: float, steep: float, bounds: tuple[float, float]) -> tuple[Tensor, ...]:
    """x0, x, w, c, r: trust regions of `size` in units of the way to x0, hyperplanes `steep` radii away."""
    low, high = bounds
    x0 = low + (high - low) * images(b, shape=(d,))
    x = (x0 + (high - low) * 0.4 * (images(b, 1, (d,)) - 0.5)).clamp(low, high)
    w = torch.randn(b, d, generator=generator(2), dtype=torch.float64)
    w[:, 0] = 0
    r = size * (x - x0).norm(dim=1)
    c = steep * r * w.norm(dim=1) * torch.randn(b, generator=generator(3), dtype=torch.float64)
    return x0, x, w, c, r


def by_scipy(x0: Tensor, x: Tensor, w: Tensor, c: float, r: float, bounds: tuple[float, float]) -> float | None:
    """The least |x + d - x0|_inf by SLSQP, with the bound on it as one more variable; None where it finds no point."""
    way, n = (x0 - x).numpy(), len(x)
    box = [*((bounds[0] - float(v), bounds[1] - float(v)) for v in x), (0.0, None)]
    constraints = [
        {"type": "eq", "fun": lambda d: d[:n] @ w.numpy() - c},
        {"type": "ineq", "fun": lambda d: r**2 - d[:n] @ d[:n]},
        {"type": "ineq", "fun": lambda d: d[n] - (d[:n] - way)},
        {"type": "ineq", "fun": lambda d: d[n] + (d[:n] - way)},
    ]
    start = np.append(w.numpy() * c / float(w @ w), 1.0)
    found = minimize(lambda d: d[n], start, bounds=box, constraints=constraints, options={"maxiter": 300})
    return float(found.fun) if found.success else None


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 2.0)])
@pytest.mark.parametrize("size", [0.05, 0.5, 1.0, 3.0])
def test_steps_are_the_best_of_the_trust_region(size: float, bounds: tuple[float, float]) -> None:
    problem = regions(15, 6, size, 0.3, bounds)
    x0, x, w, c, r = problem
    d = along_hyperplane(Linf(bounds), *problem)
    best = [by_scipy(*row[:3], float(row[3]), float(row[4]), bounds) for row in zip(*problem, strict=True)]
    solved = torch.tensor([value is not None for value in best])
    truth = torch.tensor([value or 0.0 for value in best], dtype=torch.float64)
    assert solved.sum() >= 10
    assert (((w * d).sum(1) - c).abs() <= 1e-3 * r * w.norm(dim=1))[solved].all()
    assert (d.norm(dim=1) <= r * (1 + 0.02)).all()
    assert torch.allclose((x + d - x0).abs().amax(1)[solved], truth[solved], rtol=1e-3, atol=1e-3 * float(r.min()))
    assert (x + d).min() >= bounds[0] - 1e-12
    assert (x + d).max() <= bounds[1] + 1e-12


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds")  # as SciPy 1.15 says of SLSQP
def test_where_the_trust_region_ends_before_the_hyperplane_the_step_comes_as_close_as_it_can() -> None:
    problem = regions(20, 6, 0.5, 20.0, (0.0, 1.0))
    _, x, w, c, r = problem
    d = along_hyperplane(Linf(), *problem)
    far = c.abs() > 2 * r * w.norm(dim=1)
    assert far.sum() >= 15
    for i in far.nonzero()[:, 0].tolist():
        goal, radius, sign = w[i].numpy(), float(r[i]), float(c[i].sign())
        found = minimize(
            lambda v: -sign * (v @ goal),  # noqa: B023
            np.zeros(6),
            bounds=[(-float(p), 1 - float(p)) for p in x[i]],
            constraints=[{"type": "ineq", "fun": lambda v: radius**2 - v @ v}],  # noqa: B023
        )
        assert sign * float(w[i] @ d[i]) == pytest.approx(-found.fun, rel=1e-3)  # SLSQP oversteps a little
    assert (d.norm(dim=1) <= r * (1 + 1e-9))[far].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_know_no_scale_and_no_nan(dtype: torch.dtype) -> None:
    x0, x, w, c, r = (t.to(dtype) for t in regions(30, 40, 0.5, 0.3, (0.0, 1.0)))
    tiny = 2.0**-90
    d = along_hyperplane(Linf(), x0, x, w, c, r)
    assert torch.allclose(along_hyperplane(Linf(), x0, x, w * tiny, c * tiny, r), d, atol=1e-5)
    assert (along_hyperplane(Linf(), x0, x, 0 * w, c, r) == 0).all()
    for hard in ((x0, x0, w, c, r), (x0.round(), x.round(), w, c, r), (x0, x, w, 0 * c, r), (x0, x, w, c, 1e-7 * r)):
        assert along_hyperplane(Linf(), *hard).isfinite().all()


@pytest.mark.parametrize("bounds", [(-1.0, 2.0), pytest.param((0.0, 1.0), marks=pytest.mark.slow)])
@pytest.mark.parametrize(("near_the_box", "classes"), [(False, 2), (False, 4), (True, 2), (True, 4)])
def test_on_a_linear_network_the_true_distance_is_found(
    bounds: tuple[float, float], near_the_box: bool, classes: int
) -> None:
    geometry = Linf(bounds)
    module, x, y, distance = with_distances(geometry, near_the_box, classes)
    attack = BB(geometry, m=30, lr=0.1)
    nearest = attack.nearest(module, x, y)
    assert (module(nearest).argmax(1) != y).all()
    assert (geometry.norm(nearest - x) <= 1.05 * distance).all()
    assert (geometry.norm(nearest - x) >= distance * (1 - 1e-9)).all()
    beyond = attack(module, x, y, 1.05 * distance)
    assert (module(beyond).argmax(1) != y).all()
    short = attack(module, x, y, 0.9 * distance)
    assert (geometry.norm(short - x) <= 0.9 * distance * (1 + 1e-6)).all()
    assert (margin(module(short), y) > margin(module(x), y)).all()


def test_a_start_is_found_where_noise_never_is_adversarial() -> None:
    class Shy(nn.Module):
        """Class 1 only where the mean pixel is above 0.9: no uniform noise is."""

        def forward(self, x: Tensor) -> Tensor:
            brightness = x.flatten(1).mean(1)
            return torch.stack([0.9 - brightness, brightness - 0.9], 1)

    x, y = images(4), torch.zeros(4, dtype=torch.int64)
    nearest = BB(m=60, lr=0.02).nearest(Shy(), x, y)
    assert (Shy()(nearest).argmax(1) == 1).all()
    clipped = torch.stack([(x + e).clamp(max=1).flatten(1).mean(1) for e in torch.linspace(0, 1, 1001)])
    truth = (clipped < 0.9).sum(0) / 1000
    assert (Linf().norm(nearest - x) <= 1.05 * truth).all()


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("sigma", [0.02, 0.1])
def test_eot_raises_the_margin_of_the_ensemble_and_never_returns_the_clean_image(sigma: float, n: int) -> None:
    F, x = bayesian(convnet(nn.ReLU), sigma), images(8)
    judge = EOT(F, 50, seed=9)
    y = judge.logits(0, x).argmax(1)
    x_adv = BB(m=10)(EOT(F, n), x, y, 0.05)
    assert (Linf().norm(x_adv - x) > 0.5 * 0.05).all()
    assert (margin(judge.logits(0, x_adv), y) > margin(judge.logits(0, x), y)).double().mean() >= 0.75


@pytest.mark.slow
def test_it_comes_as_near_as_fab() -> None:
    module, x = convnet(nn.ReLU), images(10)
    y = module(x).argmax(1)
    nearest, beside = BB(m=60, lr=0.02).nearest(module, x, y), FAB().nearest(module, x, y)
    assert (margin(module(nearest), y) > 0).all()
    assert (Linf().norm(nearest - x) / Linf().norm(beside - x)).median() <= 1.02


def test_the_gradient_is_that_of_the_margin_of_the_mean_logits() -> None:
    view, x, y = EOT(network("bayesian"), 3), images(5), labels(5)
    against, gradient = view.margin(4, x, y)
    # the graph of the last model serves both passes
    assert (view.cost.forwards, view.cost.backwards) == (5, 3)
    point = x.clone().requires_grad_()
    value = margin(torch.stack([f(point) for f in view(4)]).mean(0), y)
    assert torch.allclose(against, value)
    assert torch.allclose(gradient, torch.autograd.grad(value.sum(), point)[0], atol=1e-12)
    lone = Fixed(network("bayesian"))
    lone.margin(0, x, y)
    assert (lone.cost.forwards, lone.cost.backwards) == (1, 1)


def test_the_cost_is_counted_and_progress_is_told() -> None:
    view, told = EOT(network("bayesian"), 2), []
    m = 5
    BB(m=m)(view, images(2), labels(2), 0.1, progress=lambda done, total: told.append((done, total)))
    # a gradient takes 3 passes of 2 models; the incumbent and its challenger 2 each
    bisections = 2 * 2 * (BISECTIONS + 1)
    assert view.cost.forwards == 2 * TRIALS + 2 * TRIALS + bisections + (m + 1) * (3 + 2 + 2) + 2 * KEPT * FRESH
    # points that meet the same models share their draws: all noise images, incumbent and challenger, the points kept
    assert view.cost.draws == 2 + 2 * TRIALS + bisections + (m + 1) * (3 + 2) + 2 * FRESH
    # three classes beside the label's at first, then the one that is climbed to
    assert view.cost.backwards == 2 * (3 + TRIALS - 1 + m + 1)
    assert told[-1] == (m, m)


def test_bad_input() -> None:
    module, x, y = convnet(), images(3), labels(3)
    with pytest.raises(GradDivError, match="the geometry is L2, expected Linf"):
        BB(L2())
    with pytest.raises(GradDivError, match=r"labels lie in \[4, .*\], expected 0\.\.3"):
        BB()(module, x, y * 0 + 4, 0.1)
    with pytest.raises(GradDivError, match=r"3 of 3 examples are not finite"):
        BB()(Given([lambda x: module(x) * float("nan")]), x, y, 0.1)
    with pytest.raises(GradDivError, match="m is 0"):
        BB(m=0)
    with pytest.raises(GradDivError, match=r"overshoot is 0\.5"):
        BB(overshoot=0.5)
