"""From an audit to files: the page, the card, resuming, the commands, the board, scoring again."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn
from typer.testing import CliRunner

from graddiv import audit
from graddiv.cli import app
from graddiv.errors import GradDivError
from graddiv.evaluation.budget import BUDGETS
from graddiv.evaluation.card import Audit, board, rescore
from graddiv.evaluation.judgement import gain_bound, images_hash, worst_of
from graddiv.geometry import NORMS
from graddiv.records import JudgementRecord
from graddiv.report.audit import Pictures, attack_table, write_page
from tests.audit.planted import BUDGET, Linear, Noisy, examples, margin_radii
from tests.helpers import no_type_checks

X, Y = examples()
RADIUS = float(margin_radii(X, Y).median()) + 1e-4
HOW: dict[str, Any] = {"epsilon": RADIUS, "budget": BUDGET, "n_ensemble": 5}


class Divided(nn.Module):
    """x / by: images of bytes as those of shares."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x / self.by


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("audits") / "noisy"
    with no_type_checks():
        audit(Noisy(Linear()), X, Y, out=out, name="noisy", about={"authors": "A"}, **HOW)
    return out


@pytest.fixture(scope="module")
def card(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "card.json").read_text()))


def test_the_card_has_the_keys_of_robustbench_and_ours(card: dict[str, Any]) -> None:
    theirs = {"link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue", "architecture"}
    assert theirs | {"eps", "clean_acc", "reported", "autoattack_acc", "unreliable", "footnote", "external"} <= set(
        card
    )
    assert (card["name"], card["authors"]) == ("noisy", "A")
    assert card["randomness"]["random"]
    for numbers in (card["clean"], card["robust"]):
        assert 0 <= numbers["A1"]["low"] <= numbers["A1"]["mean"] <= numbers["A1"]["high"] <= 1
        assert numbers["W"]["10"]["mean"] <= numbers["A1"]["mean"]
    assert card["robust"]["oracle"] is not None
    assert card["sweep"]["doublings"]
    assert sum(attack["worst_on"] for attack in card["attack"]["attacks"]) <= len(X)


def test_adversarial_examples_lie_in_the_ball_and_have_the_hash_of_the_card(
    directory: Path, card: dict[str, Any]
) -> None:
    with np.load(directory / "adversarial.npz") as found:
        assert images_hash(found["x_adv"]) == card["x_adv_sha256"]
        assert np.abs(found["x_adv"] - found["x"]).max() <= RADIUS + 1e-6
        assert found["x_adv"].shape == tuple(X.shape)


def test_the_page(directory: Path, card: dict[str, Any]) -> None:
    html = (directory / "report.html").read_text()
    for item in (*card["checks"].values(), *card["indicators"]):
        assert item["name"][1:].split(",")[0][:30] in html.replace("\u00a0", " ")
    assert html.index("Accuracy against the perturbation bound") < html.index("Before the attacks")
    for link in re.findall(r'href="([^"#:]+)"', html):
        assert (directory / link).exists(), link
    assert len(re.findall("<h1", html)) == 1
    passed = [sum(item["verdict"] == "pass" for item in items) for items in blocks(card)]
    folded = re.findall(r"(\d+) of (\d+) checks passed", html)
    assert folded == [(str(n), str(len(items))) for n, items in zip(passed, blocks(card), strict=True) if n]
    assert html.count("What it means, and what to do") == sum(map(len, blocks(card)))


