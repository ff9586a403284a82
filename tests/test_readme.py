"""README's code and commands run, as they stand there: what is small about them is what they are given.

Python blocks run in a namespace of stand-ins.  A `graddiv` command runs through the command line, with the arguments of
the first entry of `SMALL` that it begins with appended; a target of `make` has to exist.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from graddiv.cli import app
from graddiv.recipes import recipe
from graddiv.training import train
from tests.helpers import convnet, images, labels, with_dropout

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

HELP = ("--help",)
TINY = tuple(
    argument
    for setting in ("training.epochs=1", "training.batch=8", "data.examples=16", "network.width=0.05", "adversary.m=1")
    for argument in ("--set", setting)
)
FASTEST = ("--examples", "2", "--m", "1", "--n", "2", "--modes", "eot1")

SMALL: dict[str, tuple[str, ...]] = {
    "graddiv reproduce --list": (),
    "graddiv reproduce": ("--dry-run",),
    "graddiv recipes": (),
    "graddiv train": (*TINY, "--set", "data.name=mnist-mini", "--set", "training.decays=[]"),
    "graddiv attack": FASTEST,
    "graddiv doctor": (),
    "graddiv data list": (),
    "graddiv data fetch": HELP,  # it would download
    "graddiv tune": HELP,
}
"""What is appended to a command of README, by how the command begins; the first that fits counts."""


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language; "" for those without one."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands(program: str) -> Iterator[str]:
    """Every line of a shell block, and every `command` in the text, that calls the program."""
    lines = [line for language in ("", "bash", "sh", "console") for block in blocks(language) for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    for text in [*lines, *re.findall(r"`([^`\n]+)`", prose)]:
        command = text.split("#")[0].removeprefix("$ ").strip()
        if command.startswith(f"{program} "):
            yield command


COMMANDS = list(dict.fromkeys(commands("graddiv")))
TARGETS = sorted({target for command in commands("make") for target in command.split()[1:] if "=" not in target})
PYTHON = blocks("python")


def stand_ins() -> dict[str, Any]:
    """What README leaves to its reader: a module (with dropout, so random too), a batch, its loss, the step."""
    module = with_dropout(convnet())
    return {
        **{"my_module": module.eval(), "my_stochastic_module": module, "x": images(3), "y": labels(3), "step": 1000},
        "task_loss": torch.zeros((), dtype=torch.float64),
    }


def test_there_is_something_to_run() -> None:
    assert len(COMMANDS) >= 4
    assert len(PYTHON) >= 2
    assert {"demo", "test"} <= set(TARGETS)


@pytest.mark.parametrize("code", PYTHON, ids=[f"block {i}" for i in range(len(PYTHON))])
def test_python_blocks(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    suites = "graddiv.evaluation.robustness.SUITES"
    monkeypatch.setitem(__import__("graddiv.evaluation.robustness", fromlist=["SUITES"]).SUITES, "quick", ONE_STEP)
    assert suites
    namespace = stand_ins()
    exec(compile(code, "README.md", "exec"), namespace)
    if "loss" in namespace:
        assert namespace["loss"].isfinite()
        assert namespace["loss"].requires_grad
    if "records" in namespace:
        assert {record.mode for record in namespace["records"]} == {"fixed", "eot1", "eot"}


@pytest.mark.parametrize("target", TARGETS)
def test_targets_of_make(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beginning = next((start for start in SMALL if command.startswith(start)), None)
    assert beginning is not None, (
        f"README has the command {command!r}: add how it begins to SMALL in {Path(__file__).name}, "
        "with the arguments that make it small"
    )
