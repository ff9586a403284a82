import pytest
import torch
from torch import nn

from graddiv import GradDivError
from graddiv.networks import ARCHITECTURES, Normalize, architecture, mnist_cnn, stl10_cnn, vgg16
from graddiv.networks.architectures import multiplications_of
from tests.helpers import SHAPES


def layers(module: nn.Module) -> list[str]:
    """The layers in the notation of the paper's supplement."""
    names = {nn.LeakyReLU: "LReLU", nn.ReLU: "ReLU", nn.MaxPool2d: "MP", nn.AvgPool2d: "AP", nn.BatchNorm2d: "BN"}
    found = []
    for m in module.modules():
        if isinstance(m, nn.Conv2d):
            padding = f",{m.padding[0]}" if m.padding[0] else ""
            found.append(f"C({m.out_channels},{m.kernel_size[0]},{m.stride[0]}{padding})")
        elif isinstance(m, nn.Linear):
            found.append(f"F({m.out_features})")
        elif type(m) in names:
            found.append(names[type(m)])
    return found


def test_the_mnist_network_is_the_papers() -> None:
    module = mnist_cnn()
    text = "C(32,3,1,1)-LReLU-C(64,3,1,1)-LReLU-MP-C(128,3,1,1)-LReLU-MP-F(1024)-LReLU-F(10)"
    assert layers(module) == text.split("-")
    assert sum(p.numel() for p in module.parameters()) == 6_526_474


def test_the_stl10_network_is_the_papers() -> None:
    text = (
        "C(32,3,1,1)-BN-ReLU-MP-C(64,3,1,1)-BN-ReLU-MP-C(128,3,1,1)-BN-ReLU-MP-C(256,3,1,1)-BN-ReLU-MP"
        "-C(256,3,1)-BN-ReLU-C(512,3,1)-BN-ReLU-AP-F(10)"
    )
    assert layers(stl10_cnn()) == text.split("-")


def test_vgg16_has_13_convolutions_5_poolings_and_one_linear_layer() -> None:
    found = layers(vgg16())
    assert [sum(name.startswith(kind) for name in found) for kind in ("C(", "BN", "ReLU", "MP", "F(")] == [
        13,
        13,
        13,
        5,
        1,
    ]
    assert sum(p.numel() for p in vgg16().parameters()) == 14_728_266


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_maps_its_images_to_ten_logits(name: str) -> None:
    assert architecture(name, 0.1)(torch.rand(2, *SHAPES[name])).shape == (2, 10)


def test_width_scales_channels() -> None:
    assert [m.out_channels for m in mnist_cnn(0.25) if isinstance(m, nn.Conv2d)] == [8, 16, 32]


def test_initial_weights_are_a_function_of_the_seed() -> None:
    a, b, c = (architecture("mnist_cnn", 0.1, seed=seed)[0].weight for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_normalize_works_per_channel() -> None:
    x = torch.rand(2, 3, 4, 4)
    y = Normalize([0.1, 0.2, 0.3], [1.0, 2.0, 4.0])(x)
    assert torch.allclose(y[:, 2], (x[:, 2] - 0.3) / 4)


def test_bad_names_and_widths() -> None:
    with pytest.raises(GradDivError, match="unknown network 'mnist', did you mean 'mnist_cnn'"):
        architecture("mnist")
    with pytest.raises(GradDivError, match="width is 0"):
        mnist_cnn(0.0)


@pytest.mark.parametrize(
    ("name", "shape"), [("mnist_cnn", (3, 9, 14)), ("vgg16", (1, 70, 32)), ("stl10_cnn", (1, 96, 128))]
)
def test_an_architecture_adapts_to_shape_and_classes(name: str, shape: tuple[int, int, int]) -> None:
    module = architecture(name, 0.05, shape=shape, classes=7).eval()
    assert module(torch.zeros(2, *shape)).shape == (2, 7)
    native = architecture(name, 0.05, shape=SHAPES[name], classes=10)
    usual = architecture(name, 0.05).state_dict()
    assert all(torch.equal(usual[key], value) for key, value in native.state_dict().items())
    with pytest.raises(GradDivError, match=f"{name} takes images of at least .* pixels, and the data's have 3 x 200"):
        architecture(name, 0.05, shape=(1, 3, 200), classes=7)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_multiplications_are_counted_as_they_are_declared(name: str) -> None:
    counted = multiplications_of(architecture(name, 0.25), SHAPES[name])
    assert counted == pytest.approx(ARCHITECTURES[name].multiplications * 0.25**2, rel=0.2)
