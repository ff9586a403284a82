import pytest
import torch
from torch import nn

from graddiv import GradDivError, rse
from graddiv.networks import Normalize, stl10_cnn, vgg16
from graddiv.networks.rse import NoiseSite
from tests.helpers import SHAPE, convnet, images


def sites(module: nn.Module) -> list[NoiseSite]:
    return [m for m in module.modules() if isinstance(m, NoiseSite)]


def test_a_site_before_every_convolution_the_first_one_louder() -> None:
    F = rse(vgg16(0.1), (3, 32, 32))
    assert [site.sigma for site in sites(F)] == [0.2] + [0.1] * 12
    assert all(isinstance(site.layer, nn.Conv2d) for site in sites(F))
    assert len(sites(rse(stl10_cnn(0.1), (3, 96, 96)))) == 6


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
