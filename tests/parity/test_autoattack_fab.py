"""FAB beside pyautoattack: the same projections, the same norms where both succeed."""

import pytest
import torch
from torch import nn

from graddiv.attacks.minimal import FAB, to_hyperplane
from graddiv.geometry import L2, Geometry, Linf
from graddiv.seeding import generator
from tests.helpers import convnet, images

projections = pytest.importorskip("pyautoattack.fab_projections")
FABAttack_PT = pytest.importorskip("pyautoattack.fab_pt").FABAttack_PT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("geometry", "theirs"),
    [(Linf(), projections.projection_linf), (L2(), projections.projection_l2)],
    ids=["Linf", "L2"],
)
@pytest.mark.parametrize("far", [0.1, 1.0, 5.0])
def test_projections(geometry: Geometry, theirs: object, far: float) -> None:
    x = images(200, shape=(20,))
    w, gap = (torch.randn(200, d, generator=generator(3), dtype=torch.float64) for d in (20, 1))
    b = (w * x).sum(1) + far * gap[:, 0]
    assert torch.allclose(to_hyperplane(geometry, x, w, b), theirs(x, w, b), atol=1e-9)


@pytest.mark.parametrize("geometry", [Linf(), L2()], ids=lambda g: g.name)
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_nearest_points(geometry: Geometry, activation: type[nn.Module]) -> None:
    module, x = convnet(activation).float().eval(), images(20).float()
    y = module(x).argmax(1)
    theirs = FABAttack_PT(module, norm=geometry.name, n_iter=100).attack_single_run(x, y)
    ours = FAB(geometry).nearest(module, x, y)
    both = (module(theirs).argmax(1) != y) & (module(ours).argmax(1) != y)
    assert both.double().mean() >= 0.9
    # in single precision a pixel near 1, and so a distance, is known to 6e-8, whatever the distance
    assert torch.allclose(geometry.norm(ours - x)[both], geometry.norm(theirs - x)[both], rtol=1e-5, atol=2e-7)
