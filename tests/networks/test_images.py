import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate, pad

from graddiv import GradDivError, mixup_inference, random_crops, resize_and_pad
from graddiv.networks import TransformNetwork, vgg16
from graddiv.networks.prediction import predict
from tests.helpers import CLASSES, SHAPE, convnet, images, no_type_checks


class Seen(nn.Module):
    """Hands the transformed image out as if it were logits."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.one * x).flatten(1)


def outcome(F: TransformNetwork, i: int, x: torch.Tensor) -> torch.Tensor:
    return F.bind(F.support().noises[i])(x).detach()


@pytest.mark.parametrize("shrink", [False, True])
def test_resizing_is_torchs_bilinear_one_and_the_rest_is_grey(shrink: bool) -> None:
    F, x = resize_and_pad(Seen(), (2, 8, 8), margin=3, shrink=shrink), images(2, shape=(2, 8, 8))
    canvas = 8 if shrink else 11
    for i, (top, left) in enumerate(F.outcomes):
        r = top.size
        resized = interpolate(x, size=(r, r), mode="bilinear", align_corners=False)
        around = (left.to, canvas - r - left.to, top.to, canvas - r - top.to)
        assert torch.allclose(outcome(F, i, x), pad(resized, around, value=0.5).flatten(1))


def test_crops_are_resized_to_the_image() -> None:
    F, x = random_crops(Seen(), (1, 6, 6)), images(2)
    assert len(F.outcomes) == 9
    for i, (top, left) in enumerate(F.outcomes):
        crop = x[:, :, top.start : top.start + 4, left.start : left.start + 4]
        resized = interpolate(crop, size=(6, 6), mode="bilinear", align_corners=False)
        assert torch.allclose(outcome(F, i, x), resized.flatten(1))


def test_the_number_of_outcomes_is_that_of_the_settings_in_use() -> None:
    """DEEPSEC's: CIFAR-10 from 32 to 36, MNIST from 28 to 31."""
    for size, margin, outcomes in ((32, 4, 54), (28, 3, 29)):
        assert len(resize_and_pad(Seen(), (1, size, size), margin=margin).support().noises) == outcomes
    assert len(resize_and_pad(Seen(), (1, 28, 28), margin=4, shrink=True).support().noises) == 55


def test_sizes_are_equally_likely_then_places() -> None:
    support, F = resize_and_pad(Seen(), SHAPE, margin=2).support(), resize_and_pad(Seen(), SHAPE, margin=2)
    by_size: dict[int, float] = {}
    for (top, _), p in zip(F.outcomes, support.probabilities.tolist(), strict=True):
        by_size[top.size] = by_size.get(top.size, 0.0) + p
    assert by_size == pytest.approx({6: 0.5, 7: 0.5})


def test_probabilities_sum_to_one_in_double_precision() -> None:
    for shrink in (False, True):
        p = resize_and_pad(Seen(), SHAPE, margin=3, shrink=shrink).support().probabilities
        assert float(p.sum()) == pytest.approx(1, abs=1e-14)


def test_few_equally_likely_crops_are_all_asked() -> None:
    F, x = random_crops(convnet(), SHAPE), images(4)
    exact = torch.stack([F.bind(noise)(x).softmax(1) for noise in F.support().noises]).mean(0)
    assert torch.allclose(predict(F, x, n=20).scores, exact.detach())
    assert predict(resize_and_pad(convnet(), SHAPE, shrink=True, margin=2), x, n=20).answers.shape == (20, 4)


def test_a_convolutional_network_takes_the_larger_canvas() -> None:
    F = resize_and_pad(vgg16(0.05).eval(), (3, 32, 32))
    assert F.bind(F.draw(0))(images(2, shape=(3, 32, 32), dtype=torch.float32)).shape == (2, 10)


