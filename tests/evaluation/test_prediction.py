import pytest
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from graddiv.attacks import EOT, PGD, as_view
from graddiv.diversity import loss_increase
from graddiv.diversity.concentration import moments
from graddiv.evaluation import Target
from graddiv.evaluation.jobs import concentration_job
from graddiv.evaluation.run import IN_MEMORY
from graddiv.networks import Noise, RandomizedNetwork, Theta
from graddiv.networks.prediction import count_models, models_of, predict
from tests.helpers import KINDS, convnet, images, labels, network

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_models_are_constants_and_leave_the_gradient_mode_to_their_consumer(kind: str) -> None:
    F, x, weight = network(kind), images(2), torch.ones((), requires_grad=True)
    for f in models_of(F, 2, 0):
        assert torch.is_grad_enabled()
        z = f(x)
        assert not z.requires_grad
        (weight * z).sum().backward()
    assert weight.grad is not None
    assert all(p.grad is None for p in F.parameters())
    with torch.no_grad():
        for _ in models_of(F, 2, 0):
            assert not torch.is_grad_enabled()


@every_kind
def test_what_is_computed_from_them_holds_no_graph(kind: str) -> None:
    """Even where the images themselves ask for gradients."""
    F, x, y = network(kind), images(3).requires_grad_(), labels(3)
    assert not predict(F, x, n=2).scores.requires_grad
    assert not loss_increase(models_of(F, 2, 0), x, y, torch.zeros_like(x)).requires_grad
    found = moments(models_of(F, 2, 0), x, y)
    assert not any(value.requires_grad for value in found[1:] if isinstance(value, Tensor))


@every_kind
def test_models_are_counted_before_they_are_drawn(kind: str) -> None:
    F = network(kind)
    for n in (1, 2, 3, 12):
        assert count_models(F, n) == len(list(models_of(F, n, 0)))


class Doubled(RandomizedNetwork):
    """A deterministic network that is not a Dirac: f(x) = module(x) with its weights doubled."""

    random = False

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> Noise:
        return {}

    def realise(self, noise: Noise, theta: Theta) -> dict[str, Tensor]:
        return {name: 2 * value for name, value in theta.parameters.items()}


def test_any_network_may_say_that_it_is_deterministic() -> None:
    F, x, y = Doubled(convnet(nn.ReLU)), images(3), labels(3)
    f = F.bind(F.draw(0))
    assert torch.equal(predict(F, x, n=5).answers, f(x).argmax(1)[None])
    view = EOT(F, 10)
    attack = PGD(m=2)
    assert torch.equal(attack(view, x, y, 0.1), attack(as_view(F), x, y, 0.1))
    assert (view.n, view.fresh, view.label("PGD"), view.cost.draws) == (1, False, "PGD", 0)
    target = Target.of(F, x, y)
    assert not target.random
    [record] = IN_MEMORY.run([concentration_job(target)])
    assert (record.mean_cosine == 1).all()
