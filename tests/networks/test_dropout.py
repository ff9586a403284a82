import pytest
import torch
from torch import nn

from graddiv import GradDivError, mc_dropout
from graddiv.networks.dropout import DropoutSite
from graddiv.networks.randomized import Noiseless
from tests.helpers import SHAPE, convnet, images


def test_every_layer_but_the_first_loses_channels_or_units() -> None:
    F = mc_dropout(convnet(), SHAPE, conv_rate=0.2, dense_rate=0.5)
    sites = [m for m in F.modules() if isinstance(m, DropoutSite)]
    assert [(type(s.layer), s.rate) for s in sites] == [(nn.Conv2d, 0.2), (nn.Linear, 0.5)]
    assert list(F.shapes.values()) == [(3, 1, 1), (36,)]


def test_masks_have_their_rate_and_the_expectation_is_the_activation() -> None:
    F = mc_dropout(nn.Sequential(nn.Flatten(), nn.Linear(4, 500), nn.Linear(500, 2)), (1, 2, 2), dense_rate=0.3)
    masks = torch.cat([F.draw(seed)["2.noise"] for seed in range(40)])
    assert set(masks.unique().tolist()) == {0.0, 1.0}
    assert masks.mean().item() == pytest.approx(0.7, abs=0.01)
    site = F.module[2]
    h = torch.ones(1, 500)
    assert site.perturbed(h, masks.mean(0, keepdim=True)).mean().item() == pytest.approx(1, abs=0.02)


def test_the_mean_network_is_the_one_without_dropout() -> None:
    module, x = convnet(), images(3)
    plain = module(x)
    F = mc_dropout(module, SHAPE)
    assert torch.allclose(F.bind(F.mean())(x), plain)
    quiet = Noiseless(F)
    assert not quiet.random
    assert torch.allclose(quiet.bind(quiet.draw(5))(x), plain)


def test_mistakes() -> None:
    with pytest.raises(GradDivError, match="dense_rate is 1"):
        mc_dropout(convnet(), SHAPE, dense_rate=1.0)
    with pytest.raises(GradDivError, match="nothing to drop"):
        mc_dropout(nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), SHAPE)