def blocks(card: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return [list(card["checks"].values()), card["indicators"]]


@pytest.mark.parametrize(
    ("shortcomings", "warnings", "verdict"),
    [
        (["x"], ["z"], "evidence insufficient"),
        ([], ["z"], "evidence sufficient, with 1 warning"),
        ([], ["z", "w"], "evidence sufficient, with 2 warnings"),
        ([], [], "evidence sufficient"),
    ],
)
def test_the_verdict_follows_the_checks(shortcomings: list[str], warnings: list[str], verdict: str) -> None:
    found = SimpleNamespace(shortcomings=shortcomings, warnings=warnings, verdict=verdict)
    assert Audit.verdict.fget(found) == verdict  # type: ignore[attr-defined]
    reasons = [f"{verdict}: {text}" for text in shortcomings or warnings]
    assert Audit.verdict_lines.fget(found) == (reasons or [verdict])  # type: ignore[attr-defined]


def test_a_page_with_a_warning_and_an_attack_that_failed(card: dict[str, Any], tmp_path: Path) -> None:
    pictures = Pictures(*(np.zeros((2, 1, 6, 6), np.float32) for _ in range(2)), np.array([1, 2]), [1, 2], [1, 3])
    verdict = {"shortcomings": [], "warnings": ["z: warn, w"], "verdict": "evidence sufficient, with 1 warning"}
    html = write_page({**card, **verdict}, pictures, {}, tmp_path).read_text(encoding="utf-8")
    assert '<span class="verdict-word warn">Evidence sufficient, with 1 warning.</span>' in html
    assert "Z: warn, w." in html
    assert "No sign was found" not in html
    assert '<span class="right">1</span> → <span class="right">1</span>' in html
    assert '<span class="right">2</span> → <span class="wrong">3</span>' in html


def test_rows_of_attacks_carry_n_and_m(card: dict[str, Any]) -> None:
    rows = attack_table(card).rows
    assert [row[3:5] for row in (rows[0], rows[-1])] == [("", ""), ("", "")]
    for row, found in zip(rows[1:-1], card["attack"]["attacks"], strict=True):
        assert row[3] == str(found["n"])
        assert row[4].split(" × ")[0] == str(found.get("m", found.get("samples")))


@pytest.mark.slow
def test_a_second_run_computes_nothing_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*.record")}
    card = (directory / "card.json").read_bytes()
    with no_type_checks():
        found = audit(Noisy(Linear()), X, Y, out=directory, name="noisy", about={"authors": "A"}, **HOW)
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*.record")} == before
    assert (directory / "card.json").read_bytes() == card
    robust = json.loads(card)["robust"]
    for (who, *_), key in zip(found.rows, (robust["A1"], robust["A_T"], robust["W"]["10"]), strict=True):
        numbers = f"{100 * key['mean']:.1f} % ({100 * key['low']:.1f} to {100 * key['high']:.1f})"
        assert re.search(rf"^{who}: clean .* attacked {re.escape(numbers)}$", str(found), re.MULTILINE)
    assert str(found).endswith("\n".join(found.verdict_lines))


def test_another_network_in_the_same_directory_is_refused(directory: Path) -> None:
    with pytest.raises(GradDivError, match="answers otherwise"):
        audit(Noisy(Linear(), sigma=0.5), X, Y, out=directory, name="noisy", **HOW)


def test_scoring_again_and_lowering(directory: Path, card: dict[str, Any], tmp_path: Path) -> None:
    with no_type_checks():
        again = rescore(directory, Noisy(Linear()))
    assert again["same_network"]
    assert again["now"].mean == pytest.approx(card["robust"]["A_T"]["mean"], abs=0.2), "two ensembles scored the card"
    assert not again["lowered"]
    with np.load(directory / "adversarial.npz") as found:
        x, y = found["x"], found["y"]
    w = Linear().weight.detach().numpy()
    z = (x.reshape(len(x), -1) - 0.5) @ w.T
    z[np.arange(len(y)), y] = -np.inf
    towards = np.sign(w[z.argmax(1)] - w[y]).reshape(x.shape).astype(np.float32)
    np.savez(tmp_path / "better.npz", x_adv=np.clip(x + RADIUS * towards, 0, 1))
    np.savez(tmp_path / "outside.npz", x_adv=np.clip(x + 1.5 * RADIUS * towards, 0, 1))
    with pytest.raises(GradDivError, match="farther than epsilon"):
        rescore(directory, Noisy(Linear()), tmp_path / "outside.npz")
    (tmp_path / "damaged.npz").write_bytes((tmp_path / "better.npz").read_bytes()[:-9])
    with pytest.raises(GradDivError, match=r"cannot read .*damaged\.npz"):
        rescore(directory, Noisy(Linear()), tmp_path / "damaged.npz")
    forged = {**card, "robust": {**card["robust"], "A_T": {"mean": 1.0, "low": 0.9, "high": 1.0, "spread": 0.0}}}
    (directory / "card.json").write_text(json.dumps(forged))
    with no_type_checks():
        better = rescore(directory, Noisy(Linear()), tmp_path / "better.npz", who="B")
    assert better["lowered"]
    assert json.loads((directory / "card.json").read_text())["external"][0]["who"] == "B"
    page = board(directory.parent).read_text()
    assert "lowered by B" in page
    (directory / "card.json").write_text(json.dumps(card))


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (0.0, 255.0)])
@pytest.mark.slow
def test_a_network_in_double_precision_is_scored_again(bounds: tuple[float, float], tmp_path: Path) -> None:
    model = nn.Sequential(Divided(bounds[1]), Linear()).double()
    with no_type_checks():
        found = audit(model, bounds[1] * X.double(), Y, out=tmp_path, bounds=bounds, **HOW)
        again = rescore(tmp_path, model)
    assert again["same_network"]
    assert again["now"].mean == pytest.approx(found.robust.ensemble.mean, abs=0.05)


