import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from graddiv import GradDiv, GradDivError
from graddiv.diversity import directions, input_gradient
from graddiv.evaluation import Target
from graddiv.evaluation.jobs import concentration_job
from graddiv.evaluation.run import IN_MEMORY
from graddiv.networks import EnsembleNetwork, adp_diversity, ensemble
from graddiv.networks.ensemble import _features, _hidden_layers, distilled, dverge_losses
from graddiv.networks.prediction import predict
from tests.helpers import convnet, images, labels, siblings


def of(k: int, probabilities: list[float] | None = None) -> EnsembleNetwork:
    return ensemble(siblings(convnet(), k), probabilities)


def test_each_value_of_the_noise_is_a_member() -> None:
    F, x = of(3), images(4)
    for noise, member in zip(F.support().noises, F.members, strict=True):
        assert torch.equal(F.bind(noise)(x), member(x))


def test_the_prediction_is_the_exact_mean_over_members() -> None:
    F, x = of(3), images(4)
    said = predict(F, x, n=20, seed=5)
    assert torch.allclose(said.scores, torch.stack([f(x).softmax(1) for f in F.members]).mean(0))
    assert said.answers.shape == (3, 4)
    assert predict(F, x, n=2).answers.shape == (2, 4), "two draws cannot be all three members"


def test_unequal_probabilities() -> None:
    F, x = of(2, [0.9, 0.1]), images(4)
    drawn = torch.stack([F.draw(seed)["member"] for seed in range(1000)])
    assert 0.07 < float((drawn == 1).double().mean()) < 0.13
    assert F.support().probabilities.tolist() == pytest.approx([0.9, 0.1])
    assert predict(F, x, n=50).answers.shape == (50, 4), "drawn, as equal weights would be wrong"


def test_concentration_is_that_of_the_distinct_members() -> None:
    F, x, y = of(3), images(4), labels(4)
    [record] = IN_MEMORY.run([concentration_job(Target.of(F, x, y), n=20)])
    v = directions(torch.stack([input_gradient(f, x, y)[1] for f in F.members])).v
    cosines = torch.stack([(v[i] * v[j]).sum(1) for i, j in itertools.combinations(range(3), 2)])
    assert torch.allclose(torch.from_numpy(record.mean_cosine).double(), cosines.mean(0), atol=1e-6)


def test_gal_is_smoothmax_over_the_pairs_of_members() -> None:
    F, x, y = of(3), images(4), labels(4)
    v = directions(torch.stack([input_gradient(f, x, y)[1] for f in F.members])).v
    pairs = torch.stack([(v[i] * v[j]).sum(1) for i, j in itertools.combinations(range(3), 2)])
    gal = pairs.exp().sum(0).log().mean()
    for n in (3, 7):  # more than there are members changes nothing
        R = GradDiv("smoothmax", 1.0, n)(F, x, y, step=4)
        assert R.item() == pytest.approx(float(gal) + math.log(2))


def test_adp_rewards_entropy_and_members_that_disagree_on_the_wrong_classes() -> None:
    y = torch.tensor([0])
    alike = torch.tensor([5.0, 1.0, 0.0, 0.0]).repeat(2, 1, 1)
    other = torch.stack([torch.tensor([[5.0, 9.0, 0.0, 0.0]]), torch.tensor([[5.0, 0.0, 9.0, 0.0]])])
    volume = adp_diversity(other, y, 0.0, 1.0)
    assert adp_diversity(alike, y, 0.0, 1.0) < -10 < volume
    p = other.double().softmax(2)[:, 0, 1:]
    M = (p / p.norm(dim=1, keepdim=True)).T
    assert float(volume) == pytest.approx(float(torch.logdet(M.T @ M + 1e-6 * torch.eye(2))))
    assert float(adp_diversity(torch.zeros(2, 1, 4), y, 1.0, 0.0)) == pytest.approx(math.log(4))
    with pytest.raises(GradDivError, match="4 members and 4 classes"):
        adp_diversity(torch.zeros(4, 1, 4), y)


def test_adp_can_be_differentiated_where_members_are_equal_and_sure() -> None:
    z = torch.tensor([100.0, 0.0, 0.0, 0.0]).repeat(2, 3, 1).requires_grad_()
    adp_diversity(z, torch.zeros(3, dtype=torch.int64)).sum().backward()
    assert torch.isfinite(z.grad).all()


def test_distilled_images_look_like_the_source_and_have_the_features_of_the_target() -> None:
    module, source, target = convnet(), images(4), images(4, seed=1)
    layer = _hidden_layers(module)[0]
    x = distilled(module, layer, source, target, 0.1, 10)
    assert (x - source).abs().max() <= 0.1 + 1e-9
    assert x.min() >= 0
    assert x.max() <= 1

    def gap(z: torch.Tensor) -> torch.Tensor:
        return (_features(module, layer, z) - _features(module, layer, target)).square().flatten(1).sum(1)

    assert (gap(x) < gap(source)).all()
    assert not layer._forward_hooks


def test_dverge_trains_each_member_on_the_weaknesses_of_the_others_alone() -> None:
    F, x, y, target = of(3), images(4), labels(4), images(4, seed=1)
    losses = dverge_losses(F, x, y, target, 1, 0.1, 3)
    layers = [_hidden_layers(member) for member in F.members]
    candidates = []
    for number in range(len(layers[0])):
        made = [distilled(f, own[number], x, target, 0.1, 3) for f, own in zip(F.members, layers, strict=True)]
        total = torch.zeros(4, dtype=torch.float64)
        for i, j in itertools.permutations(range(3), 2):
            total += cross_entropy(F.members[i](made[j]), y, reduction="none") / 3
        candidates.append(total)
    assert sum(torch.allclose(losses, each) for each in candidates) == 1, "one layer was drawn"
    losses.mean().backward()
    assert all(p.grad is not None for p in F.parameters())


@pytest.mark.parametrize(
    ("members", "probabilities", "message"),
    [
        (1, None, "1 members, expected at least two"),
        (2, [0.5, 0.6], r"\[0.5, 0.6\], expected 2 positive numbers that sum to 1"),
        (2, [1.0], "expected 2 positive"),
        (2, [1.0, 0.0], "expected 2 positive"),
    ],
)
def test_mistakes(members: int, probabilities: list[float] | None, message: str) -> None:
    with pytest.raises(GradDivError, match=message):
        of(members, probabilities)


def test_noise_of_a_larger_ensemble_and_random_members_are_refused() -> None:
    with pytest.raises(GradDivError, match="names member 2 of 2"):
        of(2).bind({"member": torch.tensor(2)})
    with pytest.raises(GradDivError, match="a member is a RandomizedNetwork already"):
        ensemble([of(2), convnet()])
    with pytest.raises(GradDivError, match="no hidden convolution"):
        dverge_losses(ensemble([nn.Flatten(), nn.Flatten()]), images(2), labels(2), images(2), 0, 0.07, 10)
