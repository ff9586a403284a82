import math

import pytest
import torch
from torch import nn

from graddiv import GradDivError
from graddiv.attacks import EOT, PGD, Fixed, RandomSearch, RotatedPGD
from graddiv.directions import input_gradient
from graddiv.geometry import L2, Geometry, Linf
from graddiv.losses import ce
from tests.helpers import convnet, images, labels, network


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


@pytest.mark.parametrize("geometry", [Linf(), L2()], ids=str)
def test_random_search_finds_what_many_samples_find(geometry: Geometry) -> None:
    module, x, y = convnet(nn.ReLU), images(4), labels(4)
    view = Fixed(module)
    losses = [view.loss(0, RandomSearch(geometry, samples=n)(view, x, y, 0.3), y) for n in (1, 10, 200)]
    assert (losses[1] >= losses[0]).all()
    assert (losses[2] >= losses[1]).all()
    assert (losses[2] > losses[0]).all()
    assert (view.loss(0, PGD(geometry, m=10)(view, x, y, 0.3), y) > losses[2]).all()


def test_random_search_confirms_its_best_on_fresh_models() -> None:
    F, x, y = network("bayesian", batch_norm=True).train(), images(3), labels(3)
    statistics = F.module[1].running_mean.clone()
    view = EOT(F, 4)
    x_adv = RandomSearch(samples=30, confirmed=5)(view, x, y, 0.2)
    assert (Linf().norm(x_adv - x) <= 0.2 * (1 + 1e-6)).all()
    assert (view.cost.forwards, view.cost.backwards) == (30 + 5 * 4, 0)
    assert torch.equal(F.module[1].running_mean, statistics)


def test_bad_arguments() -> None:
    with pytest.raises(GradDivError, match=r"angle is 200\.0"):
        RotatedPGD(angle=200.0)
    with pytest.raises(GradDivError, match="samples is 0"):
        RandomSearch(samples=0)