def test_the_board_ranks_by_the_lower_bound(card: dict[str, Any], tmp_path: Path) -> None:
    def entry(name: str, mean: float, low: float, **changed: Any) -> None:
        robust = {**card["robust"], "A_T": {"mean": mean, "low": low, "high": 1.0, "spread": 0.0}}
        (tmp_path / name).mkdir()
        (tmp_path / name / "card.json").write_text(json.dumps({**card, "name": name, "robust": robust, **changed}))

    entry("few-images", 0.9, 0.3)
    entry("many-images", 0.8, 0.75)
    entry("no-sweep", 1.0, 0.99, sweep={"doublings": [], "tolerance": 0.05, "upper_bound_gain": 1.0})
    board(tmp_path)
    lines = (tmp_path / "board.csv").read_text().splitlines()[1:]
    assert [line.split(",")[0] for line in lines] == ["many-images", "few-images", "no-sweep"]
    assert "unaudited" in lines[-1]
    with pytest.raises(GradDivError, match="there is no card"):
        board(tmp_path / "few-images" / "nothing")


@pytest.mark.slow
def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUDGETS["audit"], "quick", BUDGET)
    monkeypatch.chdir(tmp_path)
    np.savez("xs.npz", x=X.numpy(), y=Y.numpy())
    Path("mine.py").write_text("from tests.audit.planted import Linear\n\n\ndef factory():\n    return Linear()\n")
    runner = CliRunner()
    with no_type_checks():
        result = runner.invoke(
            app, ["audit", "mine.py:factory", "--data", "xs.npz", "--epsilon", f"{RADIUS}", "--out", "a"]
        )
    assert result.exit_code == 0, result.output
    assert "report: a/report.html" in result.output
    result = runner.invoke(app, ["board", "a", "--rescore", "--model", "mine.py:factory"])
    assert "on the card" in result.output, result.output
    assert runner.invoke(app, ["board", "."]).exit_code == 0
    for arguments, message in (
        (["audit", "mine.py:nothing", "--data", "xs.npz"], "has no 'nothing'"),
        (["audit", "none.py:factory", "--data", "xs.npz"], "there is no none.py"),
        (["audit", "mine.py:factory"], "--data is missing"),
        (["audit", "mine.py:factory", "--data", "xs.npz", "--epsilon", "8"], "8/255 = 0.03137 perhaps"),
        (["audit", "mine.py:factory", "--data", "xs.npz", "--norm", "l1"], "unknown norm 'l1'"),
        (["audit", "mine.py:factory", "--data", "xs.npz", "--about", "autors=me"], "did you mean 'authors'"),
    ):
        with pytest.raises(GradDivError, match=message):
            runner.invoke(app, arguments, catch_exceptions=False)


def test_the_worst_of_k_is_unbiased_and_the_plug_in_is_not() -> None:
    record = JudgementRecord.made(
        {
            "of": "x", "images": "", "outcomes": 0, "target": "t", "parameters": "", "examples": 1, "n_ensemble": 20,
            "data": {"name": "d", "split": "s", "sha256": ""}, "seed": 0, "batch": 1,
        },
        {
            "ids": np.arange(1), "labels": np.zeros(1, int), "right": np.arange(20)[None] >= 2,
            "correct": np.ones((1, 1), bool), "share": np.array([0.9], np.float32),
        },
        "here",
    )  # fmt: skip
    assert worst_of(record, 10)[0] == pytest.approx(0.2368, abs=1e-4)
    assert worst_of(record, 19)[0] == 0
    assert worst_of(record, 1)[0] == pytest.approx(0.9)


def test_the_bound_of_a_gain() -> None:
    same = np.ones(300, bool)
    gain, bound = gain_bound([same], [same], 0.05)
    assert gain == 0
    assert bound == pytest.approx(3 / 300, rel=0.02), "no flip among N leaves 3/N open"
    fallen = same.copy()
    fallen[:30] = False
    gain, bound = gain_bound([same], [fallen], 0.05)
    assert gain == pytest.approx(0.1)
    assert 0.1 < bound < 0.15
    assert gain_bound([fallen], [same], 0.05)[1] < 0.02


def test_budgets_ask_for_as_many_images_as_their_tolerance_needs() -> None:
    for budget in BUDGETS["audit"].values():
        n = budget.images_needed
        assert 1 - budget.level ** (1 / n) <= budget.tolerance < 1 - budget.level ** (1 / (n - 1))
        assert budget.looks <= 5
    assert NORMS["l2"].diameter(16) == 4
