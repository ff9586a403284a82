"""README's code and commands run as they stand there, whatever stands there: small is only what they are given.

Python blocks are whole programs.  A `graddiv` command runs in an empty directory through the command line,
behind it the arguments of the longest entry of `SMALL` that it begins with.  A target of `make` has to exist.
"""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from typer.testing import CliRunner

from graddiv.cli import app
from graddiv.data import load
from graddiv.evaluation.budget import BUDGETS
from graddiv.recipes import recipe
from graddiv.training import train
from tests.audit.planted import BUDGET
from tests.helpers import SETTINGS, no_type_checks
from tests.markdown import README, ROOT, blocks, commands

SECOND_STAGE = ("stages.0.epochs=1", "stages.0.decays=[]")
HELP = ("--help",)

SMALL: dict[str, tuple[str, ...]] = {
    "graddiv attack": HELP,
    "graddiv attack runs/": ("--examples", "2", "--m", "1", "--n", "2", "--modes", "eot1"),
    "graddiv audit": HELP,
    "graddiv compare": HELP,
    "graddiv data fetch": HELP,  # it would download
    "graddiv data list": (),
    "graddiv doctor": (),
    "graddiv recipes": (),
    "graddiv report runs/": (),
    "graddiv reproduce": HELP,
    "graddiv reproduce ": ("--dry-run",),
    "graddiv reproduce --list": (),
    "graddiv train": HELP,
    "graddiv train mnist": tuple(f"--set={setting}" for setting in SETTINGS),
    "graddiv train mnist/adv-bnn+graddiv --scale quick": tuple(f"--set={s}" for s in (*SETTINGS, *SECOND_STAGE)),
    "graddiv train mnist/adv-bnn+graddiv --scale quick --from": tuple(f"--set={setting}" for setting in SETTINGS),
    "graddiv tune": HELP,
}
"""What makes a command small, by how it begins."""


COMMANDS = list(dict.fromkeys(commands(README, "graddiv")))
TARGETS = sorted({word for command in commands(README, "make") for word in command.split()[1:] if "=" not in word})
PYTHON = blocks(README, "python")


def test_there_is_something_to_run() -> None:
    assert COMMANDS
    assert PYTHON
    assert {"demo", "test"} <= set(TARGETS)


@pytest.mark.filterwarnings("ignore::graddiv.errors.GradDivWarning")  # after ten steps of training
@pytest.mark.parametrize("code", [pytest.param(c, marks=[pytest.mark.slow] if "audit(" in c else []) for c in PYTHON])
def test_python_blocks(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is a whole program but for the reader's model and data; small is only how many steps and digits it takes."""
    monkeypatch.setitem(BUDGETS["audit"], "quick", BUDGET)
    monkeypatch.chdir(tmp_path)
    small = re.sub(r"range\(200\):", "range(10):", code).replace("warmup=50, rampup=100", "warmup=2, rampup=2")
    x, y = load("mnist-mini", "test").batch(range(12))
    namespace: dict[str, Any] = {"model": nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), "x": x, "y": y}
    with no_type_checks():
        exec(compile(small, "README.md", "exec"), namespace)
    if "report" in namespace:
        assert (tmp_path / "audits" / "mine" / "report.html").exists()
        return
    assert namespace["loss"].requires_grad
    assert set(namespace["objective"].parts) == {"loss", "adversarial", "kl", "graddiv"}
    sigma = next(iter(namespace["F"].log_sigma.values()))
    assert sigma.std() > 0  # it learnt
    before, after = re.findall(r"(\d+)% of attacked", capsys.readouterr().out)
    assert int(after) > int(before) + 10


@pytest.mark.parametrize("target", TARGETS)
def test_targets_of_make(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beginning = max((start for start in SMALL if f"{command} ".startswith(start)), key=len, default=None)
    assert beginning is not None, (
        f"README has a new command, {command!r}: add its beginning to SMALL in tests/test_readme.py, with the "
        "arguments that make it small (--dry-run, --set=..., at the least --help)"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("graddiv.performance.keep_memory", lambda: True)  # not for the other tests of this process
    words = shlex.split(command)[1:]
    with no_type_checks():
        for run in (word for word in words if word.startswith("runs/")):
            train(recipe("mnist-mini/adv-bnn", "demo", SETTINGS), Path(run))
            if words[0] == "report":  # of something
                CliRunner().invoke(
                    app, ["attack", run, "--examples=2", "--attacks=pgd", "--m=1"], catch_exceptions=False
                )
        done = CliRunner().invoke(app, [*words, *SMALL[beginning]], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.output
