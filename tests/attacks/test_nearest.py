"""DeepFool, FMN, Carlini & Wagner, and the l_1 norm: true distances on linear networks, and what randomness changes."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from graddiv import bayesian
from graddiv.attacks import APGD, CW, EOT, FAB, FGSM, FMN, PGD, DeepFool, Given, StochasticPGD
from graddiv.attacks.minimal import MinimalAttack
from graddiv.geometry import L1, L2, Geometry, Linf
from graddiv.losses import margin
from tests.attacks.common import with_distances
from tests.helpers import convnet, images, network

NORMS = [Linf(), L2(), L1()]
every_norm = pytest.mark.parametrize("geometry", NORMS, ids=lambda g: g.name)
ATTACKS = [FAB(m=20), DeepFool(m=20), FMN(m=50, targets=9)]  # FMN alone follows the boundary of one class


@every_norm
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
@pytest.mark.parametrize(("near_the_box", "classes"), [(False, 3), pytest.param(True, 2, marks=pytest.mark.slow)])
def test_on_a_linear_network_the_true_distance_is_found(
    attack: MinimalAttack, geometry: Geometry, near_the_box: bool, classes: int
) -> None:
    if near_the_box and attack.name == "FMN":
        pytest.skip("its gradient knows no box, where it takes long")
    module, x, y, distance = with_distances(geometry, near_the_box, classes)
    attack = replace(attack, geometry=geometry)
    nearest = attack.nearest(module, x, y)
    assert (module(nearest).argmax(1) != y).all()
    assert (geometry.norm(nearest - x) >= distance * (1 - 1e-9)).all()
    blind = attack.name == "FMN" and isinstance(geometry, L1)  # where points are far enough to meet the box
    assert (geometry.norm(nearest - x) <= (1.5 if blind else 1.06) * distance).all()
    short = attack(module, x, y, 0.9 * distance)
    assert (module(short).argmax(1) == y).all()
    assert (margin(module(short), y) > margin(module(x), y)).all()


def test_carlini_and_wagner_find_the_true_distance_of_a_linear_network() -> None:
    module, x, y, distance = with_distances(L2(), False, 2)
    nearest = CW(m=240, searches=3, c=0.1).nearest(module, x, y)
    assert (module(nearest).argmax(1) != y).all()
    assert (L2().norm(nearest - x) >= distance * (1 - 1e-9)).all()
    assert (L2().norm(nearest - x) <= 1.05 * distance + 0.01).all()  # a step of Adam is 0.005 of each pixel


@pytest.mark.slow
def test_confidence_is_a_margin_and_costs_distance() -> None:
    module, x, y, distance = with_distances(L2(), False, 2)
    nearest = CW(m=900, searches=6, c=0.1, confidence=0.5).nearest(module, x, y)
    assert (margin(module(nearest), y) >= 0.5).all()
    assert (L2().norm(nearest - x) > 1.1 * distance).all()


def test_deepfool_stops_where_it_arrives_and_takes_the_step_of_the_paper() -> None:
    module, x, y, distance = with_distances(L2(), False, 2)
    view = Given([module])
    nearest = DeepFool(L2(), m=3).nearest(view, x, y)
    assert torch.allclose(L2().norm(nearest - x), 1.02 * distance)
    w = module.weight[1] - module.weight[0]
    along = torch.cosine_similarity(nearest - x, w[None] * torch.where(y == 0, 1, -1)[:, None])
    assert torch.allclose(along, torch.ones_like(along))


def l1_problem() -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    """Two classes, and the pixels in the order in which they are worth moving."""
    module = nn.Linear(5, 2).double().requires_grad_(False)
    w = torch.tensor([0.5, -3.0, 2.0, 0.1, -1.0], dtype=torch.float64)
    module.weight.copy_(torch.stack([-w / 2, w / 2]))
    module.bias.copy_(torch.tensor([40.0, -40.0]))
    return module, torch.full((1, 5), 0.4, dtype=torch.float64), torch.tensor([0]), w


@pytest.mark.parametrize(
    ("epsilon", "moved"),
    [
        (0.3, [0, -0.3, 0, 0, 0]),
        (0.9, [0, -0.4, 0.5, 0, 0]),
        (1.2, [0, -0.4, 0.6, 0, -0.2]),
        (1.6, [0.2, -0.4, 0.6, 0, -0.4]),
    ],
)
def test_in_l1_the_best_pixels_go_to_the_end_of_the_box(epsilon: float, moved: list[float]) -> None:
    module, x, y, w = l1_problem()
    best = torch.tensor([moved], dtype=torch.float64)
    assert torch.allclose(FGSM(L1())(module, x, y, epsilon) - x, best, atol=1e-12)
    reach = (best @ w).item()
    for attack in (PGD(L1(), m=60, alpha=0.05), APGD(L1(), m=60), StochasticPGD(L1(), m=60)):
        delta = attack(module, x, y, epsilon) - x
        assert L1().norm(delta).item() <= epsilon * (1 + 1e-9)
        assert (delta @ w).item() >= 0.95 * reach, attack.name


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize(
    "attack",
    [DeepFool(m=8), FMN(m=25), CW(m=40, searches=2, c=1.0, lr=0.1), PGD(L1(), m=10), APGD(L1(), m=10)],
    ids=lambda a: f"{a.name}-{a.geometry.name}",
)
def test_through_randomness_they_raise_the_margin_of_the_ensemble(attack: MinimalAttack, n: int) -> None:
    F, x = bayesian(convnet(nn.ReLU), 0.05), images(8)
    judge = EOT(F, 50, seed=9)
    y = judge.logits(0, x).argmax(1)
    epsilon = {"Linf": 0.05, "L2": 0.25, "L1": 1.5}[attack.geometry.name]
    x_adv = attack(EOT(F, n), x, y, epsilon)
    assert (attack.geometry.norm(x_adv - x) <= epsilon * (1 + 1e-6)).all()
    assert (attack.geometry.norm(x_adv - x) > 0.01 * epsilon).all()
    before, after = (margin(judge.logits(0, points), y) for points in (x, x_adv))
    assert (after > before).double().mean() >= 0.75
    assert after.mean() > before.mean()


def test_their_cost_is_counted() -> None:
    for attack, gradients in ((DeepFool(m=4), 3 * 4), (FMN(m=4), 4), (CW(m=4), 4)):
        view = EOT(network("dirac"), 3)
        attack(view, images(2), torch.zeros(2, dtype=torch.int64), 0.1)
        assert view.cost.backwards == gradients, attack.name
