"""FGSM and PGD in their three modes: laws of views, closed forms, what an attack leaves alone."""

import math
import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from graddiv import GradDivError, bayesian
from graddiv.attacks import EOT, FGSM, PGD, Attack, Fixed, Given, RotatedPGD
from graddiv.diversity import input_gradient
from graddiv.geometry import L2, Geometry, Linf
from graddiv.losses import ce
from graddiv.networks import Noise, SampleModel
from tests.attacks.common import GEOMETRIES, linear, views
from tests.helpers import KINDS, STOCHASTIC, convnet, costly, images, labels, network, no_type_checks

ATTACKS = [FGSM(), FGSM(L2()), PGD(m=4), PGD(L2(), m=4, random_start=True), PGD(m=3, restarts=3)]
every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: f"{a.name}-{a.geometry.name}-{a.restarts}")


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_on_a_linear_network_the_true_distance_decides(geometry: Geometry) -> None:
    module, x, y, distance = linear(12, geometry, inside=True)
    for attack in (FGSM(geometry), PGD(geometry, m=20)):
        beyond = attack(module, x, y, 1.05 * distance)
        assert (module(beyond).argmax(1) != y).all()
        assert (geometry.norm(beyond - x) <= 1.05 * distance * (1 + 1e-6)).all()
        short = attack(module, x, y, 0.95 * distance)
        assert (module(short).argmax(1) == y).all()


@every_attack
@pytest.mark.parametrize("kind", costly(KINDS))
@pytest.mark.slow
def test_the_loss_is_raised(kind: str, attack: Attack) -> None:
    x, y = images(5), labels(5)
    for view in views(kind):
        x_adv = attack(view, x, y, 0.2)
        assert view.loss(0, x_adv, y).sum() > view.loss(0, x, y).sum()


@pytest.mark.parametrize("kind", costly(KINDS))
def test_several_points_share_draws_and_get_what_each_would_alone(kind: str) -> None:
    points, y = [images(3), images(3).flip(0)], labels(3)
    for view in views(kind):
        n = len(list(view(4)))
        before = replace(view.cost)
        losses, z = view.losses(4, points, y), view.logits_at(4, points)
        assert view.cost.forwards - before.forwards == 4 * n
        assert view.cost.draws - before.draws == (2 * n if isinstance(view, EOT) and view.F.random else 0)
        for i, x in enumerate(points):
            assert torch.equal(losses[i], view.loss(4, x, y))
            assert torch.equal(z[i], view.logits(4, x))


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_views_are_pure_in_k_and_differ_as_they_should(kind: str) -> None:
    F, x = network(kind), images(3)

    def outputs(view: object, k: int) -> Tensor:
        return torch.stack([f(x) for f in view(k)])

    fixed, eot = Fixed(F, seed=3), EOT(F, 4, seed=3)
    assert torch.equal(outputs(fixed, 0), outputs(fixed, 9))
    assert torch.equal(outputs(eot, 5), outputs(eot, 5))
    assert not torch.allclose(outputs(eot, 5), outputs(eot, 6))
    assert not torch.allclose(outputs(eot, 5), outputs(EOT(F, 4, seed=4), 5))
    assert not torch.allclose(outputs(fixed, 0), outputs(Fixed(F, seed=4), 0))
    assert torch.equal(outputs(eot, 5)[:2], outputs(EOT(F, 2, seed=3), 5))


def test_labels_are_the_papers() -> None:
    F = network("bayesian")
    assert [view.label("PGD") for view in (Fixed(F), EOT(F), EOT(F, 10))] == ["PGD", "EOT^1-PGD", "EOT-PGD"]


