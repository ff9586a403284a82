import io

import numpy as np
import pytest
import torch

from graddiv import GradDivError
from graddiv.networks import compressed
from graddiv.networks.compression import JPEG, BitDepth, _cosines
from tests.helpers import convnet, images


def test_three_bits_are_eight_levels_with_black_and_white() -> None:
    x = torch.linspace(0, 1, 1001)
    assert torch.allclose(BitDepth(3)(x).unique(), torch.arange(8) / 7)
    assert (BitDepth(3)(x) - x).abs().max() <= 1 / 14 + 1e-6
    assert torch.equal(BitDepth(8)(torch.arange(256) / 255), torch.arange(256) / 255)


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
    ours = (JPEG(quality)(x)[0] * 255).permute(1, 2, 0).numpy()
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
    assert torch.equal(F.bind(F.draw(0))(x), module(BitDepth(3)(x)))
    assert F.proxy_gradient
    assert not F.random
    both = compressed(module, bits=3, quality=75)
    assert torch.equal(both.bind(both.draw(0))(x), module(JPEG(75)(BitDepth(3)(x))))


@pytest.mark.parametrize(
    ("settings", "message"), [({}, "neither"), ({"bits": 9}, "bits is 9"), ({"quality": 0}, "quality is 0")]
)
def test_mistakes(settings: dict[str, int], message: str) -> None:
    with pytest.raises(GradDivError, match=message):
        compressed(convnet(), **settings)
