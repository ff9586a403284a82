"""Targeted attacks: closed forms on linear networks, what a target changes in every attack, and what is refused."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from graddiv import GradDivError, bayesian
from graddiv.attacks import APGD, ARC, BB, CW, EOT, FAB, FGSM, FMN, PGD, Attack, DeepFool, Fixed, Square, StochasticPGD
from graddiv.attacks.minimal import MinimalAttack
from graddiv.attacks.suites import ATTACKS
from graddiv.evaluation.robustness import Cell
from graddiv.geometry import L1, L2, Geometry, Linf
from graddiv.losses import margin, targeted_dlr
from graddiv.seeding import generator
from tests.attacks.common import oracle
from tests.helpers import convnet, global_rng_untouched, images, labels, network, no_type_checks

NORMS = [Linf(), L2(), L1()]
every_norm = pytest.mark.parametrize("geometry", NORMS, ids=lambda g: g.name)


def linear(classes: int = 4, d: int = 8) -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    """A linear network, points well inside the box, its predictions there, and another class for each."""
    module = nn.Linear(d, classes).double().requires_grad_(False)
    module.weight.copy_(torch.randn(classes, d, generator=generator(2), dtype=torch.float64))
    x = 0.4 + 0.2 * images(10, shape=(d,))
    module.bias.copy_(-module.weight @ x.mean(0))
    y = module(x).argmax(1)
    return module, x, y, (y + 1 + labels(10, classes=classes - 1)) % classes


def distances(geometry: Geometry, module: nn.Linear, x: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """How far each point is from where the logit of t exceeds that of y."""
    w, b = module.weight[t] - module.weight[y], module.bias[y] - module.bias[t]
    found = [oracle(geometry, *row) for row in zip(x, w, b, strict=True)]
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("objective", ["ce", "margin", "dlr", "ensemble"])
def test_targeted_fgsm_is_the_sign_step_that_lowers_the_loss_at_the_target(objective: str) -> None:
    module, x, _, t = linear()
    y = (t + 1) % 4
    x_adv = FGSM(objective=objective)(module, x, y, 0.05, target=t)
    point = x.clone().requires_grad_()
    z = module(point)
    rival = z.scatter(1, t[:, None], -torch.inf).argmax(1)
    loss = nn.functional.cross_entropy(z, t, reduction="sum")
    if objective in ("margin", "dlr"):
        loss = (z.gather(1, rival[:, None]) - z.gather(1, t[:, None])).sum()
    if objective == "dlr":
        top = z.topk(4, dim=1).values
        gap = (z.gather(1, rival[:, None]) - z.gather(1, t[:, None])).squeeze(1)
        loss = (gap / (top[:, 0] - top[:, 2:].mean(1))).sum()
    (g,) = torch.autograd.grad(loss, point)
    assert torch.allclose(x_adv, x - 0.05 * g.sign(), atol=1e-9)


@pytest.mark.parametrize("attack", [PGD(m=40), PGD(L2(), m=40), APGD(m=30), StochasticPGD(m=30), ARC(m=5)], ids=str)
def test_with_two_classes_the_distance_decides_whether_the_target_is_reached(attack: Attack) -> None:
    module, x, y, t = linear(classes=2)
    distance = distances(attack.geometry, module, x, y, t)
    assert (module(attack(module, x, y, 1.05 * distance, target=t)).argmax(1) == t).all()
    assert (module(attack(module, x, y, 0.95 * distance, target=t)).argmax(1) == y).all()


def test_restarts_keep_the_point_that_is_nearest_to_the_target() -> None:
    module, x, t = convnet(nn.ReLU), images(8), labels(8)
    y = (t + 1) % 4
    likelihoods = [
        -nn.functional.cross_entropy(module(attack(module, x, y, 0.1, target=t)), t, reduction="none")
        for attack in (PGD(m=2), PGD(m=2, restarts=3), Square(m=5), Square(m=5, restarts=3))
    ]
    assert (likelihoods[1] >= likelihoods[0]).all()
    assert (likelihoods[1] > likelihoods[0]).any()
    assert likelihoods[3].sum() > likelihoods[2].sum()


@every_norm
@pytest.mark.parametrize("attack", [FAB(m=15), DeepFool(m=15), FMN(m=150)], ids=lambda a: a.name)
def test_the_nearest_point_of_a_class_is_found_where_it_is_known(attack: MinimalAttack, geometry: Geometry) -> None:
    module, x, y, t = linear(classes=2)
    truth = distances(geometry, module, x, y, t)
    nearest = replace(attack, geometry=geometry).nearest(module, x, y, target=t)
    assert (module(nearest).argmax(1) == t).all()
    found = geometry.norm(nearest - x)
    assert (found >= truth * (1 - 1e-9)).all()
    assert (found <= 1.1 * truth).all()


@pytest.mark.parametrize("attack", [FAB(m=10, targets=9), BB(m=20, lr=0.1, targets=9)], ids=lambda a: a.name)
def test_aiming_at_every_class_finds_the_nearest_boundary(attack: MinimalAttack) -> None:
    module, x, y, _ = linear()
    truth = torch.stack([distances(Linf(), module, x, y, (y + i) % 4) for i in (1, 2, 3)]).amin(0)
    found = Linf().norm(attack.nearest(module, x, y) - x)
    assert (found >= truth * (1 - 1e-9)).all()
    assert (found <= 1.05 * truth).all()
    assert (module(attack(module, x, y, 1.05 * truth)).argmax(1) != y).all()
    assert (module(attack(module, x, y, 0.95 * truth)).argmax(1) == y).all()


def test_several_targets_find_what_the_first_of_them_hides() -> None:
    """The likeliest other class is far away; another one, less likely here, is near."""
    weight = torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.0, 10.0], [0.0, -0.1]], dtype=torch.float64)
    module = nn.Linear(2, 4).double().requires_grad_(False)
    module.weight.copy_(weight)
    x, y = torch.full((1, 2), 0.5, dtype=torch.float64), torch.tensor([0])
    module.bias.copy_(torch.tensor([0.0, -0.5, -0.8, -9.0]) - weight @ x[0])
    assert module(x).argsort(descending=True)[0, :3].tolist() == [0, 1, 2]
    for objective in ("ce", "margin", "dlr"):
        assert module(PGD(objective=objective, m=10, targets=1)(module, x, y, 0.1)).argmax(1) == 0
        assert module(PGD(objective=objective, m=10, targets=2)(module, x, y, 0.1)).argmax(1) == 2


def test_the_targeted_dlr_loss_is_the_papers_and_knows_no_scale() -> None:
    z = torch.tensor([[1.0, 5.0, 3.0, 2.0, 0.0]], dtype=torch.float64)
    y, t = torch.tensor([1]), torch.tensor([3])
    expected = (2.0 - 5.0) / (5.0 - (2.0 + 1.0) / 2)
    assert targeted_dlr(z, y, t).item() == pytest.approx(expected)
    assert targeted_dlr(7 * z + 3, y, t).item() == pytest.approx(expected)
    with pytest.raises(GradDivError, match="the network has 3 classes, expected at least 4 for the targeted DLR"):
        targeted_dlr(z[:, :3], y, t)


@pytest.mark.parametrize("n", [1, 4])
def test_through_randomness_the_ensemble_is_led_to_the_target(n: int) -> None:
    F, x, y = bayesian(convnet(nn.ReLU), 0.05), images(8), labels(8)
    judge = EOT(F, 50, seed=9)
    t = (judge.logits(0, x).argmax(1) + 2) % 4
    y = (t + 1) % 4
    for attack in (PGD(m=10), APGD(m=10), StochasticPGD(m=10), FAB(m=6)):
        x_adv = attack(EOT(F, n), x, y, 0.3, target=t)
        before, after = (-margin(judge.logits(0, points), t) for points in (x, x_adv))
        assert (after > before).double().mean() >= 0.75, attack.name
        assert after.mean() > before.mean()


def test_a_target_costs_no_more_and_nothing_moves_the_global_state() -> None:
    F, x, y = network("bayesian"), images(3), torch.zeros(3, dtype=torch.int64)
    plain, aimed, in_turn = EOT(F, 3), EOT(F, 3), EOT(F, 3)
    told: list[tuple[int, int]] = []
    with no_type_checks(), global_rng_untouched():
        PGD(m=4)(plain, x, y, 0.1)
        PGD(m=4)(aimed, x, y, 0.1, target=2)
        PGD(m=4, targets=9)(in_turn, x, y, 0.1, progress=lambda done, total: told.append((done, total)))
    assert aimed.cost == plain.cost
    # three other classes: ranked by the first models, and chosen among by one look at each
    assert (in_turn.cost.forwards, in_turn.cost.backwards) == (3 * (3 * 4 + 1 + 3), 3 * 3 * 4)
    assert told == [(done, 12) for done in range(1, 13)]


def test_records_tell_targeted_attacks_apart_and_leave_the_others_as_they_were() -> None:
    F = network("bayesian")
    aimed = {name: Cell(ATTACKS[name].attack, "eot", 2, 0.1, 0) for name in ("pgd-t", "apgd-t", "fab-t")}
    assert [cell.label(F) for cell in aimed.values()] == ["EOT-PGD-T", "EOT-APGD-DLR-T", "EOT-FAB-T"]
    assert aimed["fab-t"].file_name == "fab-targets=9-eot2-m100-eps0.1-r0.record"
    assert aimed["fab-t"].attack.runs == 9


def test_no_suite_has_them() -> None:
    assert not any(ATTACKS[name].iterations for name in ("pgd-t", "apgd-t", "fab-t", "cw", "deepfool", "fmn"))


def test_what_is_no_target_is_refused() -> None:
    module, x, y = convnet(), images(3), labels(3)
    with pytest.raises(GradDivError, match="target is the label of 3 of 3 examples"):
        PGD()(module, x, y, 0.1, target=y)
    with pytest.raises(GradDivError, match=r"labels lie in \[9, 9\], expected 0\.\.3"):
        PGD()(module, x, y, 0.1, target=9)
    with no_type_checks(), pytest.raises(GradDivError, match=r"target has shape \(2,\)"):
        PGD()(module, x, y, 0.1, target=torch.tensor([1, 2]))
    with pytest.raises(GradDivError, match="targets is -1"):
        PGD(targets=-1)
    with pytest.raises(GradDivError, match="expected at least 4 for the targeted DLR"):
        APGD(objective="dlr", targets=2)(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double(), x, y * 0, 0.1)
    with pytest.raises(GradDivError, match="the geometry is Linf, expected L2, for which CW is made"):
        CW(Linf())


def test_a_fixed_view_of_one_draw_is_that_models_attack() -> None:
    F, x, y = network("bayesian"), images(3), torch.zeros(3, dtype=torch.int64)
    view = Fixed(F, seed=3)
    f = next(view(0))
    assert torch.equal(PGD(m=3)(view, x, y, 0.1, target=2), PGD(m=3)(EOT(Wrapped(f)), x, y, 0.1, target=2))


class Wrapped(nn.Module):
    """A sample model as a module."""

    def __init__(self, f: object) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x)  # type: ignore[operator,no-any-return]
