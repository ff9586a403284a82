"""Networks whose faults are known get the verdict that they deserve; a robust one is not accused."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from graddiv import audit
from graddiv.attacks import ARC, PGD, Given
from graddiv.errors import GradDivError, GradDivWarning
from graddiv.evaluation.card import Audit
from graddiv.networks import Dirac, randomize
from tests.audit.planted import (
    BUDGET,
    Blind,
    FunctionalDropout,
    Linear,
    Member,
    Noisy,
    NoisyWeights,
    Rounded,
    Shattered,
    examples,
    margin_radii,
    opposed_examples,
)
from tests.helpers import global_rng_untouched, no_type_checks

X, Y = examples()
RADII = margin_radii(X, Y)
BROKEN = 1.15 * float(RADII.max())
"""A radius at which the linear network has nothing left."""


def audited(model: object, epsilon: float = BROKEN, **options: object) -> Audit:
    return audit_of(model, X, Y, epsilon=epsilon, **options)


def audit_of(model: object, x: Tensor, y: Tensor, **options: object) -> Audit:
    with no_type_checks():  # they would take most of the time
        found = audit(model, x, y, **{"budget": BUDGET, "n_ensemble": 5, **options})  # type: ignore[arg-type]
        for directory in PAGES:
            check_page(found, directory)
    return found


PAGES: list[Path] = []
"""Where the page of each audit goes; empty where pages would take too long."""


@pytest.fixture(autouse=True)
def _a_page_from_each(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Among the slow tests, every audit of this file becomes a page, too."""
    PAGES[:] = [tmp_path] if request.config.getoption("--slow") else []
    yield
    PAGES.clear()


def check_page(found: Audit, directory: Path) -> None:
    """The page says what was found, and all that it links to is there."""
    html = found.write(directory).read_text(encoding="utf-8")
    assert f'verdict-word">{found.verdict.capitalize()}.' in re.sub(' (pass|warn|fail)">', '">', html)
    assert found.verdict in str(found).splitlines()[-1], "the terminal says the same"
    assert ("No sign was found" in html) == (found.verdict == "evidence sufficient")
    assert len(re.findall('<li id="check-', html)) == len(found.checks)
    assert len(re.findall('<li id="indicator-', html)) == len(found.behaviours)
    for word in {item.verdict for item in (*found.checks.values(), *found.indicators)}:
        assert word.capitalize() in html
    assert all((directory / link).exists() for link in re.findall(r'href="([^"#:]+)"', html))


def failed(found: Audit) -> set[str]:
    return {item.name for item in (*found.checks.values(), *found.indicators) if item.verdict == "fail"}


def test_a_robust_network_is_not_accused() -> None:
    found = audited(Linear(), 0.6 * float(RADII.min()))
    assert found.robust.ensemble.mean == 1
    assert found.exit_code == 0
    assert not failed(found)


def test_the_accuracy_of_a_linear_network_is_the_closed_form() -> None:
    epsilon = float(RADII.median()) + 1e-4
    found = audited(Linear(), epsilon)
    assert found.robust.ensemble.mean == pytest.approx(float((epsilon < RADII).float().mean()))
    assert found.exit_code == 0


@pytest.mark.slow
def test_robust_only_because_of_noise() -> None:
    found = audited(NoisyWeights(), 1.3 * float(RADII.max()), n_ensemble=20)
    left = {record.label: record.accuracy for record in found.attacks if record.m <= 6}
    assert left["EOT^1-FGSM"] > 0.9, "who averages little believes it"
    assert found.rho < 0.5
    assert found.robust.ensemble.mean < 0.2
    assert found.ladder[0].attacked < 0.1, "known draws protect nothing"
    assert "doubled budget" in found.shortcomings[-1]
    assert found.exit_code == 3


def test_shattered_gradients() -> None:
    found = audited(Shattered())
    assert found.checks["roughness"].verdict == "fail"
    assert found.checks["differences"].verdict == "pass", "the gradient is right, it only leads nowhere"
    assert found.robust.ensemble.mean < 0.6, "a transfer attack does not need it"
    assert "gradients find what attacks without them find" in failed(found)
    assert found.exit_code == 3


def test_a_dead_layer_is_named_and_a_surrogate_attacked() -> None:
    found = audited(nn.Sequential(Rounded(), Linear()))
    said = found.checks["gradients"]
    assert said.verdict == "fail"
    assert said.evidence["layer"] == "0 (Rounded)"
    assert "straight_through" in said.sentence
    assert found.subject.surrogate
    assert found.robust.ensemble.mean == 0
    assert found.exit_code == 0, "the surrogate's gradients broke it: nothing is left to doubt"


def test_an_answer_without_a_graph_gets_one() -> None:
    found = audited(Blind())
    assert "autograd finds no way" in found.checks["gradients"].sentence
    assert found.subject.surrogate
    assert found.robust.ensemble.mean == 0
    assert found.exit_code == 0, "the surrogate's gradients broke it: nothing is left to doubt"


