import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graddiv import store
from graddiv.cli import app
from graddiv.cli.doctor import PEERS, REQUIRED
from graddiv.errors import GradDivError
from graddiv.paper.shipped import RangeCheck
from graddiv.runs import Log
from tests.fake_records import arrays, description
from tests.training.helpers import tiny

ROOT = Path(__file__).parents[2]


def graddiv(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    command = [sys.executable, "-m", "graddiv", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


@pytest.mark.slow
def test_doctor_tells_versions_machine_and_data() -> None:
    done = graddiv("doctor", GRADDIV_DATA="", HOME="/nonexistent", XDG_CACHE_HOME="/nonexistent")
    assert done.returncode == 0, done.stderr
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith("  "))
    import torch

    assert rows["torch"] == torch.__version__
    assert "GiB" in rows["memory"]
    assert "cores" in rows["threads"]
    assert rows["mnist-mini"] == "embedded in the package"
    assert rows["cifar10"] == "missing; get it with 'graddiv data fetch cifar10'"


def test_the_lists_are_those_that_are_installed_from() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [re.split("[<>=]", line)[0] for line in project["dependencies"]] == list(REQUIRED)
    lines = (ROOT / "requirements" / "peers.txt").read_text().splitlines()
    assert [line.partition("==")[0] for line in lines if not line.startswith("#")] == list(PEERS)


@pytest.mark.slow
def test_a_users_mistake_is_one_sentence_and_exit_code_2() -> None:
    done = graddiv("data", "list", "--data-root", "~nobody-here/x")
    assert done.returncode == 2
    assert done.stderr.startswith("graddiv: data root ~nobody-here/x names the home")
    assert done.stderr.count("\n") == 1


def test_an_unknown_command_exits_with_2() -> None:
    done = graddiv("doctr")
    assert done.returncode == 2
    assert "doctor" in done.stderr


@pytest.mark.slow
def test_the_selfcheck_finds_what_is_expected_and_notices_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    done = graddiv("doctor", "--selfcheck", "--device", "cpu")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(": ok") == 5
    wrong = [RangeCheck("clean accuracy", 12.0, 96, 100)]
    monkeypatch.setattr("graddiv.paper.shipped.selfcheck", lambda device: iter(wrong))
    result = CliRunner().invoke(app, ["doctor", "--selfcheck", "--device", "cpu"])
    assert result.exit_code == 1
    assert "NOT AS EXPECTED" in result.output


def test_doctor_of_a_run_names_what_is_damaged(tmp_path: Path) -> None:
    store.make_directory(tmp_path / "records")
    for name in ("a", "b"):
        store.write_arrays(tmp_path / "records" / f"{name}.record", arrays(), description())
    store.write_json(tmp_path / "experiment.json", tiny("mnist/adv-bnn").dump())
    log = Log(tmp_path / "metrics.jsonl")
    log(event="start")
    log.close()
    (tmp_path / "notes.txt").write_text("not ours")
    whole = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert (whole.exit_code, whole.stdout.split(": ")[1]) == (
        0,
        "4 files read, 0 damaged; 3 are as they were written by their checksum, 1 have none\n",
    )
    path = tmp_path / "records" / "b.record"
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    found = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert found.exit_code == 1
    assert found.output.startswith(f"DAMAGED {path}: {path} is damaged: its content has sha256")
    with pytest.raises(GradDivError, match="there is no directory"):
        CliRunner().invoke(app, ["doctor", str(tmp_path / "none")], catch_exceptions=False)


def test_it_lists_the_libraries_that_tests_compare_with() -> None:
    said = CliRunner().invoke(app, ["doctor", "--peers"], catch_exceptions=False).output
    assert "torchattacks" in said
    assert "torchattacks" not in CliRunner().invoke(app, ["doctor"], catch_exceptions=False).output
