"""Every example runs as users run it, only smaller, and prints what it promises."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each starts Python anew

ROOT = Path(__file__).parent.parent

SMALL = {
    "attack_your_model.py": ("--steps", "60", "--examples", "30", "--m", "3"),
    "mc_dropout.py": ("--steps", "8", "--batch", "16"),
    "lightning_module.py": ("--digits", "256"),
    "hugging_face_trainer.py": ("--digits", "256"),
    "graddiv_in_your_loop.py": ("--epochs", "3", "--digits", "256", "--width", "0.05", "--examples", "10"),
}
"""Arguments that make an example small."""

NEEDS = {"lightning_module.py": "lightning", "hugging_face_trainer.py": "transformers"}
"""Packages that an example needs and graddiv does not."""

PROMISED = {
    "attack_your_model.py": (
        r"PGD +accuracy \d+\.\d%, 3 forward passes",
        r"EOT\^1-PGD +accuracy \d+\.\d%, 3 forward passes",
        r"EOT-PGD +accuracy \d+\.\d%, 30 forward passes",
    ),
    "mc_dropout.py": (
        *(r"0 loss \d\.\d+", r"2 loss \d\.\d+"),
        *(rf"{step} loss \d\.\d+ lam 0\.500 R -?0\.\d+ cosine -?0\.\d+" for step in (4, 6, 8)),
    ),
    "lightning_module.py": (r"accuracy of the ensemble \d+\.\d%",),
    "hugging_face_trainer.py": (r"\{.*train_loss.*\}", r"accuracy of the ensemble \d+\.\d%"),
    "graddiv_in_your_loop.py": (
        "Bayesian network",
        *(rf"  epoch {epoch}: loss \d\.\d+, lambda 0\.00" for epoch in (1, 2, 3)),
        r"\+ GradDiv-DPP, lambda 1",
        r"  epoch 1: loss \d\.\d+, lambda 0\.00",
        *(rf"  epoch {epoch}: loss \d\.\d+, lambda 0\.\d+, mean cosine -?0\.\d+" for epoch in (2, 3)),
        "",
        r"first 10 test digits +accuracy +rho\^ \(n=20\) +debiased rho",
        *(rf"{name} +\d+\.\d% +[01]\.\d+ +[01]\.\d+" for name in ("Bayesian network", r"\+ GradDiv-DPP, lambda 1")),
        r"rho: 1 when all .*",
    ),
}
"""What it prints then, line by line."""


def test_every_example_is_run() -> None:
    assert SMALL.keys() == PROMISED.keys() == {path.name for path in (ROOT / "examples").glob("*.py")}


@pytest.mark.parametrize("name", SMALL)
def test_it_prints_what_it_promises(name: str) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / name), *SMALL[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(PROMISED[name]), done.stdout
    for line, promised in zip(lines, PROMISED[name], strict=True):
        assert re.fullmatch(promised, line), f"{line!r} is not like {promised!r}"
