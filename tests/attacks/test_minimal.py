"""FAB: exact projections, true distances on linear networks, and what randomness must not do to it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from graddiv import GradDivError, bayesian
from graddiv.attacks import EOT, Given
from graddiv.attacks.minimal import FAB, FRESH, KEPT, to_hyperplane
from graddiv.geometry import L2, Geometry, Linf
from graddiv.losses import margin
from graddiv.networks import RandomizedNetwork, rse
from graddiv.seeding import generator
from tests.attacks.common import oracle, with_distances
from tests.helpers import SHAPE, convnet, images, labels, network

GEOMETRIES = [Linf(), L2(), Linf((-1.0, 2.0)), L2((-1.0, 2.0))]
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
either_norm = pytest.mark.parametrize("geometry", GEOMETRIES[:2], ids=lambda g: g.name)


def hyperplanes(geometry: Geometry, b: int, d: int, far: float) -> tuple[Tensor, Tensor, Tensor]:
    """Points of the box and hyperplanes `far` from them, in units of what the pixels' room allows."""
    low, high = geometry.bounds
    x = low + (high - low) * images(b, shape=(d,))
    w = torch.randn(b, d, generator=generator(1), dtype=torch.float64)
    w[:, 0] = 0
    reach = torch.maximum(w * (low - x), w * (high - x)).sum(1)
    return x, w, (w * x).sum(1) + far * reach * torch.where(torch.arange(b) % 2 == 0, 1, -0.3)


@every_geometry
@pytest.mark.parametrize("far", [0.0, 0.01, 0.3, 0.8, 0.99])
def test_projections_are_the_nearest_points_of_the_hyperplane(geometry: Geometry, far: float) -> None:
    x, w, b = hyperplanes(geometry, 20, 7, far)
    d = to_hyperplane(geometry, x, w, b)
    truth = torch.tensor([oracle(geometry, *row) for row in zip(x, w, b, strict=True)], dtype=torch.float64)
    feasible = truth < torch.inf
    assert feasible.sum() >= 10
    assert torch.allclose((w * (x + d)).sum(1)[feasible], b[feasible], atol=1e-12)
    assert torch.allclose(geometry.norm(d)[feasible], truth[feasible], rtol=1e-7, atol=1e-9)
    assert (x + d).min() >= geometry.bounds[0] - 1e-12
    assert (x + d).max() <= geometry.bounds[1] + 1e-12
    assert (d[:, 0] == 0).all()


@every_geometry
def test_where_the_box_ends_before_the_hyperplane_the_projection_is_its_corner(geometry: Geometry) -> None:
    x, w, b = hyperplanes(geometry, 8, 7, 100.0)
    low, high = geometry.bounds
    corner = torch.where(w * (b - (w * x).sum(1))[:, None] > 0, high, low).double()
    corner[:, 0] = x[:, 0]
    assert torch.allclose(x + to_hyperplane(geometry, x, w, b), corner, atol=1e-12)


@either_norm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_projections_know_no_scale_and_no_nan(geometry: Geometry, dtype: torch.dtype) -> None:
    x, w, b = (t.to(dtype) for t in hyperplanes(geometry, 20, 7, 0.5))
    tiny = 2.0**-90
    assert torch.allclose(to_hyperplane(geometry, x, w * tiny, b * tiny), to_hyperplane(geometry, x, w, b), atol=1e-6)
    assert (to_hyperplane(geometry, x, 0 * w, b) == 0).all()
    assert to_hyperplane(geometry, x.round(), w, b).isfinite().all()


@every_geometry
@pytest.mark.parametrize(("near_the_box", "classes"), [(False, 2), (False, 4), (True, 2), (True, 4)])
@pytest.mark.slow
def test_on_a_linear_network_the_true_distance_is_found(geometry: Geometry, near_the_box: bool, classes: int) -> None:
    module, x, y, distance = with_distances(geometry, near_the_box, classes)
    free = -margin(module(x), y) / (module.weight[0] - module.weight[1]).norm(p=geometry.q)
    if classes == 2:
        assert (distance > free * (1 + 1e-6)).any() == near_the_box
    attack = FAB(geometry, m=20)
    nearest = attack.nearest(module, x, y)
    assert (module(nearest).argmax(1) != y).all()
    assert (geometry.norm(nearest - x) <= 1.05 * distance).all()
    assert (geometry.norm(nearest - x) >= distance * (1 - 1e-9)).all()
    beyond = attack(module, x, y, 1.05 * distance)
    assert (module(beyond).argmax(1) != y).all()
    assert (geometry.norm(beyond - x) <= 1.05 * distance * (1 + 1e-6)).all()
    short = attack(module, x, y, 0.9 * distance)
    assert (geometry.norm(short - x) <= 0.9 * distance * (1 + 1e-6)).all()
    assert (margin(module(short), y) > margin(module(x), y)).all()


