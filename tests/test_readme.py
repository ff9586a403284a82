"""README's code and commands run as they stand there, whatever stands there: small is only what they are given.

Python blocks run in a namespace of stand-ins.  A `graddiv` command runs in an empty directory through the command line,
behind it the arguments of the longest entry of `SMALL` that it begins with.  A target of `make` has to exist.
"""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from graddiv.attacks.registry import ATTACKS
from graddiv.cli import app
from graddiv.recipes import recipe
from graddiv.training import train
from tests.helpers import CLASSES, images, labels, no_type_checks
from tests.markdown import blocks, commands

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

SETTINGS = (
    *("data.name=mnist-mini", "data.examples=8", "network.width=0.05", "adversary.m=1"),
    *("training.epochs=1", "training.batch=4", "training.decays=[]"),
)
SECOND_STAGE = ("stages.0.epochs=1", "stages.0.decays=[]")
HELP = ("--help",)

SMALL: dict[str, tuple[str, ...]] = {
    "graddiv attack": HELP,
    "graddiv attack runs/": ("--examples", "2", "--m", "1", "--n", "2", "--modes", "eot1"),
    "graddiv audit": HELP,
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


def stand_ins() -> dict[str, Any]:
    """What README leaves to its reader: a module (random by dropout), a batch, its loss, the step of training."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, CLASSES))
    module = module.double().eval()
    return {
        **{"my_module": module, "my_stochastic_module": module, "x": images(2), "y": labels(2), "step": 10_000},
        "task_loss": torch.zeros((), dtype=torch.float64),
    }


def test_there_is_something_to_run() -> None:
    assert COMMANDS
    assert PYTHON
    assert {"demo", "test"} <= set(TARGETS)


@pytest.mark.filterwarnings("ignore::graddiv.errors.GradDivWarning")  # the stand-ins are untrained
@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_python_blocks(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, entry in ATTACKS.items():  # two iterations each
        quick = {"quick": 2} if entry.iterations.get("quick", 1) > 1 else {}
        monkeypatch.setitem(ATTACKS, name, entry._replace(iterations={**entry.iterations, **quick}))
    namespace = stand_ins()
    with no_type_checks():
        exec(compile(code, "README.md", "exec"), namespace)
    if "loss" in namespace:
        assert namespace["loss"].requires_grad
        assert namespace["loss"] != 0
    if "records" in namespace:
        assert all(len(record.correct) == 2 for record in namespace["records"])
        assert namespace["row"].accuracy.mean <= 1


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
