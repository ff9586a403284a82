"""Square: laws of a random search, squares of every image and place."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from graddiv import Dirac, GradDivError, bayesian
from graddiv.attacks import EOT, PGD, Fixed, Given, RandomSearch
from graddiv.attacks.square import Square
from graddiv.geometry import L2, Geometry, Linf
from graddiv.losses import margin
from graddiv.seeding import isolated
from tests.helpers import KINDS, STOCHASTIC, convnet, global_rng_untouched, images, labels, network, no_type_checks

GEOMETRIES = [Linf(), L2()]
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.name)


class Spy:
    """A model that keeps what it is asked; by default it is never impressed."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = model
        self.asked: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.asked.append(x.clone())
        return torch.zeros(len(x), 4, dtype=x.dtype) if self.model is None else self.model(x)


def grey(b: int, *shape: int) -> Tensor:
    return torch.full((b, *shape), 0.5, dtype=torch.float64)


@pytest.mark.parametrize(("kind", "geometry"), [*((kind, Linf()) for kind in KINDS), ("bayesian", L2())], ids=str)
@pytest.mark.slow
def test_the_loss_is_raised(kind: str, geometry: Geometry) -> None:
    F, x, y = network(kind), images(5), labels(5)
    epsilon = torch.tensor([0.0, 0.05, 0.1, 0.2, 0.3], dtype=torch.float64)
    for view in (Fixed(F, seed=1), EOT(F, 2, seed=1), Given(F.sample(2, 1))):
        x_adv = Square(geometry, m=12, restarts=2)(view, x, y, epsilon)
        assert view.loss(0, x_adv, y, "margin").sum() > view.loss(0, x, y, "margin").sum()


@every_geometry
def test_the_best_query_is_returned(geometry: Geometry) -> None:
    module, x, y = convnet(), images(6), labels(6)
    spy = Spy(module)
    x_adv = Square(geometry, m=50)(Given([spy]), x, y, 0.2)
    best = torch.stack([margin(module(asked), y) for asked in spy.asked]).amax(0)
    assert torch.allclose(margin(module(x_adv), y), best, rtol=0, atol=1e-12)


@every_geometry
def test_more_queries_never_lower_the_loss(geometry: Geometry) -> None:
    module, x, y = convnet(), images(6), labels(6)
    # squares so small that their side, which follows the share of queries done, is the same throughout
    results = [Square(geometry, m=m, p_init=0.01)(module, x, y, 0.2) for m in (1, 2, 5, 20, 80)]
    losses = torch.stack([margin(module(x_adv), y) for x_adv in results])
    assert (losses.diff(dim=0) >= -1e-12).all()
    assert (losses[-1] > losses[0]).all()


@every_geometry
@pytest.mark.slow
def test_on_a_linear_network_the_true_distance_decides(geometry: Geometry) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).double()
    x = 0.5 + 0.05 * (images(6, shape=(1, 8, 8)) - 0.5)
    with torch.no_grad():
        w = torch.zeros(8, 8, dtype=torch.float64)
        w[2:5, 3:6] = torch.tensor([[1.0, 2.0, 1.0], [-1.0, -2.0, -1.0], [-0.5, -1.0, -0.5]])
        w = w.flatten()
        module[1].weight.copy_(torch.stack([w, -w]))
        module[1].bias.copy_(torch.tensor([0.1, -0.1]))
        y = module(x).argmax(1)
        distance = -margin(module(x), y) / (2 * w).norm(p=geometry.q)
    assert (module(Square(geometry, m=400)(module, x, y, 1.5 * distance)).argmax(1) != y).all()
    assert (module(Square(geometry, m=100)(module, x, y, 0.95 * distance)).argmax(1) == y).all()


