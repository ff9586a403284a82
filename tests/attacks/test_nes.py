"""NES: gradients from queries, in closed form on linear losses; and views that hold their models."""

import torch
from torch import Tensor, nn

from graddiv.attacks import EOT, NES, Fixed, Given
from graddiv.attacks.attack import Problem
from graddiv.attacks.view import Held
from graddiv.networks import bayesian
from tests.audit.planted import Linear, examples, margin_radii
from tests.helpers import convnet, global_rng_untouched, no_type_checks


def problem(view: Given | Fixed, b: int = 4) -> Problem:
    x, y = examples(b)
    return Problem(view, x, y, torch.full((b,), 0.1), torch.arange(b), seed=3)


def test_the_estimate_of_a_linear_loss_is_the_gradient_seen_through_its_directions() -> None:
    """(<w, u> u) summed over the signs u that were drawn; whatever the length of the differences."""
    w = torch.linspace(-1, 1, 36)
    linear = Given([lambda x: torch.stack([-(x.flatten(1) @ w) / 2, x.flatten(1) @ w / 2], 1)])
    here = problem(linear)
    here = Problem(linear, here.x0, torch.zeros(4, dtype=torch.int64), here.epsilon, here.ids, here.seed)
    attack = NES(samples=6)
    found = [attack.estimate(here, here.x0, 2, sigma) for sigma in (0.1, 1.0)]
    signs = [attack._signs(here, 2, j, side).flatten(1) for j, side in enumerate((1, 2, 4, 1, 2, 4))]
    wanted = torch.stack([(u @ w)[:, None] * u for u in signs]).mean(0)
    for estimate in found:
        assert torch.allclose(estimate.flatten(1), wanted, atol=1e-4)


def test_many_queries_find_the_direction_of_the_gradient() -> None:
    here, module = problem(Fixed(Linear())), Linear()
    true = torch.stack(
        [(module.weight - module.weight[y])[_rival(module, x, int(y))] for x, y in zip(here.x0, here.y, strict=True)]
    )
    few, many = (
        torch.cosine_similarity(NES(samples=k).estimate(here, here.x0, 0, 0.1).flatten(1), true, dim=1).mean()
        for k in (6, 300)
    )
    assert few < 0.5 < many


def _rival(module: Linear, x: Tensor, y: int) -> int:
    z = module(x[None])[0].clone()
    z[y] = -torch.inf
    return int(z.argmax())


def test_a_linear_network_falls_at_its_closed_form_without_a_gradient() -> None:
    x, y = examples(40)
    radii, module = margin_radii(x, y), Linear()
    epsilon = float(radii.median())
    with torch.no_grad(), no_type_checks(), global_rng_untouched():  # beartype draws from Python's generator
        x_adv = NES(m=25, samples=40)(module, x, y, epsilon)
        right = module(x_adv).argmax(1) == y
    assert (x_adv - x).abs().max() <= epsilon + 1e-6
    assert right[radii > epsilon].all(), "nothing can fool these"
    assert not right[radii < 0.9 * epsilon].any()


def test_it_goes_on_from_its_start() -> None:
    x, y = examples(8)
    start = (x + 0.05 * torch.sign(torch.randn(x.shape, generator=torch.Generator().manual_seed(0)))).clamp(0, 1)
    moved = NES(m=1, samples=1, alpha=1e-6)(Linear(), x, y, 0.1, start=start)
    assert torch.allclose(moved, start, atol=1e-6)


def test_held_models_stay_for_some_iterations_and_are_pure_in_the_iteration() -> None:
    F = bayesian(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), 0.5)
    x = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    view = Held(F, 2, seed=1, iterations=3)
    with torch.no_grad():
        said = [torch.stack([f(x) for f in view(k)]) for k in range(7)]
        again = torch.stack([f(x) for f in view(1)])
    assert all(torch.equal(said[0], said[k]) for k in (1, 2))
    assert torch.equal(again, said[1])
    assert torch.equal(said[3], said[5])
    assert not torch.equal(said[2], said[3])
    assert [view.renewed(k) for k in range(7)] == [True, False, False, True, False, False, True]
    assert not Held(convnet(), 2).renewed(0), "a network without noise has nothing to renew"
    assert EOT(F, 2).renewed(1)
