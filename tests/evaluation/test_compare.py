"""Models side by side: the same records as each by itself, counts that are known, names of the user's, files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from graddiv import GradDivError, compare, evaluate, randomize
from graddiv.cli import app
from graddiv.seeding import isolated
from tests.audit import planted
from tests.helpers import no_type_checks

pytestmark = pytest.mark.filterwarnings("ignore::graddiv.errors.GradDivWarning")
HOW = {"attacks": ("fgsm", "pgd"), "m": 3, "n": 2, "n_ensemble": 4}


def dropout(p: float) -> nn.Module:
    with isolated(0):
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Dropout(p), nn.Linear(16, 4)).eval()


def test_records_are_those_of_each_model_by_itself_and_rows_are_the_worst_of_all_attacks() -> None:
    x, y = planted.examples(12)
    F = randomize(dropout(0.5))
    found = compare({"plain": dropout(0.5), "mc dropout": F}, x, y, epsilon=[0.05, 0.1], **HOW)
    alone = evaluate(F, x, y, epsilon=[0.05, 0.1], name="mc dropout", **HOW)  # type: ignore[arg-type]
    assert [r.target for r in found.records["mc dropout"]] == ["mc dropout"] * len(alone)
    for ours, other in zip(found.records["mc dropout"], alone, strict=True):
        assert np.array_equal(ours.correct, other.correct)
        assert np.array_equal(ours.images, other.images)
    for known in found.known["mc dropout"]:
        assert np.array_equal(known.margin, known.margin_again), "the draw that is known is the only one that answers"
        assert known.accuracy_per_draw == known.accuracy
    for row in found.rows:
        records = [r for r in found.records[row.name] if r.epsilon == row.epsilon]
        both = [np.logical_and.reduce([r.verdicts[i] for r in records]).mean() for i in range(2)]
        assert row.accuracy.mean == pytest.approx(np.mean(both))
        assert (row.known is None) == (row.name == "plain")
        # 1 + 3 iterations, a forward and a backward pass: on one model; on 1, 1 and 2 models in the three modes
        assert row.passes == (0 if not row.epsilon else 8 if row.name == "plain" else 32)


def test_an_attacker_who_knows_the_draw_leaves_what_is_left_of_a_network_that_is_that_draw() -> None:
    """Noise that is ignored: the draw is the network, and no image flips."""
    x, y = planted.examples(12)
    module = dropout(0.0)
    found = compare({"a": module, "b": randomize(module)}, x, y, epsilon=0.1, **HOW)
    a, b = (next(row for row in found.rows if row.name == name and row.epsilon) for name in "ab")
    assert a.accuracy.mean == b.accuracy.mean == b.known
    assert {(pair.lost, pair.won, pair.p) for pair in found.pairs} == {(0, 0, 1.0)}


@pytest.mark.parametrize("models", [{"a": dropout(0.5)}, {"a": dropout(0.5), "b/c": dropout(0.5)}, [dropout(0.5)]])
def test_bad_names(models: object) -> None:
    x, y = planted.examples(4)
    with no_type_checks(), pytest.raises(GradDivError, match=r"expected a name|at least two models by name"):
        compare(models, x, y, epsilon=0.1)  # type: ignore[arg-type]


def test_the_command_writes_a_page_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = planted.examples(8)
    np.savez("xs.npz", x=x.float().numpy(), y=y.numpy())
    code = "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
    code += "def plain():\n    return nn.Sequential(nn.Flatten(), nn.Linear(36, 4))\n"
    code += "def noisy():\n    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 4))\n"
    (tmp_path / "nets.py").write_text(code)
    command = ["compare", "first=nets.py:plain", "nets.py:noisy", "--data", "xs.npz", "--epsilon", "0.05,0.1"]
    command += ["--attacks", "fgsm", "--n", "2"]
    with torch.random.fork_rng():
        done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0
    directory = tmp_path / "comparisons" / "first-noisy"
    page = (directory / "report.html").read_text()
    assert "first and noisy, compared" in page
    assert "(f9" not in page
    assert {"comparison.csv", "comparison.tex", "flips.csv", "accuracy-epsilon.svg"} <= {
        path.name for path in directory.iterdir()
    }
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*.record")}
    with torch.random.fork_rng():
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert before
    assert before == {path: path.stat().st_mtime_ns for path in directory.rglob("*.record")}


def test_evaluate_keeps_all_images_unless_told_how_many_and_old_names_warn() -> None:
    x, y = planted.examples(30)
    how = {**HOW, "attacks": "fgsm", "modes": "eot1"}
    assert {len(r.images) for r in evaluate(dropout(0.5), x, y, epsilon=0.1, **how)} == {30}  # type: ignore[arg-type]
    (_, record) = evaluate(dropout(0.5), x, y, epsilon=0.1, images=3, norm="l2", name="mine", **how)  # type: ignore[arg-type]
    assert len(record.images) == 3
    assert record.attack is not None
    assert record.attack["norm"] == "L2"
    assert len(str(record).splitlines()) == 5
    assert "mine" in str(record)
    with pytest.warns(DeprecationWarning, match="suite_name is now called suite"):
        evaluate(dropout(0.5), x, y, epsilon=0.1, suite_name="demo", **how)  # type: ignore[arg-type]