@every_geometry
@pytest.mark.parametrize(
    "shape", [(1, 4, 9), (3, 9, 4), (3, 1, 7), (1, 2, 2), (3, 28, 5), (2, 1, 1), (1, 14, 14)], ids=str
)
def test_images_of_any_shape(shape: tuple[int, int, int], geometry: Geometry) -> None:
    with isolated(0):
        module = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 3)).double()
    x, y = images(4, shape=shape), labels(4, classes=3)
    x_adv = Square(geometry, m=40)(module, x, y, 0.1)
    assert x_adv.shape == x.shape
    assert (geometry.norm(x_adv - x) <= 0.1 * (1 + 1e-6)).all()
    assert (margin(module(x_adv), y) > margin(module(x), y)).float().mean() > 0.7


@every_geometry
def test_each_image_has_squares_of_its_own(geometry: Geometry) -> None:
    spy = Spy()
    Square(geometry, m=40)(Given([spy]), grey(3, 1, 12, 12), labels(3), 0.1, ids=torch.tensor([5, 8, 5]))
    asked = torch.stack(spy.asked)
    assert torch.equal(asked[:, 0], asked[:, 2])
    assert all(not torch.equal(one, other) for one, other in zip(asked[:, 0], asked[:, 1], strict=True))


@pytest.mark.slow
def test_every_pixel_is_as_likely_and_no_query_is_wasted() -> None:
    spy, b, m = Spy(), 8, 400
    Square(m=m, p_init=0.01)(Given([spy]), grey(b, 1, 6, 4), labels(b), 0.1)
    changed = torch.stack(spy.asked[1:]) != spy.asked[0]
    assert (changed.flatten(2).sum(2) == 1).all()
    count, expected = changed.sum((0, 1)), (m - 1) * b / 24
    assert ((count - expected) ** 2 / expected).sum() < 50  # chi-squared with 23 degrees of freedom: p = 0.001


@every_geometry
def test_squares_reach_every_row_and_column(geometry: Geometry) -> None:
    spy, x = Spy(), grey(8, 1, 5, 6)
    Square(geometry, m=200, p_init=0.3)(Given([spy]), x, labels(8), 0.1)
    changed = (torch.stack(spy.asked[1:10]) != spy.asked[0]).flatten(0, 1)[:, 0]
    rows_met, columns_met = changed.any(0).any(1), changed.any(0).any(0)
    assert rows_met.all()
    assert columns_met.all()


def test_squares_shrink_from_the_share_asked_for_to_a_pixel() -> None:
    spy = Spy()
    with no_type_checks():  # a thousand queries of one tiny image: checking types would be most of the work
        Square(m=1000)(Given([spy]), grey(1, 1, 20, 20), labels(1), 0.1)
    # the start is striped, so a square changes some of its columns: their height is its side
    heights = [int((asked != spy.asked[0])[0, 0].any(1).sum()) for asked in spy.asked[1:]]
    assert heights == sorted(heights, reverse=True)
    assert sorted(set(heights)) == [1, 2, 3, 4, 6, 9, 13, 18]  # sqrt(0.8 * 400 / 2^j), rounded


@every_geometry
@pytest.mark.parametrize("n", [1, 3])
def test_a_noisy_network_loses_on_models_the_attack_has_not_seen(n: int, geometry: Geometry) -> None:
    F, x, y = bayesian(convnet(nn.ReLU), 0.05), images(8), labels(8)
    x_adv = Square(geometry, m=80)(EOT(F, n), x, y, 0.3 if geometry.name == "Linf" else 1.0)
    judge = EOT(F, 30, seed=99)
    assert (judge.loss(0, x_adv, y, "ensemble") > judge.loss(0, x, y, "ensemble")).all()


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_on_fresh_models_candidate_and_incumbent_meet_the_same_ones(kind: str) -> None:
    class Watched(EOT):
        def losses(self, k: int, points: Sequence[Tensor], y: Tensor, objective: str = "ce") -> Tensor:
            asked.append((k, len(points)))
            return super().losses(k, points, y, objective)

    asked: list[tuple[int, int]] = []
    Square(m=5, restarts=1)(Watched(network(kind), 2), images(2), labels(2), 0.1)
    assert asked == [(1, 2), (2, 2), (3, 2), (4, 2)]


