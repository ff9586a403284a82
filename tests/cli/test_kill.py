"""`graddiv reproduce` and `graddiv tune`, killed at random moments: the end is the same as without."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from graddiv import store
from graddiv.cli import app
from graddiv.tuning import Search, tune
from tests.dying import ended, forked
from tests.helpers import TINY, no_type_checks
from tests.tuned import EXPERIMENT, JUDGE, Watch

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # fork beside threads
KILLS = 4
ROOT = Path(__file__).parents[2]


def killed(work: Callable[[], object], duration: float) -> int:
    """Kill the work at random moments, then let it end; return how often it was."""
    chance, kills = random.Random(1), 0
    for _ in range(KILLS):
        child = forked(work)
        time.sleep(chance.uniform(0.05, 0.5) * duration)
        os.kill(child, signal.SIGKILL)
        kills += ended(child) == -signal.SIGKILL
    assert ended(forked(work)) == 0
    return kills


def test_reproduce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graddiv.performance.keep_memory", lambda: True)
    target = ["reproduce", "scatter", "--data", "mnist-mini", "--scale", "demo", *TINY]

    def carry_out(where: Path) -> None:
        words = [*target, "--runs", str(where / "runs"), "--out", str(where / "out")]
        with no_type_checks():
            assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0

    for name in ("first", "whole"):  # the first imports what the children then have
        begun = time.monotonic()
        carry_out(tmp_path / name)
    assert killed(lambda: carry_out(tmp_path / "killed"), time.monotonic() - begun) > 0
    found = [results(tmp_path / name) for name in ("whole", "killed")]
    assert found[0].keys() == found[1].keys()
    assert [name for name in found[0] if found[0][name] != found[1][name]] == []
    done = subprocess.run(
        [sys.executable, "-m", "graddiv", *target, "--runs", tmp_path / "whole" / "runs", "--out", tmp_path / "c"],
        env={**os.environ, **{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "c" / "report.html").read_bytes() == (tmp_path / "whole" / "out" / "report.html").read_bytes()


def results(where: Path) -> dict[str, bytes]:
    """What must not depend on kills: records, tables, tensors of checkpoints (which also know how long the log was)."""
    found = {str(p.relative_to(where)): p for p in sorted(where.rglob("*"))}
    same = {name: p.read_bytes() for name, p in found.items() if p.suffix in (".record", ".csv")}
    checkpoints = {name: store.read_tensors(p)[0] for name, p in found.items() if p.suffix == ".safetensors"}
    return same | {name: repr({k: c[k].tolist() for k in sorted(c)}).encode() for name, c in checkpoints.items()}


def test_tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Watch(monkeypatch)
    grid = Search(("kappa",), (0.1, 1.0))

    def search(name: str) -> Any:
        with no_type_checks():
            return tune(EXPERIMENT, tmp_path / name, grid, JUDGE)

    for name in ("first", "whole"):
        begun = time.monotonic()
        whole = search(name)
    assert killed(lambda: search("killed"), time.monotonic() - begun) > 0
    assert [str(result) for result in search("killed")] == [str(result) for result in whole]
