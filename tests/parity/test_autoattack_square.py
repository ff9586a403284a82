"""Square beside pyautoattack's: the same schedule, sides and bumps, and no weaker on a trained network."""

import pytest
import torch
from torch import Tensor, nn

from graddiv.attacks import Given
from graddiv.attacks.square import Square
from graddiv.geometry import L2, Geometry, Linf
from graddiv.seeding import isolated
from tests.helpers import labels
from tests.parity.digits import digits, trained

SquareAttack = pytest.importorskip("pyautoattack.square").SquareAttack

pytestmark = pytest.mark.slow


def grey(b: int, *shape: int) -> Tensor:
    return torch.full((b, *shape), 0.5, dtype=torch.float64)


@pytest.mark.parametrize("m", [50, 1000, 10_000])
@pytest.mark.parametrize("p_init", [0.8, 0.05])
def test_the_share_of_pixels_is_the_references_at_every_query(m: int, p_init: float) -> None:
    theirs = SquareAttack(nn.Identity(), n_queries=m, p_init=p_init, device="cpu")
    ours = Square(m=m, p_init=p_init)
    # their loop counts from 0 the queries after the start, which is our first
    assert [ours._share(k) for k in range(1, m)] == [theirs.p_selection(k) for k in range(1, m)]


def test_the_start_in_l2_is_a_grid_of_the_references_bumps() -> None:
    with isolated(0):
        eta = SquareAttack(nn.Identity(), norm="L2", device="cpu").eta(3).double()
    delta = Square(L2(), m=1)(Given([lambda x: x.flatten(1)[:, :4]]), grey(4, 2, 17, 18), labels(4), 0.1) - 0.5
    assert torch.allclose(L2().norm(delta), torch.tensor(0.1).double(), atol=1e-12)
    tiles = delta[..., 1:16, :].unfold(2, 3, 3).unfold(3, 3, 3).flatten(0, 3) * (5 * 6 * 2) ** 0.5 / 0.1
    kinds = torch.stack([eta, -eta, eta.T, -eta.T])
    matches = (tiles[:, None] - kinds).abs().amax((2, 3)) < 1e-6
    assert (matches.sum(1) == 1).all()
    assert matches.any(0).all()


@pytest.mark.parametrize(("geometry", "epsilon"), [(Linf(), 0.1), (L2(), 1.5)], ids=["Linf", "L2"])
def test_no_weaker_on_a_trained_network_at_equal_queries(geometry: Geometry, epsilon: float) -> None:
    """Mean robust accuracy over 3 seeds: theirs draws one square for the whole batch, so it scatters."""
    module, (x, y), m, seeds = trained(), digits(150), 200, range(3)

    def accuracy(x_adv: Tensor) -> float:
        return (module(x_adv).argmax(1) == y).double().mean().item()

    ours = sum(accuracy(Square(geometry, m=m, seed=seed)(module, x, y, epsilon)) for seed in seeds) / len(seeds)
    theirs = 0.0
    for seed in seeds:
        with isolated(seed):
            peer = SquareAttack(module, norm=geometry.name, eps=epsilon, n_queries=m, seed=seed, device="cpu")
            theirs += accuracy(peer.perturb(x, y)) / len(seeds)
    half = sum(accuracy(Square(geometry, m=m // 2, seed=seed)(module, x, y, epsilon)) for seed in seeds) / len(seeds)
    assert 0.1 < theirs < 0.9 * accuracy(x)
    assert ours <= theirs + 0.05
    assert half > theirs + 0.05  # so an attack of half the queries would not pass
