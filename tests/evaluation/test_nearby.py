"""Gradients near the examples: told apart from those at the examples, where a network has a kink."""

import pytest
import torch
from torch import Tensor, nn

from graddiv import GradDivError, bayesian
from graddiv.evaluation import Target
from graddiv.evaluation.checks import CHECKS
from graddiv.evaluation.inspection import Inspection
from graddiv.evaluation.jobs import SHARES, concentration_job, displaced, nearby_job
from graddiv.evaluation.run import IN_MEMORY
from graddiv.networks import Dirac
from graddiv.seeding import uniform
from tests.evaluation.common import small_target
from tests.helpers import convnet, images, labels, network

KINK = 0.002


class Kinked(nn.Module):
    """x beside 100 min(x, 0.002): what follows it has steep and noisy gradients on black images alone."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.flatten(1), 100 * x.flatten(1).clamp(max=KINK)], 1)


def kinked_target() -> Target:
    head = nn.Linear(72, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0], [-1.0]]) * (torch.arange(72) < 36))
    return Target.of(bayesian(nn.Sequential(Kinked(), head), 0.1), torch.zeros(4, 1, 6, 6), labels(4) % 2, n_ensemble=2)


def test_a_kink_at_the_examples_is_seen_and_its_width_too() -> None:
    [record] = IN_MEMORY.run([nearby_job(kinked_target(), epsilon=10.0 * KINK, n=10, shares=(0.0, 0.05, 1.0))])
    at, inside, beyond = record.rho.mean(0)
    assert at < 0.3
    assert inside < 0.3
    assert beyond > 0.5  # a tenth of the pixels still moves by less than the kink is wide
    assert record.length.mean(0)[0] > 3 * record.length.mean(0)[2]
    assert "at 0," in record.summary
    assert "at 0.02" in record.summary


def test_the_check_warns_of_a_kink_and_of_nothing_else() -> None:
    target = kinked_target()
    item = CHECKS["kink"](Inspection(target.F, *target.examples(slice(0, 4))[:2]))
    assert item.verdict == "warn"
    assert item.evidence["cosine_around_them"] > item.evidence["cosine_at_images"] + 0.15
    assert "in a kink at the images alone" in item.sentence
    noisy = Inspection(network("bayesian"), images(4), labels(4))
    assert CHECKS["kink"](noisy).verdict == "pass"
    alone = CHECKS["kink"](Inspection(Dirac(convnet()), images(4), labels(4)))
    assert (alone.verdict, alone.evidence) == ("pass", {})


def test_at_distance_0_it_is_the_concentration_of_the_same_models() -> None:
    target = small_target(b=5)
    [near] = IN_MEMORY.run([nearby_job(target, epsilon=0.3, n=6)])
    [here] = IN_MEMORY.run([concentration_job(target, n=6)])
    assert near.distances == [share * 0.3 for share in SHARES]
    assert near.mean_cosine[:, 0] == pytest.approx(here.mean_cosine, rel=1e-5)


def test_points_lie_within_the_distance_and_leave_the_bounds_of_the_box() -> None:
    x = torch.cat([torch.zeros(2, 1, 6, 6), torch.ones(2, 1, 6, 6), images(2, dtype=torch.float32)])
    u = uniform(0, torch.arange(6), 36).reshape(x.shape)
    moved = displaced(x, u, 0.1)
    assert (moved - x).abs().max() <= 0.1 + 1e-6
    assert ((moved > 0) & (moved < 1)).all()
    assert torch.equal(displaced(x, u, 0.0), x)


def test_one_gradient_has_nothing_to_agree_with() -> None:
    with pytest.raises(GradDivError, match="n is 1, expected at least 2 gradients"):
        nearby_job(small_target(), epsilon=0.1, n=1)
