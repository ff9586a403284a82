"""Odd arguments of attacks and of `evaluate`: taken as they are meant, or refused by name."""

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from graddiv.attacks import APGD, BB, EOT, FAB, FGSM, PGD, Attack, Given, Square
from graddiv.data import load
from graddiv.errors import GradDivError
from graddiv.evaluation import evaluate, predict
from graddiv.networks import Dirac, bayesian, randomize
from graddiv.networks.inputs import logits_of
from tests.helpers import convnet, global_rng_untouched, images, labels, no_type_checks

ATTACKS = (FGSM(), PGD(m=4), APGD(m=2), Square(m=3), FAB(m=2), BB(m=2))
X, Y = images(4).float(), labels(4)


def network() -> nn.Module:
    return convnet().float()


def evaluated(F: nn.Module, x: Any, y: Any = None, **settings: Any) -> list[Any]:
    common = {"epsilon": 0.1, "attacks": [PGD(m=2)], "n": 2, "n_ensemble": 2}
    with no_type_checks():
        return evaluate(F, x, y, **{**common, **settings})


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attacks_take_tensors_with_a_history(attack: Attack) -> None:
    f, expected = network(), None
    with torch.inference_mode():
        inferred = X.clone(), Y.clone()
    for x, y in ((X, Y), (X.clone().requires_grad_(), Y), inferred):
        found = attack(f, x, y, 0.1)
        assert not found.requires_grad
        expected = found if expected is None else expected
        assert torch.equal(found, expected)


class Changed(nn.Module):
    """A network whose output is not what it should be."""

    def __init__(self, change: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.module, self.change = network(), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.module(x))


WRONG_OUTPUTS = {
    "one class": (lambda z: z[:, :1], "the network has 1 class, expected at least 2"),
    "no class": (lambda z: z[:, :0], "the network has 0 classes"),
    "one dimension": (lambda z: z.argmax(1), r"returned \(4,\) for 4 inputs, expected logits of shape \(4, classes\)"),
    "integers": (lambda z: z.long(), "returned outputs of torch.int64, expected floating-point logits"),
    "a dictionary": (lambda z: {"out": z}, r"returned dict with out for 4 inputs, .*; lambda x: model\(x\)\[NAME\]"),
    "an image": (lambda z: z[..., None], r"returned \(4, \d+, 1\) for 4 inputs"),
}


@pytest.mark.parametrize("wrong", WRONG_OUTPUTS)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_outputs_that_are_no_logits_are_refused(attack: Attack, wrong: str) -> None:
    change, message = WRONG_OUTPUTS[wrong]
    for view in (Changed(change), Given([Changed(change)])):
        with no_type_checks(), pytest.raises(GradDivError, match=re.sub(r"\b4\b", "[24]", message)):
            attack(view, X, Y, 0.1)


@pytest.mark.parametrize(
    "change",
    [
        lambda z: (z, z.sum()),
        lambda z: [z, z.sum()],
        lambda z: {"features": z[:, :1], "logits": z},
        lambda z: SimpleNamespace(logits=z, loss=None),
    ],
)
def test_logits_may_come_first_in_a_tuple_or_by_name(change: Callable[[Tensor], object]) -> None:
    f = Changed(change)
    assert torch.equal(PGD(m=2)(f, X, Y, 0.1), PGD(m=2)(f.module, X, Y, 0.1))
    assert torch.equal(PGD(m=2)(Given([f]), X, Y, 0.1), PGD(m=2)(f.module, X, Y, 0.1))


@pytest.mark.filterwarnings("ignore::graddiv.errors.GradDivWarning")  # finite differences see the rounding
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_in_half_precision_are_taken_in_float32(dtype: torch.dtype) -> None:
    f = Changed(lambda z: z.to(dtype))
    assert logits_of(f(X), "f", 4).dtype == torch.float32
    assert evaluated(f, X, Y)[1].examples == 4


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_network_without_gradients_is_refused_by_those_who_need_them(attack: Attack) -> None:
    for change in (torch.Tensor.detach, lambda z: torch.zeros_like(z, requires_grad=True)):
        if isinstance(attack, Square):
            attack(Changed(change), X, Y, 0.1)
        else:
            with pytest.raises(GradDivError, match=r"no gradient with respect to its input.* attack it with Square"):
                attack(Changed(change), X, Y, 0.1)