def test_mistakes() -> None:
    with pytest.raises(GradDivError, match="margin is 6 for images of 6"):
        resize_and_pad(convnet(), SHAPE, margin=6, shrink=True)
    with pytest.raises(GradDivError, match=r"\(1, 6, 5\), expected \(channels, side, side\)"):
        random_crops(convnet(), (1, 6, 5))
    with pytest.raises(GradDivError, match="names outcome 9 of 9"):
        random_crops(convnet(), SHAPE).bind({"outcome": torch.tensor([9])})
    F = random_crops(convnet(), SHAPE)
    with pytest.raises(GradDivError, match=r"images are \(8, 8\), expected \(6, 6\)"):
        F.bind(F.draw(0))(images(1, shape=(1, 8, 8)))


class Recorder(nn.Module):
    """Predicts the class written in the first pixel and keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.detach())
        return nn.functional.one_hot((x[:, 0] * 10).round().long() % CLASSES, CLASSES) * self.weight + x.sum(1, True)


POOL = torch.arange(40).double().reshape(40, 1)  # image i is the number i and has class i % 4
LABELS = torch.arange(40) % CLASSES


def partners(mode: str, predicted: int, draws: int) -> torch.Tensor:
    """The pool images mixed in, over many draws, for an x predicted as `predicted`."""
    F = mixup_inference(Recorder(), (POOL, LABELS), lam=0.6, partners=mode)  # type: ignore[arg-type]
    x = torch.full((1, 1), predicted / 10).double()
    for f in F.sample(draws, 0):
        f(x)
    mixed = torch.cat(F.module.seen[1::2]).squeeze(1)
    return ((mixed - 0.6 * predicted / 10) / 0.4).round().long()


@pytest.mark.slow
def test_other_label_draws_uniformly_from_every_class_but_the_predicted_one() -> None:
    for predicted in range(CLASSES):
        counts = (partners("OL", predicted, 240) % CLASSES).bincount(minlength=CLASSES)
        assert counts[predicted] == 0
        others = counts[torch.arange(CLASSES) != predicted]
        assert ((others - 80).abs() < 34).all()  # 4.7 standard deviations


def test_predicted_label_draws_from_the_predicted_class_every_image_of_it() -> None:
    drawn = partners("PL", 2, 400)
    assert (drawn % CLASSES == 2).all()
    assert len(drawn.unique()) == 10


def test_the_gradient_is_lam_times_that_at_the_mixture() -> None:
    module, x = convnet(), images(3).requires_grad_()
    F = mixup_inference(module, (images(8, 1), torch.arange(8) % CLASSES), lam=0.6)
    noise = F.draw(0)
    (g,) = torch.autograd.grad(F.bind(noise)(x).logsumexp(1).sum(), x)
    predicted = module(x).argmax(1)
    chosen = noise["choice"] + (noise["choice"] >= predicted)
    rows = noise["partner"][0, chosen]
    mixed = (0.6 * x + 0.4 * F.pool[rows]).detach().requires_grad_()
    (at_mixture,) = torch.autograd.grad(module(mixed).logsumexp(1).sum(), mixed)
    assert torch.allclose(g, 0.6 * at_mixture)


def test_bad_arguments() -> None:
    with pytest.raises(GradDivError, match="lam is 0"):
        mixup_inference(convnet(), (POOL, LABELS), lam=0.0)
    with pytest.raises(GradDivError, match="unknown partners 'XL'"), no_type_checks():
        mixup_inference(convnet(), (POOL, LABELS), partners="XL")  # type: ignore[arg-type]
    with pytest.raises(GradDivError, match="40 images and 39 labels"), no_type_checks():
        mixup_inference(convnet(), (POOL, LABELS[1:]))
    with pytest.raises(GradDivError, match=r"\[10, 0, 10\] images of the classes 0\.\.2"):
        mixup_inference(convnet(), (POOL[::2], LABELS[::2]))
    with pytest.raises(GradDivError, match=r"images are torch\.uint8, expected floats"), no_type_checks():
        mixup_inference(convnet(), (POOL.byte(), LABELS))
    with pytest.raises(GradDivError, match="none below 0"):
        mixup_inference(convnet(), (POOL, LABELS - 1))


def test_noise_of_a_network_with_a_larger_pool_is_refused() -> None:
    large, small = (mixup_inference(convnet(), (POOL[:n], LABELS[:n])) for n in (40, 4))
    with pytest.raises(GradDivError, match=r"noise names partner \d+ of 4"):
        small.bind(large.draw(3))
