"""Pixel for pixel with AutoAttack's APGD on deterministic networks."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
import torch
from torch import Tensor, nn

from graddiv.attacks import as_view
from graddiv.attacks.apgd import APGD
from graddiv.attacks.attack import Problem
from graddiv.geometry import L2, Geometry, Linf
from graddiv.seeding import isolated
from tests.helpers import convnet, images

APGDAttack = pytest.importorskip("pyautoattack.autopgd_base").APGDAttack

pytestmark = pytest.mark.slow

every_ball = pytest.mark.parametrize(("geometry", "epsilon"), [(Linf(), 0.15), (L2(), 0.5)], ids=["Linf", "L2"])
every_objective = pytest.mark.parametrize("objective", ["ce", "dlr"])


@contextmanager
def in_float64() -> Iterator[None]:
    """The reference keeps losses and step sizes in the default type, whatever that of x; and it reseeds globally."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with isolated(0):
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def final_step_sizes() -> Iterator[list[Tensor]]:
    """The step sizes with which `attack_single_run` ends: local to it, so read from its frame."""
    seen: list[Tensor] = []

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code.co_name == "attack_single_run":
            seen.append(frame.f_locals["step_size"].flatten())

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield seen
    finally:
        sys.setprofile(before)


def problem(module: nn.Module, x: Tensor, y: Tensor, epsilon: float) -> Problem:
    radius = torch.full((len(x),), epsilon, dtype=x.dtype)
    return Problem(as_view(module), x, y, radius, torch.arange(len(x)), 0, lambda: None)


@every_ball
@every_objective
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("m", [20, 100])
def test_the_best_points_and_the_step_sizes_are_the_references(
    geometry: Geometry, epsilon: float, objective: str, activation: type[nn.Module], m: int
) -> None:
    module, x = convnet(activation).eval(), images(12)
    y = module(x).argmax(1)
    attack, given = APGD(geometry, objective, m=m), problem(module, x, y, epsilon)
    start = attack.start(given, 0)
    ours = attack.ascend(given, start)
    with in_float64(), final_step_sizes() as step_sizes:
        theirs = APGDAttack(module, n_iter=m, norm=geometry.name, eps=epsilon, loss=objective)
        theirs.init_hyperparam(x)
        best, correct, _, fooling = theirs.attack_single_run(x, y, x_init=start)
    assert torch.allclose(ours.best[0], best, atol=1e-6)
    assert torch.allclose(ours.fooling, fooling, atol=1e-6)
    assert torch.equal(ours.fooled, ~correct)
    assert 0 < ours.fooled.sum() < len(x)
    agree = torch.isclose(ours.eta, step_sizes[0])
    assert agree.sum() >= len(x) - 1  # once converged, the last bit of the loss may decide, and theirs is not ours
    assert torch.allclose(attack(module, x, y, epsilon), best, atol=1e-6)


@every_ball
@every_objective
def test_the_reference_rule_is_the_references(geometry: Geometry, epsilon: float, objective: str) -> None:
    module, x = convnet(nn.ReLU).eval(), images(12).float().double()  # `perturb` casts to float32
    y = module(x).argmax(1)
    y[::5] = (y[::5] + 1) % 4
    attack = APGD(geometry, objective, m=20, return_rule="reference")
    start = attack.start(problem(module, x, y, epsilon), 0)[module(x).argmax(1) == y]

    class FromOurStart(APGDAttack):  # type: ignore[misc,valid-type]
        def attack_single_run(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            best, correct, loss, fooling = super().attack_single_run(x.double(), y, x_init=start)
            return best.float(), correct, loss, fooling.float()

    with in_float64():
        theirs = FromOurStart(lambda x: module(x.double()), 20, geometry.name, eps=epsilon, loss=objective).perturb(
            x, y
        )
    ours = attack(module, x, y, epsilon)
    assert torch.allclose(ours, theirs.double(), atol=1e-6)
    unmoved = (ours == x).flatten(1).all(1)
    assert unmoved[::5].all()
    assert 3 < unmoved.sum() < len(x)
