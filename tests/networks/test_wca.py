import math

import pytest
import torch
from torch import nn

from graddiv import GradDivError, wca
from graddiv.networks import WCANetwork
from graddiv.seeding import isolated
from tests.helpers import SHAPE, convnet, images, labels


def small() -> WCANetwork:
    return wca(convnet(), SHAPE, features=5)


def test_every_sample_model_has_the_same_jacobian_of_the_logits() -> None:
    F, x = small(), images(2)
    jacobians = [torch.autograd.functional.jacobian(lambda x, f=f: f(x).sum(0), x) for f in F.sample(3, 0)]
    mean = torch.autograd.functional.jacobian(lambda x: F.bind(F.mean())(x).sum(0), x)
    assert all(torch.allclose(J, mean) for J in jacobians)


@pytest.mark.slow
def test_the_noise_on_the_logits_has_covariance_w_l_lt_wt() -> None:
    F, x = small(), images(1)
    with torch.no_grad():
        z = torch.cat([f(x) for f in F.sample(8000, 1)])
        W, L = F.head.layer.weight, F.head.factor.tril()
        S = W @ L @ L.mT @ W.mT
        assert torch.allclose(z.T.cov(), S, atol=0.05 * float(S.diagonal().max()))
        assert torch.allclose(F.log_variances(), S.diagonal().log())
        assert torch.allclose(z.mean(0), F.bind(F.mean())(x)[0], atol=4 * math.sqrt(float(S.diagonal().max()) / 8000))


def test_the_error_of_a_draw_between_two_classes_is_a_gaussian_tail() -> None:
    """P(z_1 > z_0) = Phi(-margin / sd), margin of the noise-free network, sd^2 = (w_0 - w_1)^T S (w_0 - w_1)."""
    with isolated(0):
        module = nn.Sequential(nn.Flatten(), nn.Linear(36, 2)).double()
    F, x = wca(module, SHAPE, features=4), images(30)
    with torch.no_grad():
        W, L = F.head.layer.weight, F.head.factor.tril()
        sd = ((W[0] - W[1]) @ L).norm()
        z = F.bind(F.mean())(x)
        F.head.layer.bias[0] += (z[:, 1] - z[:, 0]).mean()  # so that neither class is certain
        z = F.bind(F.mean())(x)
        expected = torch.special.ndtr((z[:, 1] - z[:, 0]) / sd)
        found = torch.stack([f(x).argmax(1) == 1 for f in F.sample(4000, 2)]).double().mean(0)
    assert 0.1 < float(expected.min()) < 0.48 < 0.52 < float(expected.max()) < 0.9
    assert ((found - expected).abs() < 5 * (expected * (1 - expected) / 4000).sqrt()).all()


def test_other_initialisations_have_other_heads() -> None:
    one, same, other = (wca(convnet(seed=seed), SHAPE, features=5) for seed in (0, 0, 1))
    assert torch.equal(one.head.factor, same.head.factor)
    assert not torch.equal(one.head.factor, other.head.factor)
    assert (one.head.factor.triu(1) == 0).all()


def test_only_the_lower_triangle_counts_and_learns() -> None:
    F = small()
    nn.functional.cross_entropy(F.bind(F.draw(0))(images(3)), labels(3)).backward()
    assert (F.head.factor.grad.triu(1) == 0).all()
    assert F.head.factor.grad.abs().sum() > 0


def test_a_failed_call_leaves_the_module_as_it_was() -> None:
    module = convnet()
    before = list(module.named_modules())
    for _ in range(2):
        with pytest.raises(GradDivError, match=r"input_shape is \(3, 6, 6\), which the module does not take"):
            wca(module, (3, 6, 6), features=5)
        assert list(module.named_modules()) == before
    assert len(list(wca(module, SHAPE, features=5).module[-1].modules())) == 4  # the two layers, and what holds them
    before = list(module.named_modules())
    with pytest.raises(GradDivError, match="noise sites already"):
        wca(module, SHAPE, features=5)
    assert list(module.named_modules()) == before


def test_mistakes() -> None:
    with pytest.raises(GradDivError, match="features is 0"):
        wca(convnet(), SHAPE, features=0)
    with pytest.raises(GradDivError, match="no linear layer inside"):
        wca(nn.Linear(2, 2), (2,))
