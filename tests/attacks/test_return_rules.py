"""The return rules of the libraries of the paper's time, beside the strong ones."""

import pytest
import torch
from torch import nn

from graddiv.attacks import BB, EOT, FAB
from graddiv.attacks.minimal import MinimalAttack
from graddiv.attacks.suites import as_published, suite
from graddiv.networks import bayesian
from tests.helpers import convnet, images, labels

SIDE = 4


def halves() -> tuple[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bright or dark by the mean pixel: images at known distances from the boundary, and those distances."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 2, dtype=torch.float64))
    with torch.no_grad():
        module[1].weight[0], module[1].weight[1] = -1.0, 1.0
        module[1].bias[0], module[1].bias[1] = 0.5 * SIDE * SIDE, -0.5 * SIDE * SIDE
    distances = torch.tensor([0.02, 0.05, 0.2])
    x = (0.5 + distances.double())[:, None, None, None].expand(3, 1, SIDE, SIDE).clone()
    return module, x, torch.ones(3, dtype=torch.int64), distances


@pytest.mark.parametrize("attack", [FAB(m=20, return_rule="reference"), BB(m=50, return_rule="reference")], ids=str)
def test_a_point_outside_the_radius_is_given_up_or_clipped(attack: MinimalAttack) -> None:
    module, x, y, distances = halves()
    moved = (attack(module, x, y, 0.1) - x).abs().flatten(1).amax(1)
    near = distances < 0.1
    assert torch.allclose(moved[near], distances[near].double(), rtol=0.15), "the nearest point, as it was found"
    assert moved[~near].item() == pytest.approx(0.1 if attack.reference_clips else 0.0)


def test_what_the_first_models_get_wrong_is_not_attacked() -> None:
    module, x, _, _ = halves()
    wrong = torch.zeros(3, dtype=torch.int64)
    assert torch.equal(FAB(m=5, return_rule="reference")(module, x, wrong, 0.3), x)
    assert not torch.equal(FAB(m=5)(module, x, wrong, 0.3), x)


def test_no_other_model_has_to_confirm_the_point() -> None:
    """On a random network the strong rule moves every image; the reference leaves some of them clean."""
    F, x, y = bayesian(convnet(nn.ReLU), 0.3), images(16), labels(16)
    strong, reference = (FAB(m=3, return_rule=rule)(EOT(F, 1), x, y, 0.05) for rule in ("strong", "reference"))
    unmoved = [(x_adv == x).flatten(1).all(1) for x_adv in (strong, reference)]
    assert not unmoved[0].any()
    assert unmoved[1].any()


def test_the_published_suite_differs_in_nothing_else() -> None:
    for strong, published in zip(suite("paper"), suite("published"), strict=True):
        assert published == as_published(strong)
        assert (published == strong) == (strong.name in ("FGSM", "PGD", "Square"))
