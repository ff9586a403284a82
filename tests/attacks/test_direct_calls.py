"""What people of other libraries type first: accepted where its meaning is clear, else one sentence that says how."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graddiv import GradDivError, GradDivWarning, randomize
from graddiv.attacks import APGD, EOT, FGSM, PGD, StochasticPGD
from graddiv.geometry import L1, L2, Linf
from tests.helpers import convnet, images, labels, no_type_checks, with_dropout


def test_norms_have_names() -> None:
    with no_type_checks():
        assert [PGD(geometry=name).geometry for name in ("linf", "L2", "l1")] == [Linf(), L2(), L1()]
        assert PGD("l2", m=3) == PGD(L2(), m=3)
        with pytest.raises(GradDivError, match="unknown norm 'l3'"):
            PGD(geometry="l3")


@pytest.mark.parametrize("attack", [PGD, APGD], ids=lambda a: a.__name__)
def test_iterations_have_a_name(attack: Callable[..., Any]) -> None:
    with no_type_checks(), pytest.raises(GradDivError, match=rf"the geometry is 20, .* {attack.__name__}\(m=20\)"):
        attack(20)


def test_a_radius_beyond_the_box_is_refused() -> None:
    x, y = images(3), labels(3)
    with pytest.raises(GradDivError, match=r"epsilon is 8, expected at most 1, .*: 8/255 = 0\.03137 perhaps\?"):
        PGD(m=1)(convnet(), x, y, 8.0)
    PGD(m=1)(convnet(), x, y, 1.0)
    PGD(L2(), m=1)(convnet(), x, y, 6.0)  # 6 x 6 pixels
    with pytest.raises(GradDivError, match=r"epsilon is 6\.1, expected at most 6"):
        PGD(L2(), m=1)(convnet(), x, y, 6.1)


def test_a_step_in_pixel_units_is_recognised() -> None:
    x, y = images(3), labels(3)
    for attack in (PGD(m=10, alpha=2 / 255), StochasticPGD(m=10, alpha=2 / 255)):
        with pytest.warns(GradDivWarning, match=r"alpha is a share of epsilon: .* take alpha=0\.007843 / 0\.03137"):
            attack(convnet(), x, y, 8 / 255)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PGD(m=10, alpha=0.25)(convnet(), x, y, 8 / 255)
        PGD(m=100, alpha=0.02)(convnet(), x, y, 8 / 255)  # small steps, but enough of them
        FGSM()(convnet(), x, y, 8 / 255)


def test_lists_are_taken_where_they_are_numbers_for_each_example() -> None:
    x, y = images(3), labels(3)
    x, module = x.float(), convnet().float()
    expected = PGD(m=2)(module, x, y, torch.tensor([0.1, 0.2, 0.3]), ids=torch.tensor([4, 5, 6]))
    with no_type_checks():
        for convert in (torch.Tensor.tolist, torch.Tensor.numpy):
            found = PGD(m=2)(module, convert(x), convert(y), [0.1, 0.2, 0.3], ids=[4, 5, 6])
            assert torch.equal(found, expected)
        t = ((y + 1) % 4).tolist()
        PGD(m=2)(module, x, y, 0.1, target=t)
        with pytest.raises(GradDivError, match=r"y holds words such as 'cat', expected numbers of classes"):
            PGD()(module, x, ["cat", "dog", "cat"], 0.1)
        with pytest.raises(GradDivError, match="y is of type dict, expected a tensor"):
            PGD()(module, x, {}, 0.1)


def test_layers_to_keep_drawing_come_in_any_collection() -> None:
    for active in ([nn.Dropout], (nn.Dropout,), nn.Dropout, {nn.Dropout}):
        F = randomize(with_dropout(convnet()).eval(), active=active)
        assert not torch.equal(*(f(images(2)) for f in F.sample(2, 0)))
    PGD(m=1)(EOT(F, 2), images(2), labels(2), 0.1)
    with no_type_checks(), pytest.raises(GradDivError, match="active holds 'Dropout', expected types of layers"):
        randomize(convnet(), active=["Dropout"])
