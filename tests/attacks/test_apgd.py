"""APGD: closed forms, laws of views, both return rules, what is spent."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from graddiv import GradDivError, bayesian
from graddiv.attacks import EOT
from graddiv.attacks.apgd import APGD
from graddiv.geometry import L2, Geometry, Linf
from graddiv.networks import SampleModel
from tests.attacks.common import GEOMETRIES, linear, views
from tests.helpers import convnet, images, labels, network, no_type_checks

ATTACKS = [APGD(m=5), APGD(L2(), "dlr", m=5), APGD(m=2, restarts=2)]
every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: f"{a.name}-{a.geometry.name}-{a.restarts}")


@pytest.mark.parametrize("return_rule", ["strong", "reference"])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_on_a_linear_network_the_true_distance_decides(geometry: Geometry, return_rule: str) -> None:
    module, x, y, distance = linear(12, geometry, inside=True)
    attack = APGD(geometry, m=30, return_rule=return_rule)
    beyond = attack(module, x, y, 1.05 * distance)
    assert (module(beyond).argmax(1) != y).all()
    assert (geometry.norm(beyond - x) <= 1.05 * distance * (1 + 1e-6)).all()
    short = attack(module, x, y, 0.95 * distance)
    assert (module(short).argmax(1) == y).all()
    assert torch.equal(short, x) == (return_rule == "reference")


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_the_first_point_lies_on_the_sphere(geometry: Geometry) -> None:
    module, x, y, distance = linear(12, geometry, inside=True)
    x_adv = APGD(geometry, m=1)(module, x, y, 0.1 * distance)
    assert torch.allclose(geometry.norm(x_adv - x), 0.1 * distance)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_seeds_and_restarts_differ_and_restarts_help(geometry: Geometry) -> None:
    module, x, y = convnet(nn.ReLU), images(8), labels(8)
    one, other = (APGD(geometry, m=3, seed=seed)(module, x, y, 0.1) for seed in (0, 1))
    assert not torch.allclose(one, other)
    many = APGD(geometry, m=3, restarts=4)(module, x, y, 0.1)
    loss_of_one, loss_of_many = (EOT(module).loss(0, points, y) for points in (one, many))
    assert (loss_of_many >= loss_of_one).all()
    assert loss_of_many.sum() > loss_of_one.sum()


def test_the_checkpoints_are_the_papers() -> None:
    assert [k + 1 for k in APGD(m=100).checkpoints()] == [22, 41, 57, 70, 80, 87, 93, 99]
    assert [k + 1 for k in APGD(m=50).checkpoints()] == [11, 21, 30, 38, 45]
    assert APGD(m=1).checkpoints() == {0: 1}


@every_attack
@pytest.mark.parametrize("kind", ["dirac", "bayesian", "foreign"])
def test_the_loss_is_raised(kind: str, attack: APGD) -> None:
    x, y = images(5), labels(5)
    for view in views(kind):
        x_adv = attack(view, x, y, 0.2)
        assert ((x_adv - x).flatten(1).abs().amax(1) > 0).all()
        # with few draws, DLR is too noisy here to generalize from one iteration's models to another's
        if attack.objective == "ce" or not isinstance(view, EOT):
            loss_before, loss = (view.loss(-9, points, y, attack.objective).sum() for points in (x, x_adv))
            assert loss_before < loss


def test_the_cost_is_counted_and_the_progress_told() -> None:
    x, y = images(2), labels(2)
    told: list[tuple[int, int]] = []
    view = EOT(network("bayesian"), 3)
    APGD(m=5, restarts=2)(view, x, y, 0.1, progress=lambda done, total: told.append((done, total)))
    # two runs of 6 gradients each, then 4 candidates scored again; at last one of the two runs chosen; 3 models each
    assert (view.cost.forwards, view.cost.backwards, view.cost.draws) == (
        3 * (2 * (6 + 4) + 2),
        36,
        3 * (2 * (6 + 1) + 2),
    )
    assert told == [(done, 10) for done in range(1, 11)]
    view = EOT(network("bayesian"), 3)
    APGD(m=5, return_rule="reference")(view, x, y, 0.1)
    assert (view.cost.forwards, view.cost.backwards, view.cost.draws) == (3 * 6 + 1, 18, 19)


def test_no_models_are_seen_twice_but_to_choose_a_restart() -> None:
    class Log(EOT):
        asked: list[int]

        def __call__(self, k: int) -> Iterator[SampleModel]:
            self.asked.append(k)
            return super().__call__(k)

    view = Log(network("bayesian"))
    view.asked = []
    APGD(m=3, restarts=2)(view, images(2), labels(2), 0.1)
    assert view.asked == [0, 1, 2, 3, -2, 4, 5, 6, 7, -3, -1, -1]


def test_the_strong_rule_is_stronger_on_a_noisy_network() -> None:
    F, x, y = bayesian(convnet(nn.ReLU), 0.1), images(30), labels(30)
    attack = APGD(m=10)
    strong, reference = (replace(attack, return_rule=rule)(EOT(F, 3), x, y, 0.1) for rule in ("strong", "reference"))
    loss = EOT(F, 20, seed=5).loss
    assert loss(0, strong, y).mean() > loss(0, reference, y).mean()
    assert ((reference == x).flatten(1).all(1)).any()
    assert not ((strong == x).flatten(1).all(1)).any()


def test_names_and_bad_arguments() -> None:
    F = network("bayesian")
    assert EOT(F, 10).label(APGD().name) == "EOT-APGD-CE"
    assert EOT(F, 1).label(APGD(objective="dlr").name) == "EOT^1-APGD-DLR"
    with pytest.raises(GradDivError, match="m is 0"):
        APGD(m=0)
    with pytest.raises(GradDivError, match=r"rho is 1\.5"):
        APGD(rho=1.5)
    with pytest.raises(GradDivError, match=r"unknown objective 'dlrr', did you mean 'dlr'\?"):
        APGD(objective="dlrr")
    with pytest.raises(GradDivError, match="restarts is 2, expected 1 with return_rule='reference'"):
        APGD(restarts=2, return_rule="reference")
    with no_type_checks(), pytest.raises(GradDivError, match="unknown return_rule 'best'"):
        APGD(return_rule="best")
    with pytest.raises(GradDivError, match="the network has 2 classes, expected at least 3"):
        APGD(Linf(), "dlr")(nn.Sequential(nn.Flatten(), nn.Linear(36, 2)).double(), images(2), labels(2) * 0, 0.1)
