"""What a new user gets wrong with `evaluate` or `evaluate_total` is told, by an error or by a warning."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from graddiv import Dirac, GradDivWarning, evaluate, randomize, table_per_epsilon
from graddiv.attacks import FGSM, PGD
from graddiv.errors import GradDivError
from graddiv.evaluation import evaluate_total
from graddiv.geometry import L2
from tests.audit.planted import Blind, FunctionalDropout, Linear, Noisy, Rounded, examples
from tests.helpers import images, labels, network, no_type_checks

HOW = {"epsilon": 0.1, "attacks": "fgsm", "modes": "fixed", "n": 2, "n_ensemble": 2}


def warned(model: object, x: Tensor | None = None) -> list[str]:
    own, y = examples()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        evaluate(model, own if x is None else x, y, **HOW)  # type: ignore[arg-type]
    assert all(w.category is GradDivWarning for w in found)
    return [str(w.message) for w in found]


BOTH = pytest.mark.parametrize("how", [evaluate, evaluate_total])


@BOTH
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"modes": ["EOT"]}, "unknown mode 'EOT', did you mean 'eot'?"),
        ({"modes": []}, "there are 0 modes"),
        ({"attacks": [PGD]}, r"attacks holds the class PGD, expected an attack: PGD\(\)"),
        ({"attacks": ["pdg"]}, "unknown attack 'pdg', did you mean 'pgd'?"),
        ({"attacks": [3]}, "attacks holds 3, expected names"),
        ({"epsilon": 8}, r"epsilon is 8, expected a radius from 0 to 1.*8/255 = 0.03137 perhaps"),
        ({"epsilon": []}, "epsilon holds no radius"),
        ({"epsilon": "8/255"}, r"epsilon is '8/255', expected a number such as 0.3 or 8 / 255"),
        ({"epsilon": None}, "epsilon is None, expected a number"),
        ({"attacks": None}, "attacks holds None, expected names"),
        ({"n": 2.5}, "n is 2.5, expected a whole number"),
        ({"repeats": True}, "repeats is True, expected a whole number"),
        ({"directory": 3}, "the directory is 3, expected a path"),
        ({"epsilon": -0.1}, "epsilon is -0.1"),
        ({"epsilon": 7, "attacks": [FGSM(geometry=L2())]}, "epsilon is 7, expected a radius from 0 to 6"),
    ],
)
def test_mistakes_are_told(how: Callable[..., Any], changed: dict[str, object], message: str) -> None:
    with no_type_checks(), pytest.raises(GradDivError, match=message):
        how(network("bayesian"), images(4), labels(4), **{**HOW, **changed})


def test_one_name_may_stand_alone() -> None:
    records = evaluate(network("bayesian"), images(4), labels(4), **HOW)  # type: ignore[arg-type]
    assert [record.label for record in records] == ["clean", "FGSM"]


def test_a_table_for_each_epsilon() -> None:
    records = evaluate(network("dirac"), images(4), labels(4), **{**HOW, "epsilon": [0.1, 0.2]})  # type: ignore[arg-type]
    found = table_per_epsilon(records)
    assert list(found) == [0.1, 0.2]
    assert [row.label for row in found[0.2]] == ["clean", "FGSM"]


def test_a_total_takes_what_evaluate_takes(tmp_path: Path) -> None:
    how = {**HOW, "modes": "eot", "directory": str(tmp_path)}
    (found,) = evaluate_total(network("bayesian"), images(4), labels(4), **how)  # type: ignore[arg-type]
    assert found.labels_of_attacks == ["clean", "EOT-FGSM"]
    assert len(list(tmp_path.glob("total-*.record"))) == 1


@pytest.mark.slow
def test_a_total_of_the_strong_suite_chooses_modes_and_n() -> None:
    how = {**HOW, "attacks": (), "suite": "strong", "modes": "fixed"}
    (found,) = evaluate_total(network("bayesian"), images(4), labels(4), **how)  # type: ignore[arg-type]
    assert {label.replace("EOT^1-", "EOT-") for label in found.labels_of_attacks} == {
        "clean", "EOT-SPGD", "EOT-SPGD-ce",
    }  # fmt: skip


@BOTH
def test_progress_is_shown_on_request(how: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    how(network("dirac"), images(4), labels(4), progress=True, **HOW)
    assert capsys.readouterr().out == "", "on the other stream, if at all"


def test_a_sound_network_gets_no_warning() -> None:
    assert warned(Linear()) == []
    assert warned(randomize(Noisy(Linear()))) == []


def test_a_module_that_draws_is_found_out() -> None:
    x, y = examples()
    how = {**HOW, "modes": "eot"}
    found, said = (evaluate(F, x, y, **how) for F in (Noisy(Linear()), randomize(Noisy(Linear()))))  # type: ignore[arg-type]
    assert warned(Noisy(Linear())) == []
    assert [record.label for record in found] == ["clean", "EOT-FGSM"]
    assert all(np.array_equal(a.right, b.right) for a, b in zip(found, said, strict=True))


def test_noise_of_a_network_that_is_said_to_have_none_is_told_once() -> None:
    [message] = warned(Dirac(Noisy(Linear())))
    assert "two calls with the same input differ: pass randomize(module)" in message


def test_other_pixels_and_other_models_are_taken_as_in_an_audit() -> None:
    x, y = examples()
    plain, scaled, function = (
        evaluate(model, images, y, bounds=bounds, **HOW)  # type: ignore[arg-type]
        for model, images, bounds in (
            (Linear(), x, None),
            (lambda z, f=Linear(): f(z / 255), 255 * x, (0, 255)),
            (lambda z, f=Linear(): f(z), x, None),
        )
    )
    assert [r.accuracy for r in plain] == [r.accuracy for r in scaled] == [r.accuracy for r in function]


def test_randomize_without_noise() -> None:
    [message] = warned(randomize(FunctionalDropout().eval()))
    assert "draws give the same answers" in message


def test_rounding_and_detaching() -> None:
    [message] = warned(nn.Sequential(Rounded(), Linear()))
    assert "lost in the layer 0 (Rounded)" in message
    assert "straight_through" in message


def test_looking_for_the_layer_leaves_batch_norm_as_it_is() -> None:
    module = nn.Sequential(Rounded(), nn.BatchNorm2d(1), Linear()).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert any("lost in the layer 0 (Rounded)" in message for message in warned(module))
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert module[1].training


def test_probabilities_and_wrong_labels() -> None:
    message, *_ = warned(nn.Sequential(Linear(), nn.Softmax(1)))
    assert "these are probabilities" in message
    x, _ = examples()
    [message] = warned(Linear(), x.roll(1, 0))
    assert "do labels, their order and the scale of the input fit" in message


def test_a_network_without_gradients_is_told_of_before_the_attack_fails() -> None:
    x, y = examples()
    with pytest.warns(GradDivWarning, match="autograd finds no way"), pytest.raises(GradDivError):
        evaluate(Blind(), x, y, **HOW)  # type: ignore[arg-type]


def test_a_part_that_is_detached() -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x[..., :3].detach(), x[..., 3:]], 3)

    [message] = warned(nn.Sequential(Half(), Linear()))
    assert "along the gradient differ from it by 0" in message, "it is right where it points"
    assert "a part of the network detached" in message


def test_several_radii_as_an_array() -> None:
    options: dict[str, Any] = {**HOW, "epsilon": np.array([0.1, 0.2])}
    with no_type_checks():
        records = evaluate(network("dirac"), images(4), labels(4), **options)
    assert list(table_per_epsilon(records)) == [0.1, 0.2]


def test_a_wrong_backward_pass() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return 3 * x

        @staticmethod
        def backward(ctx: object, g: Tensor) -> Tensor:  # type: ignore[override]
            return g

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Linear()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(0.5 + Wrong.apply(x - 0.5) / 3)

    [message] = warned(Scaled())
    assert "is a backward pass replaced" in message
