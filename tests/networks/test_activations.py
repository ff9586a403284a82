import math

import pytest
import torch
from torch import nn

from graddiv import GradDivError, pixeldp, pni_activations, rse, wca
from graddiv.networks import Normalize, WCANetwork, stl10_cnn, vgg16
from graddiv.networks.activations import ActivationNoise, NoiseSite
from graddiv.seeding import isolated
from tests.helpers import SHAPE, convnet, images, labels


def sites(module: nn.Module) -> list[NoiseSite]:
    return [m for m in module.modules() if isinstance(m, NoiseSite)]


def test_a_site_before_every_convolution_the_first_one_louder() -> None:
    F = rse(vgg16(0.1), (3, 32, 32))
    assert [site.sigma for site in sites(F)] == [0.2] + [0.1] * 12
    assert all(isinstance(site.layer, nn.Conv2d) for site in sites(F))
    assert len(sites(rse(stl10_cnn(0.1), (3, 96, 96)))) == 6
    assert repr(F).count("sigma=0.2") == 1


def test_noise_enters_as_sigma_times_standard_normal() -> None:
    module = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.Flatten())
    with torch.no_grad():
        module[0].weight.fill_(1.0)
    F = rse(module, (1, 40, 40), sigma_init=0.2)
    x = torch.full((1, 1, 40, 40), 0.5)
    added = torch.stack([f(x) - 0.5 for f in F.sample(20, 0)]).detach()
    assert added.std().item() == pytest.approx(0.2, rel=0.03)
    assert abs(added.mean()) < 0.005


def test_the_noise_is_the_same_for_every_row_unless_drawn_for_a_batch() -> None:
    F = rse(convnet(), SHAPE)
    x = images(1).expand(5, -1, -1, -1)
    assert F.bind(F.draw(0))(x).std(0).max() < 1e-12
    assert F.bind(F.draw(0, batch=torch.arange(5)))(x).std(0).min() > 1e-3


def test_normalization_comes_after_the_first_site() -> None:
    F = rse(nn.Sequential(Normalize([0.5], [0.25]), *convnet()).double(), SHAPE)
    layers = {type(site.layer).__name__: site.sigma for site in sites(F)}
    assert layers == {"Normalize": 0.2, "Conv2d": 0.1}


def test_building_it_leaves_batch_statistics_alone() -> None:
    F = rse(vgg16(0.1), (3, 32, 32))
    assert all(m.num_batches_tracked == 0 for m in F.modules() if isinstance(m, nn.BatchNorm2d))


def test_calling_the_module_without_noise_teaches() -> None:
    F = rse(convnet(), SHAPE)
    with pytest.raises(GradDivError, match=r"without noise.*F\.bind"):
        F.module(images(2))


def test_bad_arguments() -> None:
    with pytest.raises(GradDivError, match="sigma_inner is -1"):
        rse(convnet(), SHAPE, sigma_inner=-1.0)
    with pytest.raises(GradDivError, match="no convolution inside"):
        rse(nn.Linear(2, 2), (2,))
    F = rse(nn.Sequential(nn.Conv2d(1, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()), (1, 6, 6))
    with pytest.raises(GradDivError, match=r"\(1, 6, 6\) but met \(1, 8, 8\)"):
        F.bind(F.draw(0))(torch.zeros(1, 1, 8, 8))


def test_a_convolution_used_twice_is_refused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(self.conv(x)).flatten(1)

    with pytest.raises(GradDivError, match="'conv' is used twice"):
        rse(Twice(), (1, 6, 6))
    F = wca(nn.Sequential(Twice(), nn.Linear(36, 4)), (1, 6, 6), features=2)  # where there is no noise, it may be
    assert F.bind(F.draw(0))(torch.zeros(1, 1, 6, 6)).shape == (1, 4)


def test_pixeldp_minds_the_first_convolution_alone() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(self.conv(x)).flatten(1)

    F = pixeldp(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), Twice()), SHAPE)
    assert F.bind(F.draw(0))(torch.zeros(1, *SHAPE)).shape == (1, 72)
    with pytest.raises(GradDivError, match="does not begin with a convolution"):
        pixeldp(nn.Sequential(nn.ReLU(), nn.Sigmoid(), nn.Conv2d(1, 2, 3)), SHAPE)


class OutOfOrder(nn.Module):
    """Defines its second convolution first, and knows the first by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Conv2d(2, 2, 3)
        self.norm = Normalize([0.5], [0.25])
        self.first = nn.Conv2d(1, 2, 3)
        self.alias = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.alias(self.norm(x))).flatten(1)


def test_sites_follow_the_order_of_execution_not_of_definition() -> None:
    F = rse(OutOfOrder(), (1, 6, 6))
    assert F.module.norm.sigma == 0.2
    assert F.module.second.sigma == 0.1
    assert isinstance(F.module.first, nn.Conv2d)
    assert F.module.alias is F.module.first
    assert F.shapes == {"norm.noise": (1, 6, 6), "second.noise": (2, 4, 4)}


def test_a_wrong_input_shape_is_named_and_leaves_the_module_as_it_was() -> None:
    module = convnet()
    with pytest.raises(GradDivError, match=r"input_shape is \(3, 6, 6\), which the module does not take"):
        rse(module, (3, 6, 6))
    assert not sites(module)
    assert len(sites(rse(module, SHAPE))) == 2
    with pytest.raises(GradDivError, match="RSE was put on it before"):
        rse(module, SHAPE)


def test_an_error_of_the_modules_own_leaves_it_as_it_was() -> None:
    class Picky(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise TypeError("images of another kind")

    module = nn.Sequential(*convnet(), Picky())
    with pytest.raises(TypeError, match="images of another kind"):
        rse(module, SHAPE)
    assert not sites(module)


@pytest.mark.parametrize(
    ("at", "shapes", "after"),
    [
        ("image", [(1, 6, 6)], False),
        ("inputs", [(1, 6, 6), (3, 3, 3), (36,)], False),
        ("outputs", [(3, 6, 6), (4, 3, 3), (4,)], True),
    ],
)
def test_where_the_noise_is(at: str, shapes: list[tuple[int, ...]], after: bool) -> None:
    F = pni_activations(convnet(), SHAPE, at=at)
    assert list(F.shapes.values()) == shapes
    assert [m.after for m in F.modules() if isinstance(m, ActivationNoise)] == [after] * len(shapes)
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


@pytest.mark.slow
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


def test_mistakes_of_wca() -> None:
    with pytest.raises(GradDivError, match="features is 0"):
        wca(convnet(), SHAPE, features=0)
    with pytest.raises(GradDivError, match="no linear layer inside"):
        wca(nn.Linear(2, 2), (2,))
