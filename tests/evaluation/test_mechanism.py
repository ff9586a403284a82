"""What the measurements of the mechanism say of networks whose answer is known."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.evaluation.mechanism import contrast_job, filters_job, first_convolution, without_filter
from graddiv.evaluation.run import IN_MEMORY
from graddiv.evaluation.target import Target
from graddiv.networks import Dirac, RandomizedNetwork, bayesian


class Threshold(nn.Module):
    """z_1 - z_0 = mean x - 0.4."""

    def forward(self, x: Tensor) -> Tensor:
        s = x.flatten(1).mean(1) - 0.4
        return torch.stack([-s / 2, s / 2], 1)


def test_contrast_moves_every_pixel_toward_gray() -> None:
    x, y = torch.ones(3, 1, 4, 4), torch.ones(3, dtype=torch.int64)
    [record] = IN_MEMORY.run([contrast_job(target(Dirac(Threshold()), x, y), n=2, distances=(0.0, 0.2, 0.45, 0.7))])
    # the margin of the right class is s = (1 - d) - 0.4, and its soft margin -s
    np.testing.assert_allclose(record.margin[0], [-0.6, -0.4, -0.15, 0.1], atol=1e-6)
    assert record.right.tolist() == [[True, True, True, False]] * 3
    assert "0.0 % at 0.7" in record.summary


def test_a_silenced_filter_is_silent_and_comes_back() -> None:
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(3 * 4, 2))
    layer, x = first_convolution(module), torch.rand(2, 1, 4, 4)
    whole = module[0](x)
    with without_filter(layer, 1):
        assert (module[0](x)[:, 1] == 0).all()
        assert torch.equal(module[0](x)[:, [0, 2]], whole[:, [0, 2]])
    with pytest.raises(RuntimeError, match="channels"), without_filter(layer, 1):
        module(torch.rand(2, 3, 4, 4))
    assert torch.equal(module[0](x), whole)


def test_filters_finds_the_one_that_disperses_gradients() -> None:
    """The first of two filters is pure noise: steep, and no part of the answer."""
    module = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(2 * 16, 2))
    F = bayesian(module, prior_sigma=1e-4)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module[0].weight[1] = 1.0
        module[2].weight[1, 16:] = 1.0
        module[2].weight[0, 16:] = -1.0
        module[0].weight[0] = 100.0  # times weights of the last layer that are noise alone
        F.get_parameter("log_sigma.2/weight")[:, :16] = np.log(0.1)
    x, y = torch.cat([torch.rand(8, 1, 4, 4) * 0.2, 0.8 + torch.rand(8, 1, 4, 4) * 0.2]), torch.arange(16) // 8
    with torch.no_grad():
        module[2].bias[:] = torch.tensor([8.0, -8.0])
    [record] = IN_MEMORY.run([filters_job(target(F, x, y), epsilon=0.05, n=4, m=2)])
    assert record.right.shape == (16, 3)
    assert record.rho[0] < 0.7 < 0.95 < record.rho[1]
    assert record.spare == 0, "the other one is what the network answers with"
    assert "without filter 0" in record.summary


def test_filters_needs_a_convolution() -> None:
    with pytest.raises(GradDivError, match="convolution"):
        filters_job(target(Dirac(Threshold()), torch.ones(1, 1, 4, 4), torch.ones(1, dtype=torch.int64)), epsilon=0.1)


def target(F: RandomizedNetwork, x: Tensor, y: Tensor) -> Target:
    return Target.of(F, x, y, n_ensemble=4, batch=8)
