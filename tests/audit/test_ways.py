"""Other ways to audit: in the l2 norm, with other libraries, a run of ours, and with several processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from graddiv import audit
from graddiv.training import train
from tests.audit.planted import BUDGET, Linear, examples
from tests.helpers import no_type_checks
from tests.training.helpers import loader, random_data, tiny

pytestmark = pytest.mark.slow
X, Y = examples()
ROOT = Path(__file__).parents[2]
NOISY = """
from graddiv.evaluation.budget import BUDGETS
from tests.audit.planted import BUDGET, Linear, Noisy

BUDGETS["audit"]["quick"] = BUDGET


def factory():
    return Noisy(Linear())
"""


def l2_radii() -> torch.Tensor:
    """The l2 distance of each image from the nearest boundary, in closed form."""
    module = Linear()
    with torch.no_grad():
        z = module(X)
        gaps = z.gather(1, Y[:, None]) - z
        norms = torch.linalg.vector_norm(module.weight[Y][:, None] - module.weight[None], dim=2)
    return (gaps / norms.clamp_min(1e-9)).scatter(1, Y[:, None], torch.inf).amin(1)


def test_in_the_l2_norm_the_accuracy_of_a_linear_network_is_the_closed_form() -> None:
    radii = l2_radii()
    epsilon = float(radii.median()) + 1e-3
    with no_type_checks():
        found = audit(Linear(), X, Y, epsilon=epsilon, norm="l2", budget=BUDGET)
    assert found.robust.ensemble.mean == pytest.approx(float((radii > epsilon).float().mean()), abs=0.02)
    assert found.card["norm"] == "L2"
    distance = np.linalg.norm((found.x_adv - X.numpy()).reshape(len(X), -1), axis=1)
    assert 0.9 * epsilon < distance.max() <= epsilon + 1e-6


def test_attacks_of_other_libraries_are_among_the_attacks() -> None:
    pytest.importorskip("torchattacks")
    with no_type_checks():
        found = audit(Linear(), X, Y, epsilon=0.1, budget=BUDGET, peers="torchattacks")
    labels = [attack["label"] for attack in found.card["attack"]["attacks"]]
    assert any("torchattacks" in label for label in labels), labels


def command(*words: object, processes: int = 1) -> subprocess.CompletedProcess[str]:
    start = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    line = [sys.executable, *start, "-m", "graddiv", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(line, env=environment, capture_output=True, text=True)


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    np.savez(tmp_path / "xs.npz", x=X[:12].numpy(), y=Y[:12].numpy())
    (tmp_path / "mine.py").write_text(NOISY)
    words = ["audit", tmp_path / "mine.py:factory", "--data", tmp_path / "xs.npz", "--epsilon", "0.1", "--batch", "6"]
    made = [command(*words, "--out", tmp_path / str(n), processes=n) for n in (1, 2)]
    cards = [json.loads((tmp_path / str(n) / "card.json").read_text()) for n in (1, 2)]
    assert cards[0] == cards[1]
    expected = 0 if cards[0]["complete"] else 3
    assert made[0].returncode == expected, made[0].stderr
    assert made[1].returncode == min(expected, 1), "torchrun knows no other failure"
    assert made[1].stdout.count("report: ") == 1, "one process speaks"
    contents = [{p.name: p.read_bytes() for p in (tmp_path / str(n)).rglob("*.record")} for n in (1, 2)]
    assert contents[0] == contents[1]


def test_a_run_of_ours_is_audited_as_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graddiv.data.load", loader(32))
    data = random_data("mnist", 8, "test")
    with no_type_checks():
        train(tiny("mnist/adv-bnn"), tmp_path / "run")
        found = audit(tmp_path / "run", data, epsilon=0.1, budget=BUDGET, n_ensemble=2, out=tmp_path / "a")
    assert found.subject.target.random
    assert found.card["randomness"]["law"] == "GaussianNetwork"
    assert found.exit_code == 3, "8 images show little"
    assert "not enough evidence" in (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
