"""What another package registers goes from a recipe to a report: CONTRIBUTING.md, on the package of tests/outside."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OUTSIDE = ROOT / "tests" / "outside"


def graddiv(here: Path, *words: str) -> str:
    path = os.pathsep.join(map(str, (ROOT, OUTSIDE)))
    command = [sys.executable, "-m", "graddiv", *words]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_one_of_each_kind_from_a_recipe_to_a_report(tmp_path: Path) -> None:
    said = graddiv(tmp_path, "train", str(OUTSIDE / "recipe.toml"), "--out", "run")
    assert "shaken on greys" in said
    assert "R_length-of-sum" in said
    assert " size " in said
    said = graddiv(tmp_path, "attack", "run", "--attacks", "brighter", "--modes", "eot", "--n", "2", "--epsilon", "0.1")
    assert "EOT-Brighter" in said
    assert "brightness" in graddiv(tmp_path, "measure", "run", "--what", "brightness", "--epsilon", "0.1")
    graddiv(tmp_path, "report", "run", "--epsilon", "0.1", "--out", "report")
    made = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"attacks-eps0.1.md", "brightness.md", "training-concentration.svg"} <= made


@pytest.mark.slow
def test_a_check_of_another_package_is_found() -> None:
    code = "from graddiv.evaluation.inspection import CHECKS; print(CHECKS['small_logits'].title)"
    path = os.pathsep.join(map(str, (ROOT, OUTSIDE)))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.stdout == "logits are small\n", done.stderr