def test_an_answer_by_numpy_is_attacked_without_gradients() -> None:
    weights = Linear().weight.detach().numpy()
    found = audited(lambda x: torch.from_numpy((x.detach().numpy() - 0.5).reshape(len(x), -1) @ weights.T))
    assert found.checks["gradients"].verdict == "fail"
    assert found.robust.ensemble.mean < 0.6, "substitutes and queries need answers alone"
    assert found.exit_code == 3


def test_gradients_that_are_not_numbers() -> None:
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 0 * (x - x).abs().sqrt()

    found = audited(nn.Sequential(Root(), Linear()))
    assert "NaN or infinite" in found.checks["gradients"].sentence
    assert found.robust.ensemble.mean < 0.6


def test_a_random_network_that_is_none() -> None:
    with pytest.warns(GradDivWarning, match="draws give the same answers"):
        found = audited(randomize(FunctionalDropout().eval()))
    assert found.checks["random"].verdict == "warn"
    assert "draws give the same answers" in found.checks["random"].sentence
    assert not found.subject.target.random, "it costs what a deterministic network costs"
    assert {record.mode for record in found.attacks if not record.source} == {"fixed"}


@pytest.mark.slow
def test_a_deterministic_network_that_is_none() -> None:
    with pytest.warns(GradDivWarning, match="two calls with the same input differ"):
        found = audited(Dirac(Noisy(Linear())))
    assert found.checks["random"].verdict == "warn"
    assert "two calls with the same input differ" in found.checks["random"].sentence
    assert found.subject.target.random


@pytest.mark.slow
def test_native_noise_and_randomize_are_the_same() -> None:
    native, wrapped = (audited(model, float(RADII.median())) for model in (Noisy(Linear()), randomize(Noisy(Linear()))))
    assert [i.verdict for i in native.checks.values()] == [i.verdict for i in wrapped.checks.values()]
    assert [i.verdict for i in native.indicators] == [i.verdict for i in wrapped.indicators]
    assert native.robust == wrapped.robust
    assert native.exit_code == wrapped.exit_code


def test_probabilities_instead_of_logits() -> None:
    epsilon = float(RADII.median()) + 1e-4
    plain, soft = audited(Linear(), epsilon), audited(nn.Sequential(Linear(), nn.Softmax(1)), epsilon)
    assert soft.checks["logits"].verdict == "warn"
    assert "probabilities" in soft.checks["logits"].sentence
    assert soft.robust.ensemble == plain.robust.ensemble


def test_pixels_from_0_to_255() -> None:
    class Bytes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Linear()

        def forward(self, x: Tensor) -> Tensor:
            assert x.max() > 2, "pixels as the network expects them"
            return self.inner(x / 255)

    epsilon = float(RADII.median()) + 1e-4
    with pytest.raises(GradDivError, match=r"pass bounds=\(0, 255\) if the model takes such values"):
        audit(Bytes(), 255 * X, Y, epsilon=epsilon)
    found = audit_of(Bytes(), 255 * X, Y, epsilon=epsilon, bounds=(0, 255))
    assert found.robust.ensemble.mean == pytest.approx(audited(Linear(), epsilon).robust.ensemble.mean, abs=0.02)


def test_a_random_ensemble_of_opposed_members() -> None:
    x, y = opposed_examples()
    members = [Member(1.0), Member(-1.0)]
    found = audit_of(members, x, y, epsilon=0.1)
    assert found.clean.per_draw.mean == 1
    assert found.robust.exact
    assert found.robust.per_draw.mean == pytest.approx(0.5), "whatever fools one member helps the other"
    assert found.robust.worst[10].mean == pytest.approx(0.5**10)
    assert found.ladder[0].attacked == 0, "who knows the member fools it"
    assert found.checks["support"].evidence["outcomes"] == 2


def test_the_mean_gradient_of_opposed_members_vanishes_and_arc_does_not_take_it() -> None:
    x, y = opposed_examples(8)
    x[:, :, 0, 1:], x[:, :, 1:] = 0.5, 0.5
    members = [Member(1.0), Member(-1.0)]
    for attack, right in ((PGD(m=20), 1.0), (ARC(m=5, rule="draw"), 0.5)):
        x_adv = attack(Given(members), x, y, 0.1)
        accuracy = np.mean([float((member(x_adv).argmax(1) == y).float().mean()) for member in members])
        assert accuracy == right, attack.name


def test_labels_that_do_not_fit() -> None:
    found = audit_of(Linear(), X, (Y + 1) % 4, epsilon=0.05)
    assert found.checks["accuracy"].verdict == "fail"
    assert found.exit_code == 3


@pytest.mark.slow
def test_noise_that_cannot_be_replayed() -> None:
    own = torch.Generator().manual_seed(0)

    def noisy(x: Tensor) -> Tensor:
        return Linear()(x + 0.1 * torch.randn(x.shape, generator=own))

    found = audited(noisy, 0.1)
    assert found.checks["replay"].verdict == "fail"
    assert found.exit_code == 3


@pytest.mark.slow
def test_nothing_of_the_callers_is_touched() -> None:
    module = Noisy(Linear()).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with global_rng_untouched():
        audited(module, 0.1)
    assert module.training
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in before.items())
    assert all(p.grad is None and p.requires_grad for p in module.parameters())