def test_the_cost_is_counted() -> None:
    F, x, y = network("bayesian"), images(2), labels(2)
    fixed, eot, given, plain = Fixed(F), EOT(F, 3), Given(F.sample(2, 1)), EOT(Dirac(convnet()), 3)
    for view in (fixed, eot, given, plain):
        Square(m=10)(view, x, y, 0.1)
        assert view.cost.backwards == 0
    assert [view.cost.forwards for view in (fixed, eot, given, plain)] == [10, 2 * 3 * 9, 2 * 10, 10]
    assert [view.cost.draws for view in (fixed, eot, given, plain)] == [1, 3 * 9, 0, 0]


@every_geometry
def test_repeats_agree_other_seeds_and_restarts_differ(geometry: Geometry) -> None:
    module, x, y = convnet(), images(3), labels(3)
    told: list[tuple[int, int]] = []
    with no_type_checks(), global_rng_untouched():  # the checker draws from Python's random state
        one, same, other, more = (
            Square(geometry, m=20, seed=seed, restarts=restarts)(
                module, x, y, 0.1, progress=lambda done, total: told.append((done, total))
            )
            for seed, restarts in ((0, 1), (0, 1), (1, 1), (0, 4))
        )
    assert torch.equal(one, same)
    assert all((a != b).any() for a, b in zip(one, other, strict=True))
    assert (margin(module(more), y) >= margin(module(one), y)).all()
    assert not torch.equal(more, one)
    assert told[-1] == (80, 80)


def test_no_image_comes_back_clean_on_a_random_view() -> None:
    F, x = network("bayesian"), images(6)
    wrong = (F.eval().module(x).argmax(1) + 1) % 4
    x_adv = Square(m=3)(EOT(F, 2), x, wrong, 0.1)
    assert ((x_adv - x).flatten(1).abs().amax(1) > 0.05).all()


def test_bad_input() -> None:
    with pytest.raises(GradDivError, match="m is 0"):
        Square(m=0)
    with pytest.raises(GradDivError, match=r"p_init is 1\.5"):
        Square(p_init=1.5)
    with pytest.raises(GradDivError, match=r"x has shape \(3, 36\), expected images of shape b c h w"):
        Square()(nn.Linear(36, 4).double(), images(3).flatten(1), labels(3), 0.1)
    with pytest.raises(GradDivError, match="the loss of 3 of 3 examples is NaN"):
        Square()(Given([lambda x: convnet()(x) * float("nan")]), images(3), labels(3), 0.1)


@pytest.mark.parametrize("geometry", [Linf(), L2()], ids=str)
def test_random_search_finds_what_many_samples_find(geometry: Geometry) -> None:
    module, x, y = convnet(nn.ReLU), images(4), labels(4)
    view = Fixed(module)
    losses = [view.loss(0, RandomSearch(geometry, samples=n)(view, x, y, 0.3), y) for n in (1, 10, 200)]
    assert (losses[1] >= losses[0]).all()
    assert (losses[2] >= losses[1]).all()
    assert (losses[2] > losses[0]).all()
    assert (view.loss(0, PGD(geometry, m=10)(view, x, y, 0.3), y) > losses[2]).all()


def test_random_search_confirms_its_best_on_fresh_models() -> None:
    F, x, y = network("bayesian", batch_norm=True).train(), images(3), labels(3)
    statistics = F.module[1].running_mean.clone()
    view = EOT(F, 4)
    x_adv = RandomSearch(samples=30, confirmed=5)(view, x, y, 0.2)
    assert (Linf().norm(x_adv - x) <= 0.2 * (1 + 1e-6)).all()
    assert (view.cost.forwards, view.cost.backwards) == (30 + 5 * 4, 0)
    assert torch.equal(F.module[1].running_mean, statistics)


def test_a_search_of_no_points_is_refused() -> None:
    with pytest.raises(GradDivError, match="samples is 0"):
        RandomSearch(samples=0)
