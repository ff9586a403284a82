"""The objective as users call it, and the calls that would train nothing."""

import re

import pytest
import torch
from torch.nn.functional import cross_entropy

import graddiv
from graddiv import Adversary, GradDiv, GradDivError, GradDivWarning, Objective, RandomizedNetwork, bayesian, randomize
from graddiv.attacks import EOT, PGD
from graddiv.errors import EXTRAS, explained, require
from graddiv.networks.defense import Minibatch, Rules
from graddiv.seeding import fold
from tests.helpers import (
    STOCHASTIC,
    convnet,
    global_rng_untouched,
    images,
    labels,
    network,
    no_type_checks,
    with_dropout,
)

X, Y = images(6), labels(6)


def test_it_is_the_loss_that_a_loop_would_write() -> None:
    F = bayesian(convnet(), 0.1)
    f = F.bind(F.draw(fold(0, "loss", 3)))
    diversity = GradDiv("mean", lam=0.5)
    expected = cross_entropy(f(X), Y) + 0.02 / 50 * F.kl() + diversity(F, X, Y, step=3)
    found = Objective(F, examples=50, diversity=GradDiv("mean", lam=0.5))(X, Y, step=3)
    assert torch.allclose(found, expected)


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_every_network_is_trained_by_it_and_no_global_state_moves(kind: str) -> None:
    F = network(kind)
    objective = Objective(F, examples=6, adversary=Adversary(0.1, m=2), diversity=GradDiv("mean", lam=0.1))
    with no_type_checks(), global_rng_untouched():  # the checks themselves draw
        first, again, later = (objective(X, Y, step=step) for step in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    first.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in F.parameters())


def test_ids_may_lie_on_another_device_than_the_images() -> None:
    """On the meta device, which every machine has: it knows no values, but it has shapes and a place."""

    class Probe(Rules):
        def losses(self, F: RandomizedNetwork, batch: Minibatch) -> torch.Tensor:
            assert batch.ids.device == batch.x.device
            return batch.x.flatten(1).sum(1)

    objective = Objective(network("rse").to("meta"), examples=6, rules=Probe())
    assert objective(X.to("meta"), Y.to("meta"), step=0, ids=torch.arange(6)).device.type == "meta"


def test_sigma_learns() -> None:
    F = bayesian(convnet(), 0.1)
    Objective(F, examples=6, alpha_kl=0.0)(X, Y, step=0).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in F.log_sigma.values())


def test_calling_the_module_itself_in_training_warns_once_and_sample_models_do_not() -> None:
    module = convnet()
    F = bayesian(module, 0.1)
    F.bind(F.draw(0))(X)
    with torch.no_grad():
        module(X)
    with pytest.warns(GradDivWarning, match=r"called by itself in training.*learns nothing; write Objective"):
        module(X)
    module(X)


def test_calling_the_network_says_what_to_write() -> None:
    with pytest.raises(
        TypeError, match=r"F\.predict\(x\)\.label.*Objective\(F, examples=N\).*F\.bind\(F\.draw\(seed\)\)"
    ):
        bayesian(convnet(), 0.1)(X)


def test_predict_is_the_ensemble() -> None:
    F = randomize(with_dropout(convnet()).eval())
    with torch.no_grad():
        scores = torch.stack([f(X).softmax(1) for f in F.sample(20, seed=4)]).mean(0)
    assert torch.allclose(F.predict(X, seed=4).scores, scores)


def test_the_adversary_follows_the_mean_gradient_of_as_many_models_as_it_is_told() -> None:
    F = bayesian(convnet(), 0.1)
    objective = Objective(F, examples=6)
    for n in (1, 3):
        found = objective.attacked(Adversary(0.1, m=2, n=n), X, Y, torch.arange(6), step=4)
        view = EOT(objective.trained, n, seed=fold(0, "adversary", 4))
        assert torch.equal(found, PGD(m=2, seed=fold(0, "start", 4))(view, X, Y, 0.1, ids=torch.arange(6)))


def test_r_may_be_taken_at_random_points_of_the_ball() -> None:
    F, ids = bayesian(convnet(), 0.1), torch.arange(6)
    diversity, adversary = GradDiv("mean", lam=0.5), Adversary(0.1, m=1)
    objective = Objective(F, examples=6, adversary=adversary, diversity=diversity, at="noisy")
    noisy = objective.noisy(X, ids, step=3)
    moved = noisy - X
    assert 0.09 < moved.max() <= 0.1 + 1e-6
    assert -0.1 - 1e-6 <= moved.min() < -0.09
    assert torch.equal(objective.noisy(X[2:], ids[2:], step=3), noisy[2:]), "a point belongs to its example"
    assert not torch.equal(objective.noisy(X, ids, step=4), noisy)
    objective(X, Y, step=3)
    assert objective.parts["graddiv"] == diversity(F, noisy, Y, step=3, ids=ids)


def test_mistakes_are_told() -> None:
    with no_type_checks():
        with pytest.raises(GradDivError, match=r"F is a Sequential, expected a RandomizedNetwork: make one with"):
            Objective(convnet(), examples=6)
        with pytest.raises(GradDivError, match="examples is 0"):
            Objective(bayesian(convnet(), 0.1), examples=0)
        with pytest.raises(GradDivError, match="needs an adversary"):
            Objective(bayesian(convnet(), 0.1), examples=6, at="noisy")
        with pytest.raises(GradDivError, match=r"unknown at 'adverserial', did you mean 'adversarial'\?"):
            Objective(bayesian(convnet(), 0.1), examples=6, adversary=Adversary(0.1), at="adverserial")
        with pytest.raises(GradDivError, match="epsilon is -1"):
            Adversary(-1)
        with pytest.raises(GradDivError, match=r"epsilon is 8, expected from 0 to 1, .*: 8/255 = 0\.03137 perhaps"):
            Adversary(8)
        with pytest.raises(GradDivError, match="epsilon is '8/255', expected a number such as"):
            Adversary("8/255")  # type: ignore[arg-type]
        with pytest.raises(GradDivError, match="n is 0"):
            Adversary(0.1, n=0)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graddiv.errors.find_spec", lambda name: None if name == "jinja2" else name)
    require("cli")
    with pytest.raises(GradDivError, match=r"jinja2 is not installed: pip install 'graddiv\[report\]'"):
        require("report")
    with pytest.raises(GradDivError, match="jinja2 is not installed"):
        graddiv.audit(convnet(), X, Y, epsilon=0.1, out="nowhere")
    assert "graddiv[tune]" in str(explained(ModuleNotFoundError(name="optuna.trial")))
    assert explained(ModuleNotFoundError(name="nonsense")) is None


def test_extras_are_those_of_the_package() -> None:
    import tomllib
    from pathlib import Path

    root = Path(__file__).parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    for extra, packages in EXTRAS.items():
        declared = " ".join(project["optional-dependencies"][extra])
        assert all(package in declared for package in packages), extra
    lists = re.findall(r"```\{public-names\}\n(.*?)```", (root / "docs" / "api" / "index.md").read_text(), re.DOTALL)
    assert sorted([*" ".join(lists).split(), "__version__"]) == sorted(graddiv.__all__)
