"""B&B beside foolbox, from the same starting points: the same distances to the boundary of a trained network."""

from typing import Any

import pytest
import torch

from graddiv.attacks import BB, Fixed
from graddiv.attacks.attack import Problem
from graddiv.attacks.peers import FoolboxPGD
from graddiv.geometry import Linf
from tests.parity.digits import digits, trained

pytest.importorskip("numba")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # numba's and foolbox's own
    pytest.mark.timeout(600),  # a first compilation takes a minute or two
]


@pytest.fixture(scope="module")
def foolbox() -> Any:
    """Foolbox, where its attacks can be imported."""
    pytest.importorskip("eagerpy")
    return FoolboxPGD().imported()


def test_nearest_points(foolbox: Any) -> None:
    module = trained()
    x, y = digits(16)
    right = module(x).argmax(1) == y
    x, y = x[right][:12], y[right][:12]
    everyone = torch.arange(len(x))
    start = BB().start(Problem(Fixed(module), x, y, torch.ones(len(x)), everyone, 0, lambda: None), 0, 0)
    model = foolbox.PyTorchModel(module, bounds=(0, 1), device="cpu")
    attack = foolbox.attacks.LinfinityBrendelBethgeAttack(steps=200)
    # one by one: its trust region grows with the batch
    theirs = torch.cat([attack.run(model, x[i, None], y[i, None], starting_points=start[i, None]) for i in everyone])
    ours = BB(m=200).nearest(module, x, y)
    assert (module(ours).argmax(1) != y).all()
    ratio = Linf().norm(ours - x) / Linf().norm(theirs - x)
    assert 0.98 <= ratio.median() <= 1.02
    assert ratio.mean() <= 1.02
