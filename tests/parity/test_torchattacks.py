"""Pixel for pixel with torchattacks, on deterministic networks and with replayed noise."""

import pytest
import torch
from torch import nn

from graddiv.attacks import EOT, FGSM, PGD
from graddiv.attacks.peers import TorchattacksPGD
from tests.helpers import convnet, images, labels, network

torchattacks = pytest.importorskip("torchattacks")


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Softplus])
def test_fgsm_and_pgd(activation: type[nn.Module]) -> None:
    module, x, y = convnet(activation).eval(), images(8), labels(8)
    theirs = torchattacks.FGSM(module, eps=0.1)(x, y)
    assert torch.allclose(FGSM()(module, x, y, 0.1), theirs, atol=1e-12)
    theirs = torchattacks.PGD(module, eps=0.1, alpha=0.025, steps=12, random_start=False)(x, y)
    assert torch.allclose(PGD(m=12)(module, x, y, 0.1), theirs, atol=1e-12)


@pytest.mark.parametrize("kind", ["bayesian", "rse", "pni"])
def test_eot_pgd_with_replayed_noise(kind: str) -> None:
    F, x, y = network(kind, nn.ReLU).eval(), images(6), labels(6)
    theirs, ours = EOT(F, 3, seed=5), EOT(F, 3, seed=5)
    assert torch.allclose(TorchattacksPGD(m=6)(theirs, x, y, 0.1), PGD(m=6)(ours, x, y, 0.1), atol=1e-12)
    assert theirs.cost == ours.cost
