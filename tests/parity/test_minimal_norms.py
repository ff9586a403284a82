"""DeepFool, FMN, Carlini & Wagner and the l_1 norm beside foolbox, torchattacks and AutoAttack, at equal iterations."""

from typing import Any

import pytest
import torch
from torch import Tensor

from graddiv.attacks import APGD, CW, FAB, FMN, PGD, DeepFool
from graddiv.attacks.peers import FoolboxPGD
from graddiv.geometry import L1, L2, Geometry, Linf
from graddiv.seeding import isolated
from tests.parity.digits import digits, trained

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def foolbox() -> Any:
    pytest.importorskip("eagerpy")
    return FoolboxPGD().imported()


def right() -> tuple[Tensor, Tensor]:
    """Digits that the network gets right."""
    x, y = digits(32)
    known = trained()(x).argmax(1) == y
    return x[known], y[known]


def ratios(geometry: Geometry, ours: Tensor, theirs: Tensor) -> Tensor:
    """How much farther our points lie, where they have one; ours are all adversarial."""
    (x, y), module = right(), trained()
    assert (module(ours).argmax(1) != y).all()
    found = (module(theirs).argmax(1) != y) & (theirs != 0).flatten(1).any(1)  # foolbox marks failures by black images
    assert found.double().mean() > 0.4
    return (geometry.norm(ours - x) / geometry.norm(theirs - x))[found]


def model(foolbox: Any) -> Any:
    return foolbox.PyTorchModel(trained(), bounds=(0, 1), device="cpu")


def test_deepfool(foolbox: Any) -> None:
    torchattacks = pytest.importorskip("torchattacks")
    x, y = right()
    theirs = torchattacks.DeepFool(trained(), steps=50)(x, y)  # fails for half of the images, which meet the box
    assert ratios(L2(), DeepFool(L2()).nearest(trained(), x, y), theirs).mean() <= 1.15
    theirs = foolbox.attacks.LinfDeepFoolAttack(steps=50).run(model(foolbox), x, y)
    assert ratios(Linf(), DeepFool().nearest(trained(), x, y), theirs).mean() <= 1.1


def test_fmn_and_ddn(foolbox: Any) -> None:
    x, y = right()
    ours = {norm: FMN(norm, m=100).nearest(trained(), x, y) for norm in (Linf(), L2(), L1())}
    theirs = foolbox.attacks.LInfFMNAttack(steps=100).run(model(foolbox), x, y)
    assert ratios(Linf(), ours[Linf()], theirs).mean() == pytest.approx(1, abs=0.01)
    theirs = foolbox.attacks.L1FMNAttack(steps=100).run(model(foolbox), x, y)
    assert ratios(L1(), ours[L1()], theirs).median() <= 1.02
    theirs = foolbox.attacks.L2FMNAttack(steps=100).run(model(foolbox), x, y)  # whose projection does nothing
    assert ratios(L2(), ours[L2()], theirs).mean() <= 1
    theirs = foolbox.attacks.DDNAttack(steps=100).run(model(foolbox), x, y)
    assert ratios(L2(), ours[L2()], theirs).mean() <= 1.02


def test_carlini_and_wagner(foolbox: Any) -> None:
    x, y = (part[:12] for part in right())
    attack = foolbox.attacks.L2CarliniWagnerAttack(steps=200, binary_search_steps=9, abort_early=False)
    theirs, ours = attack.run(model(foolbox), x, y), CW(m=1800).nearest(trained(), x, y)
    found, found_too = (trained()(points).argmax(1) != y for points in (theirs, ours))
    found &= (theirs != 0).flatten(1).any(1)  # foolbox marks failures by black images
    assert found.sum() >= 6
    assert torch.equal(found_too, found)
    assert (L2().norm(ours - x) / L2().norm(theirs - x))[found].mean() == pytest.approx(1, abs=0.02)


def test_fab_in_l1() -> None:
    reference = pytest.importorskip("pyautoattack.fab_pt").FABAttack_PT
    x, y = right()
    theirs = reference(trained(), norm="L1", n_iter=100).attack_single_run(x, y)
    assert ratios(L1(), FAB(L1()).nearest(trained(), x, y), theirs).mean() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("epsilon", [6.0, 8.0, 10.0])
def test_l1_attacks_fool_as_many_images(foolbox: Any, epsilon: float) -> None:
    reference = pytest.importorskip("pyautoattack.autopgd_base").APGDAttack
    (x, y), module = right(), trained()

    def fooled(images: Tensor) -> int:
        return int((module(images).argmax(1) != y).sum())

    with isolated(0):
        apgd = reference(module, n_iter=50, norm="L1", eps=epsilon, loss="ce").perturb(x, y)
        slide = foolbox.attacks.SparseL1DescentAttack(steps=50).run(model(foolbox), x, y, epsilon=epsilon)
    ours = APGD(L1(), m=50)(module, x, y, epsilon)
    assert fooled(ours) >= fooled(apgd) - 1
    assert fooled(PGD(L1(), m=50)(module, x, y, epsilon)) >= fooled(slide) - 1
