"""Whatever the user has is taken as it is meant, or refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from graddiv import audit
from graddiv.errors import GradDivError
from graddiv.evaluation import Target
from graddiv.evaluation.examples import examples_of, read_examples
from graddiv.evaluation.models import dtype_of, network_of, rescaled, settled, with_gradients, with_logits
from graddiv.networks import sap, total_variation
from tests.audit.planted import Linear, examples
from tests.helpers import convnet, images, labels, no_type_checks

X, Y = examples()


def test_every_holder_of_examples_gives_the_same(tmp_path: Path) -> None:
    pairs = TensorDataset(X, Y)
    np.savez(tmp_path / "xs.npz", images=X.numpy(), labels=Y.numpy())
    wanted = examples_of(X, Y)
    for holder in (
        (X.numpy(), Y.numpy()),
        (X.clone().requires_grad_(), Y),
        (X.double().numpy(), Y.tolist()),
        (pairs, None),
        (DataLoader(pairs, batch_size=7), None),
        read_examples(str(tmp_path / "xs.npz")),
    ):
        found = examples_of(*holder, dtype=dtype_of(Linear()))
        assert found.checksum == wanted.checksum
    assert examples_of(X.half(), Y).x.dtype == torch.float32
    assert examples_of(X, Y, dtype=dtype_of([Linear().double()])).x.dtype == torch.float64
    channels = examples_of(2 * X - 1, Y, bounds=([-1.0], [1.0]))
    assert (channels.x - X).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (2 * X - 1, Y, {}, "make the normalization a layer"),
        (3 * X, Y, {"bounds": (0.0, 1.0)}, "outside of the bounds"),
        (X, Y, {"bounds": 0.5}, "bounds are 0.5, expected the least and the greatest"),
        (X, Y, {"bounds": (1, 0)}, "expected the least value of a pixel before the greatest"),
        (X, Y, {"examples": -3}, "examples is -3, expected at least 1"),
        (X, Y - 1, {}, "y holds the label -1, expected classes from 0 on"),
        (X, Y.float(), {}, "expected one whole number for each image"),
        (X.to("meta"), Y, {}, "x lies on the device meta"),
        ("x", "y", {}, "x is of type str, expected a tensor or an array"),
        (
            {"x": X},
            None,
            {},
            "x is dict, expected a tensor, an array, a Dataset, a DataLoader, or a name such as 'xs.npz'",
        ),
        (X, None, {}, "y is missing"),
    ],
)
def test_what_cannot_be_used_is_refused(x: Any, y: Any, options: dict[str, Any], message: str) -> None:
    with no_type_checks(), pytest.raises(GradDivError, match=message):
        examples_of(x, y, **options)


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-9], lambda whole: whole[:300] + b"?" + whole[301:], lambda _: b""]
)
def test_a_damaged_file_is_refused(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "xs.npz"
    np.savez(path, x=X.numpy(), y=Y.numpy())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(GradDivError, match=r"cannot read .*xs\.npz"):
        read_examples(str(path))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Linear, r"the model is the class Linear, expected what it makes: Linear\(\)"),
        (None, "the model is NoneType, expected a module"),
        ([], "the model is a list of nothing"),
        (Linear().half(), r"parameters of torch\.float16"),
        (nn.Linear(5, 4), r"cannot be called with images of shape \(1, 6, 6\)"),
        (lambda x: x.sum(), r"returned \(\) for 2 inputs"),
        (lambda x: x.flatten(1).sum(1), r"returned \(2,\) .*one number z for each is torch\.stack\(\[0 \* z, z\], 1\)"),
        (lambda x: x.astype(float), r"cannot be called with images .*: 'Tensor' object has no attribute 'astype'"),
    ],
)
def test_models_that_are_none(model: Any, message: str) -> None:
    with no_type_checks(), pytest.raises(GradDivError, match=message):
        network_of(model, X)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": "8/255"}, "epsilon is '8/255', expected a number"),
        ({"epsilon": 8}, r"8/255 = 0\.03137 perhaps"),
        ({"norm": "l1"}, "unknown norm 'l1'"),
        ({"budget": "qick"}, "did you mean 'quick'"),
        ({"n_ensemble": 0}, "n_ensemble is 0, expected at least 1"),
        ({"batch": 0}, "batch is 0"),
        ({"peers": "torchatacks"}, "did you mean 'torchattacks'"),
        ({"device": "gpu"}, "device 'gpu' cannot be used"),
        ({"y": Y.double()}, r"type torch\.float64.* y\.long\(\) converts"),
        ({"out": 3}, "the directory is 3, expected a path"),
    ],
)
def test_mistakes_are_told_before_anything_is_done(options: dict[str, Any], message: str) -> None:
    with no_type_checks(), pytest.raises(GradDivError, match=message):
        audit(Linear(), X, **{"y": Y, "epsilon": 0.1, **options})


@pytest.mark.parametrize("kind", ["sap", "tv"])
def test_an_adapted_network_says_that_its_gradient_is_a_proxy(kind: str) -> None:
    F = sap(convnet(), (1, 6, 6)) if kind == "sap" else total_variation(convnet(), (1, 6, 6))
    around = [rescaled(F, (0.0, 255.0)), with_logits(F), with_gradients(F), settled(F, False)]
    assert all(adapted is not F and adapted.proxy_gradient for adapted in around)
    assert Target.of(with_logits(F), images(2), labels(2)).describe()["proxy_gradient"]
    exact = sap(convnet(), (1, 6, 6), gradient="exact")
    assert not with_logits(exact).proxy_gradient


def test_dropout_that_is_switched_off_is_told_unless_that_was_said() -> None:
    from graddiv import Dirac
    from graddiv.evaluation.audit import examine

    module = nn.Sequential(nn.Dropout(0.2), Linear()).eval()
    inputs = examples_of(X, Y)
    silent, meant = (examine(network_of(model, X), inputs, seed=0)[2]["random"] for model in (module, Dirac(module)))
    assert silent.verdict == "warn"
    assert "dropout is switched off in module.0; pass randomize(module)" in silent.sentence
    assert meant.verdict == "pass"


def test_a_module_that_chooses_among_few_functions_seems_to_have_few() -> None:
    from graddiv.evaluation.checks import CHECKS
    from graddiv.evaluation.inspection import Inspection
    from tests.audit.planted import Noisy

    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Linear()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x + 0.1 * torch.randint(0, 3, ()))

    for module, few in ((Either(), True), (Noisy(Linear()), False)):
        item = CHECKS["support"](Inspection(network_of(module, X).F, X, Y))
        assert ("seems to have few values" in item.sentence) == few
        assert (item.evidence["seen"] == 3) == few
