import pytest
import torch
from torch import nn

from graddiv import GradDivError, mixup_inference
from tests.helpers import CLASSES, convnet, images, no_type_checks


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
    with pytest.raises(GradDivError, match="partners is 'XL'"), no_type_checks():
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
    with pytest.raises(GradDivError, match=r"noise names image \d+ of a pool of 4"):
        small.bind(large.draw(3))