@either_norm
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize(
    "noisy",
    [
        pytest.param(lambda f: bayesian(f, 0.02), marks=pytest.mark.slow),
        lambda f: bayesian(f, 0.1),
        lambda f: rse(f, SHAPE),
    ],
    ids=["bayesian", "noisier", "rse"],
)
def test_eot_raises_the_margin_of_the_ensemble_and_never_returns_the_clean_image(
    noisy: Callable[[nn.Sequential], RandomizedNetwork], n: int, geometry: Geometry
) -> None:
    F, x = noisy(convnet(nn.ReLU)), images(8)
    judge = EOT(F, 50, seed=9)
    y = judge.logits(0, x).argmax(1)
    epsilon = 0.05 if isinstance(geometry, Linf) else 0.25
    x_adv = FAB(geometry, m=15)(EOT(F, n), x, y, epsilon)
    assert (geometry.norm(x_adv - x) <= epsilon * (1 + 1e-6)).all()
    assert (geometry.norm(x_adv - x) > 0.01 * epsilon).all()
    assert (margin(judge.logits(0, x_adv), y) > margin(judge.logits(0, x), y)).double().mean() >= 0.75
    assert margin(judge.logits(0, x_adv), y).mean() > margin(judge.logits(0, x), y).mean()


@pytest.mark.slow
def test_the_nearest_point_fools_the_ensemble_and_not_only_one_draw() -> None:
    F, x = bayesian(convnet(nn.ReLU), 0.05), images(12)
    judge = EOT(F, 50, seed=9)
    y = judge.logits(0, x).argmax(1)
    nearest = FAB(m=30).nearest(EOT(F, 5), x, y)
    assert (margin(judge.logits(0, nearest), y) > 0).double().mean() >= 0.75


def test_an_image_that_is_wrong_already_is_its_own_nearest_point_and_stays_wrong_when_attacked() -> None:
    module, x = convnet(nn.ReLU), images(6)
    wrong = (module(x).argmax(1) + 1) % 4
    attack = FAB(m=10)
    assert torch.equal(attack.nearest(module, x, wrong), x)
    x_adv = attack(module, x, wrong, 0.05)
    assert (margin(module(x_adv), wrong) > 0).all()
    assert not torch.equal(x_adv, x)


class Sine(nn.Module):
    """Bends the boundary, so that where the attack starts matters."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(8 * x)


@pytest.mark.slow
def test_restarts_find_no_farther_points() -> None:
    wave, x = convnet(Sine), images(4)
    y = wave(x).argmax(1)
    one, two = (Linf().norm(FAB(m=100, restarts=r).nearest(wave, x, y) - x) for r in (1, 2))
    assert (two <= one).all()
    assert (two < one).any()


def test_the_differences_of_a_view_are_those_of_its_mean_logits() -> None:
    view, x, y = EOT(network("bayesian"), 3), images(2), labels(2)
    gaps, gradients = view.differences(4, x, y)
    z = view.logits(4, x)
    jacobian = torch.autograd.functional.jacobian(lambda x: torch.stack([f(x) for f in view(4)]).mean(0), x)
    for i, label in enumerate(y.tolist()):
        others = [(label + j) % 4 for j in (1, 2, 3)]
        assert torch.allclose(gaps[i], z[i, others] - z[i, label], atol=1e-12)
        assert torch.allclose(gradients[i], jacobian[i, others, i] - jacobian[i, label, i], atol=1e-12)


def test_the_cost_is_counted_and_progress_is_told() -> None:
    view, told = EOT(network("bayesian"), 3), []
    FAB(m=5)(view, images(2), labels(2), 0.1, progress=lambda done, total: told.append((done, total)))
    # each iteration looks at x, its successor, the incumbent and its challenger; then fresh models at the points kept
    assert view.cost.forwards == 3 * (5 * 4 + KEPT * FRESH)
    assert view.cost.draws == 3 * (5 * 3 + FRESH)  # incumbent and challenger share theirs, and so do the points kept
    assert view.cost.backwards == 3 * 5 * 3  # 3 models, 5 iterations, 3 classes beside the label's
    assert told[-1] == (5, 5)


def test_bad_input() -> None:
    module, x, y = convnet(), images(3), labels(3)
    with pytest.raises(GradDivError, match=r"labels lie in \[4, .*\], expected 0\.\.3"):
        FAB()(module, x, y * 0 + 4, 0.1)
    with pytest.raises(GradDivError, match=r"3 of 3 examples are not finite"):
        FAB()(Given([lambda x: module(x) * float("nan")]), x, y, 0.1)
    with pytest.raises(GradDivError, match="x lies in"):
        FAB().nearest(module, 2 * x, y)
    with pytest.raises(GradDivError, match="m is 0"):
        FAB(m=0)
    with pytest.raises(GradDivError, match=r"beta is 1\.5"):
        FAB(beta=1.5)
