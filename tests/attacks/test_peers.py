"""Attacks of other libraries on the models of a view, and the module through which they call it."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from graddiv.attacks import EOT, PGD, Fixed, Given, as_module
from graddiv.attacks.peers import PEERS, FoolboxPGD, PeerAttack, PyautoattackAPGD, TorchattacksPGD, peers
from graddiv.errors import GradDivError
from graddiv.evaluation import evaluate, predict
from graddiv.geometry import L2
from graddiv.networks import Dirac, bayesian
from graddiv.records import read_all, table
from graddiv.seeding import isolated
from tests.helpers import convnet, global_rng_untouched, images, labels, network, no_type_checks

every_peer = pytest.mark.parametrize(
    "attack", [replace(each, m=3) for found in PEERS.values() for each in found], ids=lambda attack: attack.name
)


def installed(attack: PeerAttack) -> None:
    try:
        attack.imported()
    except GradDivError as error:
        pytest.skip(str(error))


def test_a_module_shows_the_models_of_the_view_in_turn() -> None:
    F, x = network("bayesian"), images(3)
    view = EOT(F, 2, seed=5)
    expected = [f(x) for k in range(3) for f in EOT(F, 2, seed=5)(k)]
    model = as_module(view)
    with no_type_checks(), global_rng_untouched():
        found = [model(x) for _ in range(6)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert (view.cost.forwards, view.cost.backwards, view.cost.draws) == (6, 0, 6)
    assert torch.equal(as_module(EOT(F, 2, seed=5), first=1)(x), expected[2])
    fixed = as_module(Fixed(F, seed=5))
    assert torch.equal(fixed(x), fixed(x))


def test_a_module_that_averages_is_the_ensemble() -> None:
    F, x = network("bayesian"), images(3)
    view = EOT(F, 4, seed=5)
    model = as_module(view, mean=True)
    for k in range(2):
        p = torch.stack([f(x).softmax(1) for f in EOT(F, 4, seed=5)(k)]).mean(0)
        assert torch.allclose(model(x), p.log(), atol=1e-12)
    assert view.cost.forwards == 8


def test_models_that_are_not_equally_likely_are_weighted() -> None:
    module, x = convnet(), images(3)
    view = Given([module, lambda x: -module(x)])
    view.probabilities = torch.tensor([0.9, 0.1], dtype=torch.float64)
    p = 0.9 * module(x).softmax(1) + 0.1 * (-module(x)).softmax(1)
    assert torch.allclose(as_module(view, mean=True, like=x)(x), p.log(), atol=1e-12)
    with pytest.raises(GradDivError, match="pass mean=True"):
        as_module(view, like=x)


@pytest.mark.parametrize("mean", [False, True])
def test_backward_passes_are_counted_where_they_are_made(mean: bool) -> None:
    F, x = network("rse"), images(3).requires_grad_()
    view = EOT(F, 3)
    model = as_module(view, mean=mean)
    with torch.no_grad():
        model(x)
    z = model(x)
    assert view.cost.backwards == 0
    torch.autograd.grad(z[:, 0].sum(), x, retain_graph=True)
    torch.autograd.grad(z[:, 1].sum(), x)
    assert view.cost.backwards == 2 * (3 if mean else 1)


def test_a_module_has_no_parameter_to_train_and_uses_running_statistics() -> None:
    F = bayesian(convnet(batch_norm=True), 0.05).train()
    model, x = as_module(EOT(F, 2)), images(4).requires_grad_()
    assert not model.training
    assert all(p.numel() == 0 and not p.requires_grad for p in model.parameters())
    before = {name: tensor.clone() for name, tensor in F.state_dict().items()}
    model(x).sum().backward()
    assert all(p.grad is None for p in F.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in F.state_dict().items())
    assert F.module.training


def test_models_keep_their_type_whatever_the_library_hands_over() -> None:
    model = as_module(EOT(network("bayesian"), 2))
    assert model(images(2).float()).dtype == torch.float32
    with pytest.raises(GradDivError, match="pass like=x"):
        as_module(Given([convnet()]))
    assert as_module(Given([convnet()]), like=images(2))(images(2)).shape == (2, 4)


@every_peer
@pytest.mark.parametrize("kind", ["bayesian", "dirac"])
def test_a_peer_stays_in_the_ball_and_counts_its_passes(attack: PeerAttack, kind: str) -> None:
    installed(attack)
    F, x, y = network(kind, nn.ReLU), images(5), labels(5)
    view, steps = EOT(F, 4, seed=1), []
    with no_type_checks(), global_rng_untouched(), torch.no_grad():
        x_adv = attack(view, x, y, 0.1, progress=lambda done, of: steps.append((done, of)))
    assert (x_adv - x).abs().max() <= 0.1 + 1e-6
    assert 0 <= x_adv.min() <= x_adv.max() <= 1
    assert x_adv.dtype == x.dtype
    assert not x_adv.requires_grad
    n = 4 if F.random else 1
    assert 3 * n <= view.cost.backwards <= 4 * n  # APGD takes a gradient at its start too
    assert view.cost.backwards <= view.cost.forwards <= 5 * n
    assert view.cost.draws == (view.cost.forwards if F.random else 0)
    assert steps == [(1, 3), (2, 3), (3, 3)]
    again = EOT(F, 4, seed=1)
    assert torch.equal(attack(again, x, y, 0.1), x_adv)


@every_peer
@pytest.mark.parametrize("restarts", [1, 2])
def test_a_peer_fools_a_linear_network(attack: PeerAttack, restarts: int) -> None:
    installed(attack)
    with isolated(0):
        module = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).double()
    F, x = bayesian(module, 0.02), images(40)
    y = predict(F, x, seed=3).label
    x_adv = replace(attack, restarts=restarts)(EOT(F, 4), x, y, 0.2)
    assert (predict(F, x_adv, seed=4).label == y).double().mean() < 0.45
    random = x + 0.2 * (2 * images(40, seed=1) - 1).sign()
    assert (predict(F, random.clamp(0, 1), seed=4).label == y).double().mean() > 0.6


def test_on_a_deterministic_network_foolbox_is_our_pgd() -> None:
    installed(FoolboxPGD())
    F, x, y = Dirac(convnet(nn.ReLU)), images(6), labels(6)
    assert torch.allclose(FoolboxPGD(m=6)(EOT(F, 3), x, y, 0.1), PGD(m=6)(F, x, y, 0.1), atol=1e-12)


def test_what_a_peer_cannot_do_is_refused() -> None:
    with pytest.raises(GradDivError, match="expected Linf"):
        TorchattacksPGD(geometry=L2())
    with pytest.raises(GradDivError, match="m is 0"):
        TorchattacksPGD(m=0)
    epsilon = torch.tensor([0.1, 0.2], dtype=torch.float64)
    with pytest.raises(GradDivError, match="torchattacks takes one for the whole batch"):
        TorchattacksPGD()(convnet(), images(2), labels(2), epsilon)


def test_a_library_that_is_missing_or_unknown_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchattacks", None)
    with pytest.raises(GradDivError, match=r"torchattacks cannot be imported .* pip install --no-deps torchattacks$"):
        peers(["torchattacks"], "quick")
    with pytest.raises(GradDivError, match="unknown library 'torchatacks', did you mean 'torchattacks'"):
        peers(["torchatacks"], "quick")


def test_peers_have_the_iterations_of_their_counterparts() -> None:
    installed(PyautoattackAPGD())
    assert [attack.m for attack in peers(["pyautoattack"], "paper")] == [100, 100]
    assert [(attack.name, attack.m) for attack in peers(["pyautoattack"], "quick", 7)] == [
        ("pyautoattack APGD-CE", 7),
        ("pyautoattack APGD-DLR", 7),
    ]


def test_peers_are_rows_of_the_same_table(tmp_path: Path) -> None:
    installed(PyautoattackAPGD())
    F, x, y = network("bayesian"), images(5), labels(5)
    attacks = [PGD(m=2), PyautoattackAPGD(m=2)]
    records = evaluate(
        F, x, y, epsilon=0.1, attacks=attacks, n=2, n_ensemble=3, modes=["eot1", "eot"], directory=tmp_path
    )
    assert [r.label for r in records] == [
        "clean", "EOT^1-PGD", "EOT-PGD", "pyautoattack EOT^1-APGD-CE", "pyautoattack EOT-APGD-CE"
    ]  # fmt: skip
    assert len(read_all(tmp_path)) == 5
    assert (tmp_path / "pyautoattack-apgd-ce-eot2-m2-eps0.1-r0.record").exists()
    assert {"pyautoattack EOT-APGD-CE", "Total (paper's rows)"} <= {row.label for row in table(records)}
