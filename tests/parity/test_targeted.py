"""Targeted attacks beside those of torchattacks, foolbox and AutoAttack, on deterministic networks."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graddiv.attacks import APGD, FAB, FMN, PGD, as_view
from graddiv.attacks.aim import at_likeliest
from graddiv.attacks.attack import Problem
from graddiv.attacks.minimal import Nearest
from graddiv.attacks.peers import FoolboxPGD
from graddiv.geometry import L2, Geometry, Linf
from graddiv.seeding import isolated
from tests.helpers import convnet, images
from tests.parity.digits import digits, trained
from tests.parity.test_autoattack_apgd import in_float64

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

every_ball = pytest.mark.parametrize(("geometry", "epsilon"), [(Linf(), 0.15), (L2(), 0.5)], ids=["Linf", "L2"])


def setup() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    module, x = convnet(nn.ReLU).eval(), images(12)
    y = module(x).argmax(1)
    return module, x, y, (y + 1) % 4


@pytest.fixture(scope="module")
def foolbox() -> Any:
    pytest.importorskip("eagerpy")
    return FoolboxPGD().imported()


def test_pgd_is_that_of_torchattacks() -> None:
    torchattacks = pytest.importorskip("torchattacks")
    module, x, y, t = setup()
    theirs = torchattacks.PGD(module, eps=0.1, alpha=0.025, steps=15, random_start=False)
    theirs.set_mode_targeted_by_label(quiet=True)
    assert torch.allclose(PGD(m=15)(module, x, y, 0.1, target=t), theirs(x, t), atol=1e-9)


@every_ball
def test_pgd_is_that_of_foolbox(foolbox: Any, geometry: Geometry, epsilon: float) -> None:
    module, x, y, t = setup()
    attack = foolbox.attacks.LinfPGD if isinstance(geometry, Linf) else foolbox.attacks.L2PGD
    criterion = foolbox.criteria.TargetedMisclassification(t)
    model = foolbox.PyTorchModel(module, bounds=(0, 1), device="cpu")
    theirs = attack(rel_stepsize=0.25, steps=15, random_start=False).run(model, x, criterion, epsilon=epsilon)
    assert torch.allclose(PGD(geometry, m=15)(module, x, y, epsilon, target=t), theirs, atol=1e-9)


@every_ball
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_apgd_on_the_targeted_dlr_loss_is_autoattacks(geometry: Geometry, epsilon: float, rank: int) -> None:
    reference = pytest.importorskip("pyautoattack.autopgd_base").APGDAttack_targeted
    module, x, y, _ = setup()
    view = at_likeliest(as_view(module), x, y, "dlr", 9)[rank]
    radius = torch.full((len(x),), epsilon, dtype=x.dtype)
    problem = Problem(view, x, torch.zeros_like(y), radius, torch.arange(len(x)), 0)
    attack = APGD(geometry, "margin", m=30)
    start = attack.start(problem, 0)
    ours = attack.ascend(problem, start).best[0]
    with in_float64():
        theirs = reference(module, n_iter=30, norm=geometry.name, eps=epsilon)
        theirs.init_hyperparam(x)
        theirs.y_target = module(x).argsort(dim=1)[:, -2 - rank]
        best = theirs.attack_single_run(x, y, x_init=start)[0]
    assert torch.allclose(ours, best, atol=1e-6)


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("geometry", [Linf(), L2()], ids=lambda g: g.name)
def test_fab_finds_the_distances_of_autoattacks_fab_t(geometry: Geometry, rank: int) -> None:
    reference = pytest.importorskip("pyautoattack.fab_pt").FABAttack_PT
    module, (x, y) = trained(), digits(20)
    right = module(x).argmax(1) == y
    x, y = x[right], y[right]
    theirs = reference(module, norm=geometry.name, n_iter=50, targeted=True)
    theirs.target_class = rank + 2
    found = theirs.attack_single_run(x, y, is_targeted=True)
    view = at_likeliest(as_view(module), x, y, "margin", 9)[rank]
    everywhere = torch.full((len(x),), torch.inf)
    problem = Problem(view, x, torch.zeros_like(y), everywhere, torch.arange(len(x)), 0)
    pool = Nearest(problem, geometry)
    FAB(geometry, m=50).search(problem, 0, everywhere, pool)
    ours = pool.choice()
    assert (module(ours).argmax(1) != y).all()
    ratio = geometry.norm(ours - x) / geometry.norm(found - x)
    assert 0.99 <= ratio.median() <= 1.01
    assert ratio.mean() <= 1.05  # theirs also keeps errors of other kinds than the target, which may be nearer


def test_several_targets_fool_as_many_images_as_autoattack() -> None:
    base, fab = pytest.importorskip("pyautoattack.autopgd_base"), pytest.importorskip("pyautoattack.fab_pt")
    module, (x, y) = trained(), digits(48)
    epsilon = 0.06

    def fooled(images: Tensor) -> int:
        return int((module(images).argmax(1) != y).sum())

    with isolated(0):
        theirs = [
            base.APGDAttack_targeted(module, n_iter=30, eps=epsilon).perturb(x, y),
            fab.FABAttack_PT(module, norm="Linf", n_iter=30, eps=epsilon, targeted=True).perturb(x, y),
        ]
    ours = [attack(module, x, y, epsilon) for attack in (APGD(objective="dlr", m=30, targets=9), FAB(m=30, targets=9))]
    for mine, other in zip(ours, theirs, strict=True):
        assert 10 < fooled(other) < 38
        assert abs(fooled(mine) - fooled(other)) <= 1


def test_targeted_fmn_finds_foolboxs_distances(foolbox: Any) -> None:
    module, (x, y) = trained(), digits(24)
    t = (y + 1) % 10
    model = foolbox.PyTorchModel(module, bounds=(0, 1), device="cpu")
    theirs = foolbox.attacks.LInfFMNAttack(steps=100).run(model, x, foolbox.criteria.TargetedMisclassification(t))
    ours = FMN(m=100).nearest(module, x, y, target=t)
    assert (module(ours).argmax(1) == t).all()
    away = module(x).argmax(1) != t
    ratio = (Linf().norm(ours - x) / Linf().norm(theirs - x))[away]
    assert 0.99 <= ratio.median() <= 1.01
    assert ratio.mean() <= 1.02
