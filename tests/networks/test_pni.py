import pytest
import torch

from graddiv import GradDivError, pni
from tests.helpers import convnet, images, no_type_checks


@pytest.mark.parametrize(
    ("granularity", "shape"),
    [("layerwise", ()), ("channelwise", (3, 1, 1, 1)), ("elementwise", (3, 1, 3, 3))],
)
def test_alpha_has_one_entry_for_each_cell(granularity: str, shape: tuple[int, ...]) -> None:
    F = pni(convnet(), 0.2, granularity=granularity)  # type: ignore[arg-type]
    assert F.alpha["0/weight"].shape == shape
    assert torch.all(F.alpha["0/weight"] == 0.2)


def test_noise_is_on_convolution_and_linear_weights_only() -> None:
    assert pni(convnet(batch_norm=True)).names == ["0.weight", "4.weight", "7.weight"]
    assert pni(torch.nn.Linear(3, 2)).names == ["weight"]


def test_weights_are_w_plus_alpha_std_noise() -> None:
    F = pni(convnet(), 0.25)
    noise = F.draw(0)
    w = F.module[0].weight
    assert torch.allclose(F.realise(noise, F.theta())["0.weight"], w + 0.25 * w.std() * noise["0.weight"])
    assert F.realise(noise, F.theta())["0.bias"] is F.module[0].bias


def test_the_gradient_ignores_std_and_reaches_alpha() -> None:
    """dL/dw = dL/dw~ and dL/dalpha = <dL/dw~, std(w) noise>."""
    F, x = pni(convnet()), images(4)
    noise = F.draw(1)
    weights = F.realise(noise, F.theta())
    probe = torch.func.functional_call(F.module, weights, (x,)).square().sum()
    (outer,) = torch.autograd.grad(probe, [weights["0.weight"]], retain_graph=True)
    inner, alpha = torch.autograd.grad(probe, [F.module[0].weight, F.alpha["0/weight"]])
    assert torch.allclose(inner, outer)
    assert torch.allclose(alpha, (outer * F.module[0].weight.std() * noise["0.weight"]).sum())


def test_noise_scales_with_the_layer() -> None:
    F = pni(torch.nn.Linear(200, 200, bias=False).double(), 0.5)
    w = F.module.weight.detach().clone()
    eta = (F.realise(F.draw(3), F.theta())["weight"] - w).detach()
    assert eta.std().item() == pytest.approx(0.5 * w.std().item(), rel=0.02)
    assert abs(eta.mean()) < 0.01 * w.std()


def test_bad_arguments() -> None:
    with pytest.raises(GradDivError, match="alpha is -1"):
        pni(convnet(), -1.0)
    with pytest.raises(GradDivError, match="granularity is 'blockwise'"), no_type_checks():
        pni(convnet(), granularity="blockwise")  # type: ignore[arg-type]
    with pytest.raises(GradDivError, match="ReLU has no convolution"):
        pni(torch.nn.ReLU())


def test_tied_weights_have_one_noise() -> None:
    a, b = torch.nn.Linear(5, 5), torch.nn.Linear(5, 5)
    b.weight = a.weight
    F = pni(torch.nn.Sequential(a, b))
    assert F.names == ["0.weight"]
    assert F.bind(F.draw(0))(torch.rand(2, 5)).shape == (2, 5)


def test_a_layer_of_a_single_weight_has_no_spread_to_scale_with() -> None:
    F = pni(torch.nn.Linear(1, 1)).eval()
    assert torch.equal(F.bind(F.draw(0))(torch.ones(1, 1)), F.module(torch.ones(1, 1)))
