import pytest
import torch

from graddiv import GradDivError, total_variation
from graddiv.networks.total_variation import Rebuilt
from tests.helpers import SHAPE, convnet, images


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
    best = Rebuilt(keep, 0.3, 5000)(x)
    least = energy(best, x, keep, 0.3)
    for seed in range(20):
        other = best + 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
        assert (energy(other, x, keep, 0.3) >= least - 1e-9).all()
    assert (energy(Rebuilt(keep, 0.3, 50)(x), x, keep, 0.3) < 1.05 * least).all()
    assert (least < energy(x, x, keep, 0.3)).all()


def test_dropped_pixels_do_not_matter() -> None:
    x, keep = images(2), masks(1)
    changed = keep * x + (1 - keep) * images(2, seed=1)
    assert torch.allclose(Rebuilt(keep, 0.03, 30)(x), Rebuilt(keep, 0.03, 30)(changed))


def test_a_constant_image_is_rebuilt_whatever_is_dropped() -> None:
    x = torch.full((1, 1, 6, 6), 0.3, dtype=torch.float64)
    assert torch.allclose(Rebuilt(masks(1), 0.03, 2000)(x), x, atol=1e-3)


def test_both_gradients_have_the_same_forward_pass() -> None:
    module, x = convnet(), images(3)
    proxy, unrolled = (total_variation(module, SHAPE, gradient=g) for g in ("identity", "unrolled"))
    noise = proxy.draw(0)
    assert torch.equal(proxy.bind(noise)(x), unrolled.bind(noise)(x))
    assert (proxy.proxy_gradient, unrolled.proxy_gradient) == (True, False)
    assert noise["keep"].mean().item() == pytest.approx(0.5, abs=0.25)
    assert total_variation(module, (3, 64, 64)).draw(1)["keep"].mean().item() == pytest.approx(0.5, abs=0.03)


def test_mistakes() -> None:
    with pytest.raises(GradDivError, match="lam is 0"):
        total_variation(convnet(), SHAPE, lam=0.0)
    with pytest.raises(GradDivError, match=r"\(36,\), expected"):
        total_variation(convnet(), (36,))
