import io

import numpy as np
import pytest
import torch

from graddiv import GradDivError, total_variation
from graddiv.networks import compressed
from graddiv.networks.compression import _cosines, jpeg, quantized, rebuilt
from tests.helpers import SHAPE, convnet, images


def test_three_bits_are_eight_levels_with_black_and_white() -> None:
    x = torch.linspace(0, 1, 1001)
    assert torch.allclose(quantized(x, 3).unique(), torch.arange(8) / 7)
    assert (quantized(x, 3) - x).abs().max() <= 1 / 14 + 1e-6
    assert torch.equal(quantized(torch.arange(256) / 255, 8), torch.arange(256) / 255)


@pytest.mark.parametrize("quality", [10, 50, 75, 90])
@pytest.mark.parametrize("colours", [1, 3])
def test_jpeg_is_the_one_of_a_library(quality: int, colours: int) -> None:
    """Pillow's, without the subsampling of colour; a coefficient between two levels may be rounded the other way."""
    Image = pytest.importorskip("PIL.Image")
    g = torch.Generator().manual_seed(quality)
    coarse = torch.rand(1, colours, 4, 4, generator=g)
    x = torch.nn.functional.interpolate(coarse, size=(28, 28), mode="bicubic").clamp(0, 1)
    x = (x * 255).round() / 255
    pixels = (x[0] * 255).to(torch.uint8).permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(buffer, "JPEG", quality=quality, subsampling=0)
    theirs = np.asarray(Image.open(buffer)).reshape(28, 28, colours)
    ours = (jpeg(x, quality)[0] * 255).permute(1, 2, 0).numpy()
    gap = np.abs(ours - theirs.astype(float))
    assert np.quantile(gap, 0.95) <= 2
    assert gap.mean() < 0.6
    assert np.abs(pixels.astype(float) - ours).mean() > 2 * gap.mean(), "the compression is larger than the difference"


def test_the_cosine_transform_is_orthogonal() -> None:
    D = _cosines(torch.zeros((), dtype=torch.float64))
    assert torch.allclose(D @ D.mT, torch.eye(8, dtype=torch.float64))


def test_the_network_sees_the_compressed_image_and_says_that_its_gradient_is_a_proxy() -> None:
    module, x = convnet(), images(3)
    F = compressed(module, bits=3)
    assert torch.equal(F.bind(F.draw(0))(x), module(quantized(x, 3)))
    assert F.proxy_gradient
    assert not F.random
    both = compressed(module, bits=3, quality=75)
    assert torch.equal(both.bind(both.draw(0))(x), module(jpeg(quantized(x, 3), 75)))


@pytest.mark.parametrize(
    ("settings", "message"), [({}, "neither"), ({"bits": 9}, "bits is 9"), ({"quality": 0}, "quality is 0")]
)
def test_mistakes(settings: dict[str, int], message: str) -> None:
    with pytest.raises(GradDivError, match=message):
        compressed(convnet(), **settings)


def energy(z: torch.Tensor, x: torch.Tensor, keep: torch.Tensor, lam: float) -> torch.Tensor:
    right = torch.nn.functional.pad(z[..., :, 1:] - z[..., :, :-1], (0, 1))
    down = torch.nn.functional.pad(z[..., 1:, :] - z[..., :-1, :], (0, 0, 0, 1))
    fit = (keep * (z - x).square()).flatten(1).sum(1)
    return fit + lam * (right.square() + down.square()).sqrt().flatten(1).sum(1)


def masks(n: int, side: int = 6) -> torch.Tensor:
    return (torch.rand(n, 1, side, side, generator=torch.Generator().manual_seed(0)) < 0.5).double()


def test_the_solver_finds_the_minimum() -> None:
    """No nearby image has less energy, and 50 steps come within a few percent of 5000."""
    x, keep = images(4), masks(4)
    best = rebuilt(x, keep, 0.3, 5000)
    least = energy(best, x, keep, 0.3)
    for seed in range(20):
        other = best + 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
        assert (energy(other, x, keep, 0.3) >= least - 1e-9).all()
    assert (energy(rebuilt(x, keep, 0.3, 50), x, keep, 0.3) < 1.05 * least).all()
    assert (least < energy(x, x, keep, 0.3)).all()


def test_dropped_pixels_do_not_matter() -> None:
    x, keep = images(2), masks(1)
    changed = keep * x + (1 - keep) * images(2, seed=1)
    assert torch.allclose(rebuilt(x, keep, 0.03, 30), rebuilt(changed, keep, 0.03, 30))


def test_a_constant_image_is_rebuilt_whatever_is_dropped() -> None:
    x = torch.full((1, 1, 6, 6), 0.3, dtype=torch.float64)
    assert torch.allclose(rebuilt(x, masks(1), 0.03, 2000), x, atol=1e-3)


def test_both_gradients_have_the_same_forward_pass() -> None:
    module, x = convnet(), images(3)
    proxy, unrolled = (total_variation(module, SHAPE, gradient=g) for g in ("identity", "unrolled"))
    noise = proxy.draw(0)
    assert torch.equal(proxy.bind(noise)(x), unrolled.bind(noise)(x))
    assert (proxy.proxy_gradient, unrolled.proxy_gradient) == (True, False)
    assert noise["keep"].mean().item() == pytest.approx(0.5, abs=0.25)
    assert total_variation(module, (3, 64, 64)).draw(1)["keep"].mean().item() == pytest.approx(0.5, abs=0.03)


def test_mistakes_of_total_variation() -> None:
    with pytest.raises(GradDivError, match="lam is 0"):
        total_variation(convnet(), SHAPE, lam=0.0)
    with pytest.raises(GradDivError, match=r"\(36,\), expected"):
        total_variation(convnet(), (36,))
