import pytest
import torch
from torch import nn

from graddiv import GradDivError, pni_activations
from graddiv.networks.activation_noise import ActivationNoise, OutputNoise
from tests.helpers import SHAPE, convnet, images


@pytest.mark.parametrize(
    ("at", "shapes", "kind"),
    [
        ("image", [(1, 6, 6)], ActivationNoise),
        ("inputs", [(1, 6, 6), (3, 3, 3), (36,)], ActivationNoise),
        ("outputs", [(3, 6, 6), (4, 3, 3), (4,)], OutputNoise),
    ],
)
def test_where_the_noise_is(at: str, shapes: list[tuple[int, ...]], kind: type) -> None:
    F = pni_activations(convnet(), SHAPE, at=at)
    assert list(F.shapes.values()) == shapes
    assert [type(m) for m in F.modules() if isinstance(m, ActivationNoise)] == [kind] * len(shapes)
    assert len([name for name, _ in F.named_parameters() if name.endswith("alpha")]) == len(shapes)


def test_the_noise_is_alpha_standard_deviations_of_each_example_apart() -> None:
    site = ActivationNoise(nn.Linear(2, 2), 0.25)
    h = torch.stack([torch.linspace(-1, 1, 2000), 10 * torch.linspace(-1, 1, 2000)])
    noise = torch.randn(2, 2000, generator=torch.Generator().manual_seed(0))
    added = (site.perturbed(h, noise) - h).std(1) / h.std(1)
    assert added.tolist() == pytest.approx([0.25, 0.25], rel=0.1)
    assert torch.equal(site.perturbed(h[:1], noise[:1]), site.perturbed(h, noise)[:1])


@pytest.mark.parametrize("where", [{"device": "meta"}, {"dtype": torch.float64}], ids=str)
def test_alpha_is_of_the_layers_device_and_type(where: dict[str, object]) -> None:
    layer = nn.Linear(2, 2, **where)
    alpha = ActivationNoise(layer, 0.25).alpha
    assert (alpha.device, alpha.dtype) == (layer.weight.device, layer.weight.dtype)
    assert alpha.is_leaf
    assert alpha.requires_grad


def test_alpha_is_learned_and_a_constant_image_has_finite_gradients() -> None:
    F = pni_activations(convnet(), SHAPE, at="inputs")
    x = torch.zeros(2, *SHAPE, dtype=torch.float64, requires_grad=True)
    F.bind(F.draw(0))(x).square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in F.parameters())
    assert torch.isfinite(x.grad).all()


def test_the_mean_network_is_the_one_without_noise() -> None:
    module, x = convnet(), images(3)
    plain = module(x)
    F = pni_activations(module, SHAPE)
    assert torch.allclose(F.bind(F.mean())(x), plain)


def test_mistakes() -> None:
    with pytest.raises(GradDivError, match="alpha is 0"):
        pni_activations(convnet(), SHAPE, 0.0)
    with pytest.raises(GradDivError, match="no convolution or linear layer inside"):
        pni_activations(nn.Sequential(nn.Flatten()), SHAPE)
