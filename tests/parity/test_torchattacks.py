"""Pixel for pixel with torchattacks, on deterministic networks and with replayed noise."""

import pytest
import torch
from torch import Tensor, nn

from graddiv.attacks import EOT, FGSM, PGD
from graddiv.networks import RandomizedNetwork
from tests.helpers import convnet, images, labels, network

torchattacks = pytest.importorskip("torchattacks")


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Softplus])
def test_fgsm_and_pgd(activation: type[nn.Module]) -> None:
    module, x, y = convnet(activation).eval(), images(8), labels(8)
    theirs = torchattacks.FGSM(module, eps=0.1)(x, y)
    assert torch.allclose(FGSM()(module, x, y, 0.1), theirs, atol=1e-12)
    theirs = torchattacks.PGD(module, eps=0.1, alpha=0.025, steps=12, random_start=False)(x, y)
    assert torch.allclose(PGD(m=12)(module, x, y, 0.1), theirs, atol=1e-12)


class Replay(nn.Module):
    """A module that at its k-th call is the k-th model the view shows: what torchattacks takes for randomness."""

    def __init__(self, F: RandomizedNetwork, view: EOT) -> None:
        super().__init__()
        self.F, self.view, self.calls = F, view, 0

    def forward(self, x: Tensor) -> Tensor:
        k, i = divmod(self.calls, self.view.n)
        self.calls += 1
        logits: Tensor = list(self.view(k))[i](x)
        return logits


@pytest.mark.parametrize("kind", ["bayesian", "rse", "pni"])
def test_eot_pgd_with_replayed_noise(kind: str) -> None:
    F, x, y = network(kind, nn.ReLU).eval(), images(6), labels(6)
    view = EOT(F, 3, seed=5)
    theirs = torchattacks.EOTPGD(Replay(F, view).eval(), eps=0.1, alpha=0.025, steps=6, eot_iter=3, random_start=False)(
        x, y
    )
    assert torch.allclose(PGD(m=6)(view, x, y, 0.1), theirs, atol=1e-12)