def test_the_cost_is_counted() -> None:
    view = EOT(network("bayesian"), 3)
    PGD(m=5, restarts=2)(view, images(2), labels(2), 0.1)
    assert (view.cost.forwards, view.cost.backwards, view.cost.draws) == (36, 30, 36)  # 2 x 5 x 3, and 2 x 3 to choose


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    PGD(m=2, restarts=2)(convnet(), images(2), labels(2), 0.1, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_restarts_help_and_are_chosen_on_fresh_models() -> None:
    F, x, y = bayesian(convnet(nn.ReLU), 0.02), images(8), labels(8)
    view = EOT(F, 3)
    one, many = (PGD(m=3, random_start=True, restarts=r)(view, x, y, 0.1) for r in (1, 6))
    assert (view.loss(-1, many, y) >= view.loss(-1, one, y)).all()
    assert view.loss(-1, many, y).sum() > view.loss(-1, one, y).sum()


def test_a_foreign_network_is_attacked_like_any_other() -> None:
    F, x, y = network("foreign"), images(6), labels(6)
    view = EOT(F, 5)
    assert (view.loss(-1, PGD(m=5)(view, x, y, 0.2), y) > view.loss(-1, x, y)).all()


@pytest.mark.parametrize("ask", ["gradient", "differences"])
def test_gradients_inside_inference_mode_are_refused_in_a_sentence(ask: str) -> None:
    view = EOT(network("bayesian"), 2)
    with pytest.raises(GradDivError, match=r"inside torch\.inference_mode"), torch.inference_mode():
        getattr(view, ask)(0, images(2), labels(2))


@pytest.mark.parametrize("ask", ["gradient", "differences"])
def test_one_model_is_alive_at_a_time_whatever_n(ask: str) -> None:
    alive: list[weakref.ref[object]] = []
    most = [0]

    class Watched(EOT):
        def _bind(self, noise: Noise) -> SampleModel:
            f = super()._bind(noise)
            alive.append(weakref.ref(f))
            most[0] = max(most[0], sum(model() is not None for model in alive))
            return f

    getattr(Watched(network("bayesian"), 12), ask)(0, images(2), labels(2))
    assert len(alive) == 12
    assert most[0] <= 2  # the next is made while the loop still holds the last


def test_bad_input() -> None:
    module, x, y = convnet(), images(3), labels(3)
    with pytest.raises(GradDivError, match=r"labels lie in \[4, .*\], expected 0\.\.3"):
        PGD()(module, x, y * 0 + 4, 0.1)
    with pytest.raises(
        GradDivError, match=r"x lies in \[.*\], expected within the bounds \[0\.0, 1\.0\]: divide bytes"
    ):
        PGD()(module, 2 * x, y, 0.1)
    with no_type_checks():
        with pytest.raises(GradDivError, match=r"x is of torch\.uint8, expected .* bytes with x\.float\(\) / 255"):
            PGD()(module, (255 * x).byte(), y, 0.1)
        with pytest.raises(GradDivError, match=r"y has shape \(3,\) and type torch\.float64, .* y\.long\(\) conv"):
            PGD()(module, x, y.double(), 0.1)
    with pytest.raises(GradDivError, match=r"epsilon is -0\.1, expected a finite radius >= 0"):
        PGD()(module, x, y, -0.1)
    with pytest.raises(GradDivError, match=r"3 of 3 examples are not finite"):
        PGD()(Given([lambda x: module(x) * float("nan")]), x, y, 0.1)
    with pytest.raises(GradDivError, match="the network has 2 classes, expected at least 3"):
        PGD(objective="dlr")(nn.Sequential(nn.Flatten(), nn.Linear(36, 2)).double(), x, y * 0, 0.1)
    with pytest.raises(GradDivError, match=r"GaussianNetwork is random: say how the adversary sees it"):
        PGD()(bayesian(module, 0.1), x, y, 0.1)
    with pytest.raises(GradDivError, match="m is 0"):
        PGD(m=0)
    with pytest.raises(GradDivError, match="n is 0"):
        EOT(module, 0)
    with pytest.raises(GradDivError, match="0 models"):
        Given([])
    with no_type_checks():
        with pytest.raises(GradDivError, match=r"y has shape \(2,\)"):
            PGD()(module, x, y[:2], 0.1)
        with pytest.raises(GradDivError, match=r"epsilon has shape \(2,\)"):
            PGD()(module, x, y, torch.tensor([0.1, 0.2]))


def test_turned_by_nothing_it_is_pgd() -> None:
    module, x, y = convnet(), images(5), labels(5)
    for geometry in (Linf(), L2()):
        plain = PGD(geometry, m=5)(module, x, y, 0.2)
        assert torch.allclose(RotatedPGD(geometry, m=5, angle=0.0)(module, x, y, 0.2), plain, atol=1e-12)


@pytest.mark.parametrize("angle", [0.0, 30.0, 60.0, 90.0, 150.0])
def test_in_l2_the_step_makes_that_angle_with_the_gradient_and_the_loss_follows_its_cosine(angle: float) -> None:
    module, x, y = convnet(), 0.4 + 0.2 * images(6), labels(6)
    epsilon = 1e-4
    x_adv = RotatedPGD(L2(), m=1, alpha=1.0, angle=angle)(module, x, y, epsilon)
    s, g = input_gradient(module, x, y)
    cosine = torch.cosine_similarity((x_adv - x).flatten(1), g.flatten(1))
    assert torch.allclose(cosine, torch.full_like(cosine, math.cos(math.radians(angle))), atol=1e-6)
    increase = ce(module(x_adv), y) - ce(module(x), y)
    largest = epsilon * s.sigmoid() * g.flatten(1).norm(dim=1)
    assert torch.allclose(increase / largest, cosine, atol=1e-3)


def test_axes_differ_between_iterations_examples_and_seeds() -> None:
    module, x, y = convnet(), images(1).expand(3, -1, -1, -1), labels(1).expand(3)
    one = RotatedPGD(L2(), m=1, angle=90.0)(module, x, y, 0.1)
    assert (one[0] - one[1]).abs().max() > 1e-3
    other = RotatedPGD(L2(), m=1, angle=90.0, seed=1)(module, x, y, 0.1)
    assert (one[0] - other[0]).abs().max() > 1e-3
    same = RotatedPGD(L2(), m=1, angle=90.0)(module, x[1:2], y[:1], 0.1, ids=torch.tensor([1]))
    assert torch.allclose(same[0], one[1], atol=1e-12)


def test_an_angle_out_of_range_is_refused() -> None:
    with pytest.raises(GradDivError, match=r"angle is 200\.0"):
        RotatedPGD(angle=200.0)
