"""The planted collection is what it says it is, and the audit is never fooled by it."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks import auditors
from benchmarks.planted import PLANTED, Planted, families
from benchmarks.planted.digits import plain, robust
from benchmarks.planted.record import ENSEMBLE, draws
from benchmarks.planted.sound import certified, worst_logits
from benchmarks.planted.toys import Linear, images, margin_radii, proved_share, shortest_way
from graddiv.losses import soft_margin
from tests.helpers import no_type_checks

TOYS = [name for name in PLANTED if name.startswith(("toy-", "linear-"))]
DIGITS = [pytest.param(name, marks=pytest.mark.slow) for name in PLANTED if name not in TOYS]
SOUND = [name for name, planted in PLANTED.items() if planted.sound and not planted.random]
FRESH = 7
"""A seed that no attack and no judge of the collection has."""


def accuracy(planted: Planted, x: Tensor) -> float:
    """Of an ensemble of fresh draws."""
    answers = draws(planted.make(), x, ENSEMBLE if planted.random else 1, FRESH).softmax(2).mean(0).argmax(1)
    return float((answers == planted.images()[1]).double().mean())


def test_the_collection_is_large_and_in_families() -> None:
    assert len(PLANTED) >= 60
    assert all(len(names) >= 2 for names in families().values())
    assert sum(planted.partial for planted in PLANTED.values()) >= 13
    assert not any(planted.partial and planted.sound for planted in PLANTED.values())
    for family, names in families().items():
        assert any(PLANTED[name].sound for name in names), f"{family} has no control"


@pytest.mark.parametrize("name", [*TOYS, *DIGITS])
def test_the_truth_is_what_fresh_draws_say(name: str) -> None:
    planted = PLANTED[name]
    x, truth = planted.images()[0], planted.truth
    assert len(x) >= 60
    assert (clean := accuracy(planted, x)) >= 0.85
    assert truth.x_adv.shape == x.shape
    assert truth.x_adv.min() >= 0
    assert truth.x_adv.max() <= 1
    assert float(planted.distance(truth.x_adv).max()) <= planted.epsilon + 1e-9
    assert accuracy(planted, truth.x_adv) == pytest.approx(truth.accuracy, abs=0.05 if planted.random else 0)
    assert truth.lower <= truth.accuracy
    if planted.partial:
        assert truth.accuracy <= clean - 0.4, "so little is left that whoever believes in the gradient is far off"


@pytest.mark.parametrize(
    "name", [name if name in TOYS else pytest.param(name, marks=pytest.mark.slow) for name in SOUND]
)
def test_the_gradient_of_a_sound_network_is_its_derivative(name: str) -> None:
    planted = PLANTED[name]
    (x, y), model = planted.images(), planted.make()
    at = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(soft_margin(model(at), y).sum(), at)
    step = 0.02 * g / g.flatten(1).norm(dim=1).clamp_min(1e-12).view(-1, 1, 1, 1)
    with torch.no_grad():
        measured = (soft_margin(model(x + step), y) - soft_margin(model(x - step), y)) / 2
    share = measured / (g * step).flatten(1).sum(1)
    assert 0.9 <= float(share.median()) <= 1.1


def test_a_closed_form_is_one() -> None:
    (x, y), planted = images(), PLANTED["linear-half"]
    radii = margin_radii(x, y)
    fooled = Linear()(shortest_way(planted)).argmax(1) != y
    assert torch.equal(fooled, radii < planted.epsilon)
    assert proved_share(planted) == planted.truth.accuracy == pytest.approx(0.5, abs=0.02)


@pytest.mark.slow
def test_intervals_bound_the_logits() -> None:
    (x, y), module = PLANTED["certified"].images(), certified()
    bound = worst_logits(module, x, y, 0.05)
    for seed in range(5):
        moved = (x + 0.05 * (2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) - 1)).clamp(0, 1)
        z = module(moved)
        assert (z - z.gather(1, y[:, None]) <= bound + 1e-4).all()


@pytest.mark.slow
def test_training_is_repeatable() -> None:
    x = PLANTED["round-32"].images()[0]
    assert torch.equal(plain()(x), plain()(x))
    assert not torch.equal(plain()(x), robust()(x))


def row(**values: object) -> auditors.Row:
    usual = {"auditor": "a", "model": "m", "family": "f", "truth": 0.3, "lower": 0.0, "seconds": 1.0}
    return usual | {"low": 0.2, "accuracy": 0.3, "high": 0.4, "sufficient": True} | values


def test_every_answer_has_a_cell() -> None:
    assert auditors.cell(row()) == "sufficient and right"
    assert auditors.cell(row(truth=0.1)) == "sufficient and wrong"
    assert auditors.cell(row(truth=0.9, lower=0.5)) == "sufficient and wrong", "less than what is proved"
    assert auditors.cell(row(truth=0.1, sufficient=False)) == "insufficient and right"
    assert auditors.cell(row(sufficient=False)) == "insufficient though right"
    assert auditors.cell({"error": "refused"}) == "no answer"


def test_an_auditor_is_run_once_on_each_model(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    (tmp_path / "mine.py").write_text(
        f"def auditor(model, x, y, epsilon, norm):\n    open({str(calls)!r}, 'a').write('.')\n"
        "    assert norm != 'l2', 'linf only'\n    return 0.9, 0.95, 1.0, True\n"
    )
    names, mine, stored = (
        ["toy-round-64", "linear-all", "linear-l2"],
        f"{tmp_path}/mine.py:auditor",
        tmp_path / "a.json",
    )
    rows = auditors.run([mine], names[:2], stored)
    assert [auditors.cell(row) for row in rows] == ["sufficient and wrong", "sufficient and right"]
    rows = auditors.run([mine], names, stored)
    assert calls.read_text() == "...", "what is stored is not asked for again"
    assert auditors.cell(rows[2]) == "no answer"
    assert json.loads(stored.read_text()) == rows
    assert "| coding | 1 of 1 |" in auditors.tabulated(rows)
    auditors.run([mine], names[:1], stored, again=True)
    assert calls.read_text() == "...."
    assert len(json.loads(stored.read_text())) == 3


def test_images_of_another_library_are_scored_on_fresh_draws() -> None:
    class Coin(nn.Module):
        """One class in two thirds of the calls."""

        def forward(self, x: Tensor) -> Tensor:
            right = torch.rand(()) < 2 / 3
            return torch.tensor([1.0, 0.0] if right else [0.0, 1.0]).expand(len(x), 2)

    x = torch.zeros(60, 1, 2, 2)
    assert auditors.scored(Coin(), x, torch.zeros(60, dtype=torch.int64))[1:] == (1.0, 1.0, True)


def test_the_page_gets_its_tables() -> None:
    page = "before\n<!-- auditors -->\n\nold\n\n<!-- end -->\nafter"
    new = auditors.written(page, [row()])
    assert new.startswith("before\n<!-- auditors -->\n\n| auditor |")
    assert new.endswith("\n\n<!-- end -->\nafter")
    assert "old" not in new
    assert auditors.written(new, [row()]) == new


def test_the_stored_tables_are_those_of_the_page() -> None:
    page = auditors.PAGE.read_text()
    assert auditors.written(page, json.loads(auditors.STORED.read_text())) == page


def test_the_stored_audits_are_never_sufficient_and_wrong() -> None:
    """`python -m benchmarks.auditors` made them; it takes about an hour of a core."""
    rows = [row for row in json.loads(auditors.STORED.read_text()) if row["auditor"] == "graddiv"]
    said = {row["model"]: auditors.cell(row) for row in rows}
    assert len(said) >= 60
    assert not [name for name, cell in said.items() if cell == "sufficient and wrong"]
    sound = [cell for name, cell in said.items() if PLANTED[name].sound]
    assert set(sound) == {"sufficient and right"}, "no network is accused without a reason"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["toy-round-64", "linear-all", "round-8-beside", "adversarial"])
def test_the_audit_is_not_fooled(name: str, tmp_path: Path) -> None:
    with no_type_checks():
        (row,) = auditors.run(["graddiv"], [name], tmp_path / "rows.json")
    cell = auditors.cell(row)
    assert cell not in ("sufficient and wrong", auditors.NO_ANSWER), row
    assert cell == "sufficient and right" or not PLANTED[name].sound, row
