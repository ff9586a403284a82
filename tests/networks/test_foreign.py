"""`randomize` on real foreign modules: MC dropout, random transforms, torchbnn, bayesian-torch."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from graddiv import GradDivError, randomize
from graddiv.networks import Theta, running_statistics
from graddiv.seeding import isolated
from tests.helpers import CLASSES, convnet, images, labels


class RandomResize(nn.Module):
    """A random input transform that draws from all three global states, one draw for the whole batch."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        shift = random.choice([-1, 0, 1]), int(np.random.randint(-1, 2))
        logits: Tensor = self.module(x.roll(shift, (2, 3)) + 0.05 * torch.randn(x.shape[1:], dtype=x.dtype))
        return logits


class WithKL(nn.Module):
    """bayesian-torch's convention: every layer, and the network, returns (output, kl)."""

    def __init__(self) -> None:
        super().__init__()
        layers = pytest.importorskip("bayesian_torch.layers")
        self.conv = layers.Conv2dReparameterization(1, 3, 3, padding=1)
        self.linear = layers.LinearReparameterization(108, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, kl = self.conv(x)
        logits, kl_linear = self.linear(nn.functional.softplus(x).flatten(1))
        return logits, kl + kl_linear


def torchbnn_network() -> nn.Module:
    bnn = pytest.importorskip("torchbnn")
    return nn.Sequential(
        *(bnn.BayesConv2d(prior_mu=0, prior_sigma=0.1, in_channels=1, out_channels=3, kernel_size=3, padding=1),),
        *(bnn.BayesBatchNorm2d(prior_mu=0, prior_sigma=0.1, num_features=3), nn.Softplus(), nn.Flatten()),
        bnn.BayesLinear(prior_mu=0, prior_sigma=0.1, in_features=108, out_features=CLASSES),
    )


FOREIGN = {
    "mc-dropout": lambda: nn.Sequential(*convnet(batch_norm=True)[:-1], nn.Dropout(0.4), nn.Linear(36, CLASSES)),
    "channel dropout": lambda: nn.Sequential(nn.Dropout2d(0.5), *convnet()),
    "random transform": lambda: RandomResize(convnet()),
    "torchbnn": torchbnn_network,
    "bayesian-torch": WithKL,
}


def build(name: str) -> nn.Module:
    with isolated(1):
        return FOREIGN[name]().double().eval()


@pytest.mark.parametrize("name", FOREIGN)
def test_a_seed_makes_it_a_function_and_seeds_differ(name: str) -> None:
    F, x = randomize(build(name)), images(6)
    f, g = F.sample(2, 0)
    first = f(x)
    g(x)
    assert torch.equal(f(x), first)
    assert first.shape == (6, CLASSES)
    assert not torch.allclose(first, g(x))


@pytest.mark.parametrize("name", FOREIGN)
def test_pointwise_is_found_by_test(name: str) -> None:
    F, x = randomize(build(name)), images(6)
    assert not F.pointwise  # unknown: never regroup
    f = F.bind(0)
    f(x)
    assert F.pointwise == (name not in ("mc-dropout", "channel dropout"))
    assert torch.allclose(f(x[2:]), f(x)[2:]) == F.pointwise


@pytest.mark.parametrize("name", FOREIGN)
def test_modes_and_buffers_are_left_alone(name: str) -> None:
    module, x = build(name), images(6)
    modes = [m.training for m in module.modules()]
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    randomize(module).bind(3)(x)
    assert [m.training for m in module.modules()] == modes
    for name, b in module.named_buffers():  # bayesian-torch leaves its noise buffers uninitialised, perhaps NaN
        assert np.array_equal(b.numpy(), buffers[name].numpy(), equal_nan=True)


def test_dropout_draws_while_batch_norm_is_in_eval_mode() -> None:
    module, x = build("mc-dropout"), images(64)
    F = randomize(module)
    assert torch.equal(module(x), module(x))  # plain eval mode: no randomness at all
    mean = torch.stack([f(x) for f in F.sample(300, 0)]).mean(0)
    assert torch.allclose(mean, module(x), atol=0.1)  # dropout is unbiased before the last, linear layer
    assert (F.bind(0)(x) - module(x)).abs().max() > 0.1


def test_in_training_batch_norm_moves_its_statistics_unless_told_not_to() -> None:
    module, x = build("mc-dropout").train(), images(8)
    F, norm = randomize(module), module[1]
    F.bind(0)(x)
    assert norm.num_batches_tracked == 1
    with running_statistics(F):
        F.bind(0)(x)
    assert norm.num_batches_tracked == 1


@pytest.mark.parametrize("name", FOREIGN)
def test_gradients_with_several_models_alive_match_finite_differences(name: str) -> None:
    """bayesian-torch writes its noise into one buffer: with graphs alive its own sigma gradients are silently wrong."""
    F, x, y = randomize(build(name)), images(4), labels(4)
    names, theta = zip(*F.module.named_parameters(), strict=True)
    F.bind(0)(x)

    def loss(*values: Tensor) -> Tensor:
        models = [F.bind(seed, Theta(dict(zip(names, values, strict=True)))) for seed in range(3)]
        return torch.stack([nn.functional.cross_entropy(f(x), y) for f in models]).sum()

    assert gradcheck(loss, theta, fast_mode=True)


def test_layers_that_draw_only_in_train_mode_can_be_named() -> None:
    class FunctionalDropout(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.5, training=self.training)

    module, x = nn.Sequential(nn.Flatten(), FunctionalDropout(), nn.Linear(36, CLASSES)).double().eval(), images(4)
    asleep, awake = randomize(module), randomize(module, active=(FunctionalDropout,))
    assert torch.equal(asleep.bind(0)(x), asleep.bind(1)(x))
    assert not torch.equal(awake.bind(0)(x), awake.bind(1)(x))


def test_bad_input() -> None:
    with pytest.raises(GradDivError) as error:
        randomize(nn.Identity()).bind(0)(images(4))
    assert "Identity returned (4, 1, 6, 6) for 4 inputs, expected logits of shape (4, classes)" in str(error.value)
    with pytest.raises(GradDivError, match="ForeignNetwork is a RandomizedNetwork already"):
        randomize(randomize(convnet()))


def test_pointwise_is_not_settled_by_a_batch_of_one() -> None:
    class Coupled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x - x.mean(0)).flatten(1)

    F = randomize(Coupled())
    F.bind(0)(images(1))
    assert not F.pointwise
    F.bind(0)(images(5))
    assert not F.pointwise
