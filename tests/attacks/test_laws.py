"""What every attack promises, whatever it does inside."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from graddiv import Dirac, GradDivError, bayesian
from graddiv.attacks import APGD, ARC, EOT, FAB, FGSM, PGD, Attack, Fixed, Given, RandomSearch, Square, StochasticPGD
from graddiv.attacks.attack import Problem
from graddiv.attacks.suites import ATTACKS as REGISTERED
from graddiv.attacks.suites import suite
from graddiv.geometry import L2
from tests.helpers import convnet, images, labels, network

ATTACKS = [
    *suite("paper", list(REGISTERED), m=4),
    *(
        FGSM(L2()),
        PGD(L2(), m=4, random_start=True),
        PGD(m=3, restarts=3),
        APGD(L2(), "dlr", m=6),
        APGD(restarts=2, m=4),
    ),
    *(StochasticPGD(L2(), "ensemble", m=4, memory="aggmo"), StochasticPGD(m=3, restarts=2), ARC(m=3, redraw=2)),
    *(ARC(L2(), m=2), ARC(m=2, rule="draw", restarts=2), FAB(L2(), m=3, restarts=2), Square(m=12), Square(L2(), m=12)),
]


def name(value: object) -> str:
    return f"{value.name}-{value.geometry.name}-{value.restarts}" if isinstance(value, Attack) else str(value)


every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=name)


def covering(*kinds: str) -> pytest.MarkDecorator:
    """Every attack on two kinds of network, in turn: not on all of them, whose noise it does not know apart."""
    pairs = [(attack, kinds[(i + j) % len(kinds)]) for i, attack in enumerate(ATTACKS) for j in range(2)]
    return pytest.mark.parametrize(("attack", "kind"), pairs, ids=name)


@covering("dirac", "bayesian", "rse", "foreign")
def test_the_result_is_inside_ball_and_box(kind: str, attack: Attack) -> None:
    F, x, y = network(kind), images(5), labels(5)
    epsilon = torch.tensor([0.0, 0.05, 0.1, 0.2, 0.3], dtype=torch.float64)
    for view in (Fixed(F, seed=1), EOT(F, 2, seed=1), Given(F.sample(2, 1))):
        x_adv = attack(view, x, y, epsilon)
        assert (attack.geometry.norm(x_adv - x) <= epsilon * (1 + 1e-6)).all()
        assert x_adv.min() >= 0
        assert x_adv.max() <= 1
        assert torch.equal(x_adv[0], x[0])
        assert x_adv.dtype == x.dtype
        assert not x_adv.requires_grad


@every_attack
def test_on_a_deterministic_network_every_view_is_the_plain_attack_bit_for_bit(attack: Attack) -> None:
    module, x, y = convnet(nn.ReLU), images(5), labels(5)
    plain = attack(module, x, y, 0.1)
    for view in (Fixed(module), Fixed(Dirac(module), seed=7), EOT(module, 1), EOT(Dirac(module), 10), Given([module])):
        assert torch.equal(attack(view, x, y, 0.1), plain)
    view, lone = EOT(module, 10), Fixed(module)
    attack(view, x, y, 0.1)
    attack(lone, x, y, 0.1)
    assert view.cost == lone.cost
    assert view.cost.draws == 0
    assert view.label("PGD") == "PGD"


@covering("bayesian", "rse", "pni", "mixup")
def test_results_do_not_depend_on_the_batch(kind: str, attack: Attack) -> None:
    F, x, y = network(kind), images(3), labels(3)
    ids = torch.tensor([3, 14, 15])
    whole = attack(EOT(F, 2), x, y, 0.1, ids=ids)
    parts = [attack(EOT(F, 2), x[k], y[k], 0.1, ids=ids[k]) for k in (slice(0, 1), slice(1, 3))]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-12)


@every_attack
def test_nothing_of_the_callers_is_touched(attack: Attack) -> None:
    module = nn.Sequential(*convnet(batch_norm=True)[:-1], nn.Linear(36, 4).double()).train()
    module[0].weight.requires_grad_(False)
    F = bayesian(module, 0.05)
    before = {name: t.clone() for name, t in F.state_dict().items()}
    flags = [p.requires_grad for p in F.parameters()]
    modes = [m.training for m in F.modules()]
    x, y = images(3), labels(3)
    copy = x.clone()
    with torch.no_grad():
        attack(EOT(F, 2), x, y, 0.1)
    assert all(torch.equal(t, before[name]) for name, t in F.state_dict().items())
    assert [p.requires_grad for p in F.parameters()] == flags
    assert [m.training for m in F.modules()] == modes
    assert all(p.grad is None for p in F.parameters())
    assert torch.equal(x, copy)


@pytest.mark.parametrize("attack", [*ATTACKS, RandomSearch(samples=2)], ids=lambda a: f"{a.name}-{a.geometry.name}")
def test_what_cannot_be_attacked_is_refused(attack: Attack) -> None:
    module, x, y = convnet(), images(3), labels(3)
    with pytest.raises(GradDivError, match=r"3 of 3 examples (is NaN|are not finite)"):
        attack(Given([lambda x: module(x) * float("nan")]), x, y, 0.1)
    with pytest.raises(GradDivError, match="restarts is 0"):
        replace(attack, restarts=0)(module, x, y, 0.1)
    for bad in (float("inf"), float("nan"), -0.5):
        with pytest.raises(GradDivError, match=f"epsilon is {bad}"):
            attack(module, x, y, torch.tensor([0.1, 0.2, bad], dtype=torch.float64))


@every_attack
def test_odd_batches_types_and_bounds(attack: Attack) -> None:
    module = convnet()
    assert attack(module, images(0), labels(0), 0.1).shape == (0, 1, 6, 6)
    assert attack(module, images(1), labels(1), 0.1).shape == (1, 1, 6, 6)
    single = attack(convnet().float(), images(2).float(), labels(2), 0.1)
    assert single.dtype == torch.float32
    wide = replace(attack, geometry=type(attack.geometry)((-1.0, 1.0)))(module, 2 * images(4) - 1, labels(4), 0.5)
    assert wide.min() < -0.9
    assert wide.min() >= -1


@pytest.mark.parametrize("call", [Attack.__call__, FAB.nearest], ids=["call", "nearest"])
def test_ids_may_lie_on_another_device_than_the_images(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the meta device, which every machine has: it knows no values, so the attack is stopped where it begins."""

    class BegunError(Exception):
        pass

    def begin(attack: Attack, problem: Problem, *_: object) -> None:
        assert problem.uniform("start").device == problem.x0.device
        raise BegunError

    monkeypatch.setattr(FAB, "search", begin)
    monkeypatch.setattr("graddiv.attacks.attack._check_pixels", lambda *_: None)
    monkeypatch.setattr("graddiv.attacks.attack._radii", lambda epsilon, x0, geometry: x0.new_zeros(len(x0)))
    x, y = images(3).to("meta"), labels(3).to("meta")
    with pytest.raises(BegunError):
        call(FAB(), Given([nn.Flatten()]), x, y, *(() if call is FAB.nearest else (0.1,)), ids=torch.arange(3))
