"""Models in every form are audited, or refused in one sentence that says what to do: no traceback."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from graddiv import GradDivWarning, audit, evaluate
from graddiv.attacks import PGD, Square
from graddiv.errors import GradDivError
from graddiv.evaluation.card import Audit, rescore
from graddiv.evaluation.models import network_of, with_no_answer
from graddiv.evaluation.surrogates import straight_through_surrogate
from graddiv.networks import Dirac, bayesian, randomize
from tests.audit.planted import BUDGET, Linear, Noisy, examples, margin_radii
from tests.helpers import no_type_checks

X, Y = examples()
RADIUS = float(margin_radii(X, Y).median()) + 1e-4
TRUTH = float((margin_radii(X, Y) > RADIUS).float().mean())
W = Linear().weight.detach().numpy()


class Changed(nn.Module):
    """A linear network whose input and output are changed."""

    def __init__(self, after: Callable[[Tensor], Any] = lambda z: z, before: Callable[[Tensor], Any] = lambda x: x):
        super().__init__()
        self.inner, self.after, self.before = Linear(), after, before

    def forward(self, x: Tensor) -> Any:
        return self.after(self.inner(self.before(x)))


class SometimesNaN(nn.Module):
    """NaN at some draws, as often as `share`, whatever the image is."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.inner, self.share = Noisy(Linear(), 0.02), share

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.inner(x)
        return torch.where(torch.tensor(random.random() < self.share), torch.nan, z)


def audited(model: Any, **options: Any) -> Audit:
    with no_type_checks():
        return audit(model, X, Y, **{"epsilon": RADIUS, "budget": BUDGET, "n_ensemble": 5, **options})


def on_arrays(x: Tensor) -> np.ndarray:
    return np.asarray((x.numpy().reshape(len(x), -1) - 0.5) @ W.T)


SCRIPTED: dict[str, Callable[[], Any]] = {
    "scripted": lambda: torch.jit.script(Linear()),
    "traced": lambda: torch.jit.trace(Linear(), X[:2]),
}
FORMS: dict[str, Callable[[], Any]] = {
    **SCRIPTED,
    "a dictionary": lambda: Changed(lambda z: {"logits": z}),
    "an object": lambda: Changed(lambda z: SimpleNamespace(logits=z)),
    "a tuple": lambda: Changed(lambda z: (z, z.sum())),
}
WITHOUT_GRADIENTS: dict[str, Callable[[], Any]] = {
    "a function of arrays": lambda: on_arrays,
    "an array in the end": lambda: Changed(lambda z: torch.from_numpy(z.numpy())),
    "an array in the beginning": lambda: Changed(before=lambda x: torch.from_numpy(np.asarray(x))),
    "an array of what is detached": lambda: Changed(before=lambda x: torch.from_numpy(x.detach().numpy())),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_audited_to_the_truth(form: str) -> None:
    found = audited(FORMS[form]())
    assert found.robust.ensemble.mean == pytest.approx(TRUTH)
    assert found.checks["gradients"].verdict == "pass"


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("form", SCRIPTED)
def test_torchscript_is_a_network_like_any_other(form: str) -> None:
    module, plain = SCRIPTED[form](), Linear()
    assert torch.equal(PGD(m=3)(module, X, Y, 0.1), PGD(m=3)(plain, X, Y, 0.1))
    how: dict[str, Any] = {"epsilon": RADIUS, "attacks": "pgd", "modes": "fixed"}
    assert [r.accuracy for r in evaluate(module, X, Y, **how)] == [r.accuracy for r in evaluate(plain, X, Y, **how)]
    with pytest.raises(GradDivError, match="make noise of the module it is made of"):
        bayesian(module, prior_sigma=0.1)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_that_draws_is_random() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Dropout(0.3), Linear()))
    traced = torch.jit.trace(Noisy(Linear()), X[:2], check_trace=False)
    for module in (scripted, traced):
        F = network_of(module, X).F
        assert F.random
        f, g = F.sample(2, seed=0)
        assert torch.equal(f(X), f(X))
        assert not torch.equal(f(X), g(X))


@pytest.mark.parametrize("form", WITHOUT_GRADIENTS)
def test_where_arrays_are_made_the_gradient_ends(form: str) -> None:
    F, model = network_of(WITHOUT_GRADIENTS[form](), X).F, Linear()
    for seen in (F, straight_through_surrogate(F)):
        f = seen.bind(seen.draw(0))
        assert torch.allclose(f(X.clone().requires_grad_()), model(X), atol=1e-5)
    with pytest.warns(GradDivWarning), pytest.raises(GradDivError, match="attack it with Square"):
        evaluate(F, X, Y, epsilon=0.1, attacks="pgd", modes="fixed")


def test_the_gradient_of_what_is_no_array_stays() -> None:
    half = Changed(before=lambda x: torch.cat([torch.from_numpy(x[..., :3].numpy()), x[..., 3:]], 3))
    F = network_of(half, X).F
    x = X.clone().requires_grad_()
    F.bind(F.draw(0))(x).sum().backward()
    assert x.grad is not None
    assert (x.grad[..., :3] == 0).all()
    assert (x.grad[..., 3:] != 0).any()