@pytest.mark.parametrize(
    ("f", "x", "message"),
    [
        (network(), X.double(), "x is of torch.float64 and the network of torch.float32: convert x to that type"),
        (network().double(), X, "x is of torch.float32 and the network of torch.float64"),
        (network(), X.half(), "x is of torch.float16, expected float32 or float64: convert it with x.float()"),
        (network(), X.bfloat16(), "x is of torch.bfloat16, expected"),
        (network(), (255 * X).byte(), "x is of torch.uint8, expected"),
        (network().half(), X, "the network has parameters of torch.float16, in which small steps"),
        (network().bfloat16(), X, "the network has parameters of torch.bfloat16"),
        (network(), X.to("meta"), "x lies on meta and y on cpu"),
        (network(), X.double().numpy(), "x is of torch.float64 and the network of torch.float32"),
        (network(), [X.tolist(), [1.0]], "x holds what is no rectangle of numbers, expected numbers"),
        (network(), None, "x is of type NoneType, expected a tensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_types_and_devices_are_checked_at_the_door(f: nn.Module, x: Any, message: str) -> None:
    for attack in ATTACKS:
        with no_type_checks(), pytest.raises(GradDivError, match=message):
            attack(EOT(f, 1), x, Y, 0.1)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_images_of_another_shape_are_named(attack: Attack) -> None:
    message = r"cannot be called with images of shape \(3, 6, 6\): "
    for view in (network(), EOT(bayesian(network(), 0.1), 2), Given([network()])):
        with no_type_checks(), pytest.raises(GradDivError, match=message):
            attack(view, X.expand(-1, 3, -1, -1), Y, 0.1)


def test_an_error_that_has_nothing_to_do_with_the_images_stays_what_it_is() -> None:
    calls = 0

    def full(z: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("out of memory")
        return z

    with pytest.raises(RuntimeError, match="out of memory"):
        PGD(m=4)(Changed(full), X, Y, 0.1)


@pytest.mark.parametrize(
    ("module", "message"),
    [(nn.Linear, r"is the class Linear, expected .*: Linear\(\)"), (3, "the (network|model) is (of type )?int")],
)
def test_networks_that_are_no_modules(module: Any, message: str) -> None:
    for call in (lambda: PGD(m=1)(module, X, Y, 0.1), lambda: evaluated(module, X, Y), lambda: randomize(module)):
        with no_type_checks(), pytest.raises(GradDivError, match=message):
            call()


def test_networks_of_inference_mode_are_refused() -> None:
    with torch.inference_mode():
        f = network()
    with pytest.raises(GradDivError, match=r"made inside torch\.inference_mode\(\), .*: make it outside"):
        PGD(m=1)(f, X, Y, 0.1)


def records_equal(a: list[Any], b: list[Any]) -> bool:
    return all(
        np.array_equal(p.correct, q.correct) and np.array_equal(p.images, q.images) for p, q in zip(a, b, strict=True)
    )


@pytest.mark.slow
def test_evaluate_takes_images_and_labels_in_every_form(tmp_path: Path) -> None:
    F = bayesian(network(), 0.1)
    expected = evaluated(F, X, Y)
    with torch.inference_mode():
        inferred = X.clone(), Y.clone()
    pairs = TensorDataset(X, Y)
    with global_rng_untouched():
        for x, y in (
            (X.numpy(), Y.numpy()),
            (X.numpy(), Y.numpy().astype(np.int32)),
            (X.double(), Y.tolist()),
            (X.clone().requires_grad_(), Y),
            inferred,
            (pairs, None),
            (torch.utils.data.Subset(pairs, range(4)), None),
            ([(X[:3], Y[:3]), (X[3:], Y[3:])], None),
        ):
            assert records_equal(evaluated(F, x, y), expected)
    assert records_equal(evaluated(F, DataLoader(pairs, 3)), expected)
    half = evaluated(F, X.half(), Y)
    assert records_equal(half, evaluated(F, X.half().float(), Y))
    evaluated(F, X, Y, directory=str(tmp_path / "records"))
    assert list((tmp_path / "records").glob("*.record"))


def test_evaluate_takes_a_data_set_of_the_package() -> None:
    data = load("mnist-mini", "test").take(slice(0, 3))
    f = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    (clean, attacked) = evaluated(f, data)
    assert clean.data.name == attacked.data.name == "mnist-mini"
    assert attacked.examples == 3
    with pytest.raises(GradDivError, match="x is a data set, which has its own labels: leave y out"):
        evaluated(f, data, Y)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ((255 * X).byte(), Y, "x lies in .* divide x by 255"),
        (X[:, :, :3], Y, r"the network cannot be called with images of shape \(1, 3, 6\): "),
        (X, Y.float().numpy(), "y has type torch.float32"),
        (X.to("meta"), Y, "on the device meta"),
        (X, Y - 9, "y holds the label -\\d+, expected classes from 0 on"),
        (3, None, "x is int, expected a tensor"),
        ([("a", "b")], None, "x is of type str, expected a tensor"),
        (TensorDataset(X), None, "x holds tuple items, expected pairs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_evaluate_refuses_what_it_cannot_use(x: Any, y: Any, message: str) -> None:
    with pytest.raises(GradDivError, match=message):
        evaluated(network(), x, y)


def test_evaluate_refuses_networks_that_are_none() -> None:
    with pytest.raises(GradDivError, match=r"the network has parameters of torch\.float16"):
        evaluated(network().half(), X, Y)
    for change, message in WRONG_OUTPUTS.values():
        with pytest.raises(GradDivError, match=re.sub(r"\b4\b", "[12]", message)):
            evaluated(Changed(change), X, Y)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_results_lie_within_epsilon_in_exact_arithmetic(attack: Attack) -> None:
    f, x = network(), images(20).float()
    x = torch.cat([x, (x * 255).round() / 255, x.round()])
    y = predict(Dirac(f), x).label
    for epsilon in (0.3, 0.1, 8 / 255):
        found = attack(f, x, y, epsilon)
        pairs = zip(found.flatten().tolist(), x.flatten().tolist(), strict=True)
        assert max(abs(Fraction(a) - Fraction(b)) for a, b in pairs) <= Fraction(epsilon)
        assert (found - x).abs().max() > 0.99 * epsilon


def test_foreign_networks_are_checked_likewise() -> None:
    F = randomize(nn.Sequential(network(), nn.Dropout(0.2)))
    assert PGD(m=1)(EOT(F, 2), X, Y, 0.1).shape == X.shape
    with no_type_checks(), pytest.raises(GradDivError, match="the network has 1 class"):
        PGD(m=1)(EOT(randomize(Changed(lambda z: z[:, :1])), 2), X, Y, 0.1)
