import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor, nn

from graddiv import GradDivError, pixeldp, smoothing
from graddiv.attacks import EOT, PGD
from graddiv.evaluation import Target
from graddiv.evaluation.jobs import ABSTAIN, certificate_job, certify, votes
from graddiv.evaluation.run import IN_MEMORY
from graddiv.geometry import L2
from graddiv.networks import Normalize, bayesian
from graddiv.seeding import fold, isolated
from tests.helpers import SHAPE, convnet, images, network


def linear(weight: Tensor, bias: float = 0.0) -> nn.Module:
    """Logits (0, <w, x> + bias)."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(weight.numel(), 2)).double()
    with torch.no_grad():
        module[1].weight[0], module[1].weight[1] = 0, weight.flatten()
        module[1].bias[0], module[1].bias[1] = 0, bias
    return module


@pytest.mark.slow
def test_the_radius_of_a_linear_classifier_is_its_distance_from_the_boundary() -> None:
    """There P(vote) = Phi(distance / sigma), so with the exact share the certificate is tight; a bound falls short."""
    w = torch.randn(36, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x, sigma = images(40), 0.5
    bias = -float((x.flatten(1) @ w).mean())
    F = smoothing(linear(w, bias), SHAPE, sigma=sigma)
    distance = (x.flatten(1) @ w + bias).abs() / w.norm()
    found = certify(F, x, n=3000, seed=1)
    assert (found.radius <= distance).all(), "a certificate beyond the boundary would be wrong"
    p = torch.special.ndtr(distance / sigma)
    clear = (p > 0.6) & (p < 0.99)
    assert clear.sum() > 5
    assert (found.radius[clear] > distance[clear] - 0.15 * sigma).all()
    truth = (x.flatten(1) @ w + bias > 0).long()
    said = found.label != ABSTAIN
    assert torch.equal(found.label[said], truth[said])


def test_the_share_is_the_lower_bound_of_clopper_and_pearson() -> None:
    F, x = smoothing(convnet(), SHAPE, sigma=1.0), images(6)
    found = certify(F, x, n=50, choosing=20, alpha=0.05, seed=3)
    winner = votes(F, x, 20, fold(3, "choosing")).argmax(1)
    counts = votes(F, x, 50, fold(3, "counting")).gather(1, winner[:, None]).squeeze(1)
    for k, share in zip(counts.tolist(), found.share.tolist(), strict=True):
        bound = binomtest(k, 50, alternative="greater").proportion_ci(0.95, method="exact").low
        assert share == pytest.approx(bound)


@pytest.mark.slow
def test_the_certificate_is_wrong_as_seldom_as_it_says() -> None:
    """On a classifier whose share is known, over many repetitions of a certificate at alpha 0.1."""
    w = torch.ones(36, dtype=torch.float64)
    x = images(1)
    bias = -float(x.sum()) + 3.0
    F = smoothing(linear(w, bias), SHAPE, sigma=1.0)
    true = float(torch.special.ndtr(torch.tensor(3.0 / 6.0)))
    wrong = sum(float(certify(F, x, n=30, choosing=5, alpha=0.1, seed=s).share) > true for s in range(200))
    assert wrong <= 200 * 0.1 + 3 * np.sqrt(200 * 0.1 * 0.9)


def test_the_vote_abstains_where_the_first_two_may_be_equal() -> None:
    F, x = network("smoothing"), images(5)
    counts = votes(F, x, 40, 0)
    assert (counts.sum(1) == 40).all()
    torn = smoothing(linear(torch.ones(36, dtype=torch.float64), -18.0), SHAPE, sigma=5.0)
    assert (certify(torn, torch.full((2, *SHAPE), 0.5, dtype=torch.float64), n=200).label == ABSTAIN).all()
    sure = smoothing(linear(torch.ones(36, dtype=torch.float64), 100.0), SHAPE, sigma=0.1)
    assert (certify(sure, x, n=20).label == 1).all()
    assert (certify(sure, x, n=5).label == ABSTAIN).all(), "five votes are not enough at one in a thousand"


@pytest.mark.slow
def test_no_attack_beats_the_certificate() -> None:
    F, x = smoothing(convnet(nn.ReLU), SHAPE, sigma=0.5), images(8)
    found = certify(F, x, n=1000, seed=1)
    certified = found.radius > 0
    assert certified.any()
    x, label, radius = x[certified], found.label[certified], found.radius[certified]
    x_adv = PGD(geometry=L2(), m=20)(EOT(F, 10), x, label, 0.95 * radius)
    assert (votes(F, x_adv, 1000, 9).argmax(1) == label).all()


def test_the_first_layer_of_pixeldp_is_no_expansion() -> None:
    """|h(x + d) - h(x)| <= |d|: measured, and by the singular values of the whole linear map."""
    with isolated(0):
        module = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(27, 4)).double()
    F = pixeldp(module, SHAPE, sigma=0.02)
    first = module[0]

    def h(x: Tensor) -> Tensor:
        return torch.func.functional_call(first, {"noise": torch.zeros(1, 3, 3, 3, dtype=x.dtype)}, (x,)).flatten(1)

    jacobian = torch.autograd.functional.jacobian(lambda x: h(x)[0], torch.zeros(1, *SHAPE, dtype=torch.float64))
    norm = torch.linalg.matrix_norm(jacobian.reshape(27, 36), ord=2)
    assert 0.2 < float(norm) <= 1
    assert F.sigma == 0.02
    assert certify(F, images(3), n=200).radius.max() > 0


def test_pixeldp_wants_a_convolution_first() -> None:
    for module in (
        nn.Sequential(Normalize([0.5], [0.25]), *convnet()).double(),
        nn.Sequential(nn.Flatten(), nn.Linear(36, 4)),
        nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), nn.Flatten()),
    ):
        with pytest.raises(GradDivError, match="does not begin with a convolution that pads with zeros"):
            pixeldp(module, SHAPE)
    with pytest.raises(GradDivError, match=r"input_shape is \(3, 6, 6\)"):
        pixeldp(convnet(), (3, 6, 6))
    with pytest.raises(GradDivError, match="sigma is 0"):
        smoothing(convnet(), SHAPE, sigma=0.0)


def test_other_networks_vote_but_certify_nothing() -> None:
    F, x = bayesian(convnet(), 1e-3), images(3)
    found = certify(F, x, n=60)
    assert (found.radius == 0).all()
    assert (found.label != ABSTAIN).any()
    with pytest.raises(
        GradDivError, match=r"n is 0, choosing 100 and alpha 0\.001, expected at least one draw of each"
    ):
        certify(F, x, n=0)


def test_a_class_must_be_chosen_by_someone() -> None:
    F, x, y = network("smoothing"), images(3), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(GradDivError, match=r"n is 60, choosing 0 and alpha 0\.001, expected at least one draw of each"):
        certify(F, x, n=60, choosing=0)
    with pytest.raises(GradDivError, match="choosing 0"):
        certificate_job(Target.of(F, x, y), draws=60, choosing=0)


def test_the_record_says_what_is_certified() -> None:
    F, x = smoothing(convnet(nn.ReLU), SHAPE, sigma=0.5), images(8)
    y = votes(F, x, 200, 5).argmax(1)
    [record] = IN_MEMORY.run([certificate_job(Target.of(F, x, y, seed=4), draws=300)])
    assert record.sigma == 0.5
    assert record.accuracy() >= record.accuracy(0.2) >= record.accuracy(5.0) == 0
    assert record.accuracy() == pytest.approx(float(((record.label == y.numpy()) & (record.label >= 0)).mean()))
    assert "proved at l2 radius 0.25" in record.summary