def test_a_direct_attack_on_arrays_is_refused_by_those_who_need_gradients() -> None:
    module = WITHOUT_GRADIENTS["an array in the end"]()
    with pytest.raises(GradDivError, match=r"makes arrays of tensors.*attack it with Square.*\.detach\(\)"):
        PGD(m=2)(module, X, Y, 0.1)
    assert Square(m=2)(module, X, Y, 0.1).shape == X.shape


@pytest.mark.slow
@pytest.mark.parametrize("form", ["a function of arrays", "an array in the beginning"])
def test_arrays_are_audited_without_gradients(form: str) -> None:
    found = audited(WITHOUT_GRADIENTS[form](), epsilon=1.15 * float(margin_radii(X, Y).max()))
    assert found.checks["gradients"].verdict == "fail"
    assert found.robust.ensemble.mean < 0.6, "the substitute needs answers alone"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    with pytest.raises(GradDivError, match=rf"parameters of {dtype}.*call \.float\(\) on it and on x"):
        audited(Linear().to(dtype))
    F = network_of(Changed(lambda z: z.to(dtype)), X).F
    assert F.bind(F.draw(0))(X).dtype == torch.float32, "of the logits alone it does no harm"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda z: z[:, :1], r"the network has 1 class.*torch\.cat\(\[0 \* z, z\], 1\)"),
        (lambda z: z[:, 0], r"one number z for each is torch\.stack\(\[0 \* z, z\], 1\)"),
        (lambda z: z[:, :0], "the network has 0 classes"),
        (lambda z: z * torch.nan, "every answer is NaN: look at the network's weights"),
        (lambda z: {"out": z}, r"returned dict with out .*; lambda x: model\(x\)\[NAME\] takes another"),
        (lambda z: z.tolist(), "returned list for 2 inputs, expected logits"),
    ],
)
@pytest.mark.filterwarnings("ignore::graddiv.errors.GradDivWarning")  # which come before the refusal
def test_what_is_no_answer_is_refused_in_one_sentence(change: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(GradDivError, match=message):
        audited(Changed(change))
    with no_type_checks(), pytest.raises(GradDivError, match=message):
        evaluate(Changed(change), X, Y, epsilon=0.1, attacks="fgsm", modes="fixed")


def test_two_logits_made_of_one_are_as_advised() -> None:
    one = Changed(lambda z: z[:, :1] - z[:, 1:2])
    assert network_of(lambda x: torch.cat([0 * one(x), one(x)], 1), X).F.module(X).shape == (len(X), 2)


def test_no_answer_is_a_class_that_is_no_label() -> None:
    F, G = (Dirac(Changed(lambda z: torch.where(torch.arange(len(z))[:, None] < 3, torch.nan, z))) for _ in range(2))
    f = with_no_answer(F).bind({})
    plain = Linear()(X)
    assert (f(X)[:3].argmax(1) == 4).all()
    assert torch.equal(f(X)[3:, :4], plain[3:])
    assert torch.allclose(f(X)[3:].softmax(1)[:, :4], plain[3:].softmax(1), atol=1e-6)
    x = X.clone().requires_grad_()
    f(x)[:, :4].sum().backward()
    assert x.grad is not None
    assert (x.grad[:3] == 0).all()
    expected = torch.autograd.grad(G.bind({})(x := X.clone().requires_grad_())[3:].sum(), x)[0]
    assert x.grad is None
    assert torch.isfinite(expected[3:]).all()


def test_nan_at_some_draws_is_reported_and_counted_as_wrong() -> None:
    with pytest.warns(GradDivWarning, match=r"% of the answers are NaN, and \d+ of 66 draws have some"):
        clean, _ = evaluate(
            randomize(SometimesNaN(0.3)), X, Y, epsilon=0.01, attacks="fgsm", modes="eot", n=2, n_ensemble=20
        )
    assert clean.accuracy == 1, "most draws are right"
    assert 0.5 < clean.accuracy_per_draw < 0.9, "of single draws three in ten are wrong"
    half = Changed(lambda z: torch.where(torch.arange(len(z))[:, None] % 2 == 0, torch.nan, z))
    with pytest.warns(GradDivWarning) as said:
        clean, _ = evaluate(half, X, Y, epsilon=0.0, attacks="fgsm", modes="fixed")
    assert any("50 % of the answers are NaN" in str(each.message) for each in said)
    assert clean.accuracy == 0.5


@pytest.mark.slow
def test_nan_at_some_draws_is_audited(tmp_path: Any) -> None:
    found = audited(SometimesNaN(0.1), epsilon=0.5 * RADIUS, out=tmp_path)
    said = found.checks["numbers"]
    assert said.verdict == "warn"
    assert "counts as a wrong answer" in said.sentence
    assert 0.02 < said.evidence["share_of_answers"] < 0.3
    assert [found.checks[name].verdict for name in ("gradients", "logits", "replay")] == ["pass"] * 3
    assert found.clean.per_draw.mean == pytest.approx(0.9, abs=0.07)
    with no_type_checks():
        again = rescore(tmp_path, SometimesNaN(0.1))
    assert again["per_draw"].mean == pytest.approx(found.robust.per_draw.mean, abs=0.15)
