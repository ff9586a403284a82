"""Stochastic networks of other people are audited unchanged, each to a page of its own."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from graddiv import audit
from graddiv.seeding import isolated
from tests.audit.planted import BUDGET, CLASSES, SIDE, examples
from tests.helpers import no_type_checks

X, Y = examples()


def with_mc_dropout() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES))
    return module.train()


def with_torchbnn() -> nn.Module:
    bnn = pytest.importorskip("torchbnn")
    layers = [
        bnn.BayesLinear(prior_mu=0, prior_sigma=0.05, in_features=n, out_features=m) for n, m in ((36, 32), (32, 4))
    ]
    return nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1])


def with_bayesian_torch() -> nn.Module:
    layers = pytest.importorskip("bayesian_torch.layers")

    class Bayesian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers.LinearReparameterization(36, 32), layers.LinearReparameterization(32, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x, kl = self.first(x.flatten(1))
            x, more = self.second(x.relu())
            return x, kl + more

    return Bayesian()


class ResizeAndPad(nn.Module):
    """Xie et al. 2018: the image at a random size and place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        side = int(torch.randint(SIDE, 9, ()))
        left, top = (int(torch.randint(0, 9 - side, ())) for _ in range(2))
        x = functional.interpolate(x, size=(side, side), mode="bilinear")
        return self.inner(functional.pad(x, (left, 8 - side - left, top, 8 - side - top), value=0.5))


class Attention(nn.Module):
    """A small vision transformer whose attention has dropout at inference, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 16), nn.Linear(16, CLASSES)
        self.query, self.value = nn.Linear(16, 32), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        patches = functional.unfold(x, 2, stride=2).transpose(1, 2)
        tokens = self.embed(patches)
        query, key = self.query(tokens).chunk(2, 2)
        seen = functional.scaled_dot_product_attention(query, key, self.value(tokens), dropout_p=0.1)
        return self.head((tokens + seen).mean(1))


def trained(module: nn.Module) -> nn.Module:
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(60):
        output = module(X)
        loss = functional.cross_entropy(output[0] if isinstance(output, tuple) else output, Y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return module


@pytest.mark.slow
@pytest.mark.parametrize("make", [with_mc_dropout, with_torchbnn, with_bayesian_torch, ResizeAndPad, Attention])
def test_a_page_from_each(make: type[nn.Module], tmp_path: Path) -> None:
    with no_type_checks():
        with isolated(0):
            module = trained(make())
        found = audit(module, X, Y, epsilon=0.05, budget=BUDGET, n_ensemble=5, out=tmp_path)
    assert found.checks["random"].verdict == "pass"
    assert found.checks["random"].sentence.startswith("random: ")
    assert found.checks["replay"].verdict == "pass"
    assert found.checks["gradients"].verdict == "pass"
    assert found.checks["differences"].verdict == "pass"
    assert found.clean.ensemble.mean > 0.9
    assert "One draw answers" in (tmp_path / "report.html").read_text()
