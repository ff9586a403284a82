"""What all commands share: versions, a full disk behind the output, Ctrl-C, narrow terminals."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graddiv import __version__, store
from graddiv.attacks.suites import ATTACKS
from graddiv.cli import main
from graddiv.errors import GradDivError
from graddiv.recipes import names
from tests.fake_records import arrays, description
from tests.helpers import room

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def graddiv(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "graddiv", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**ENVIRONMENT, **environment})


@pytest.mark.parametrize(
    ("said", "then"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_threads_wait_briefly_unless_the_user_says_how(
    said: dict[str, str], then: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["graddiv", "--version"])
    monkeypatch.setattr("warnings.showwarning", None)  # which main puts its own before
    with pytest.raises(SystemExit):
        main()
    assert os.environ.get("GOMP_SPINCOUNT") == then


def test_the_help_of_attack_names_every_attack() -> None:
    shown = re.sub(r"[│\s]+", " ", graddiv("attack", "--help").stdout)
    (names,) = re.findall(r"Only these attacks: ([^.]*)\.", shown)
    assert sorted(names.split(", ")) == sorted(ATTACKS)


def test_version() -> None:
    assert graddiv("--version").stdout == f"graddiv {__version__}\n"


@pytest.mark.slow
def test_recipes_can_be_copied_from_a_narrow_terminal() -> None:
    shown = graddiv("recipes", COLUMNS="60").stdout
    assert set(names()) <= {line.split()[0] for line in shown.splitlines() if line.strip()}
    assert max(map(len, shown.splitlines()[: len(names())])) <= 60


@pytest.mark.slow
def test_a_full_disk_behind_the_output_is_one_line(tmp_path: Path) -> None:
    store.write_arrays(tmp_path / "a.record", arrays(), description())
    for options in ([], ["--csv"]):
        with Path("/dev/full").open("w") as full:
            command = [sys.executable, "-m", "graddiv", "report", "--records", str(tmp_path), *options]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        assert (done.returncode, done.stderr) == (2, "graddiv: the output: No space left on device\n")


def test_a_full_disk_is_told_when_a_directory_is_locked(tmp_path: Path) -> None:
    with room(0), pytest.raises(GradDivError, match=r"cannot write .*\.lock: File too large"):
        store.locked(tmp_path).__enter__()


@pytest.mark.slow
def test_columns_of_csv_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    store.write_arrays(tmp_path / "a.record", arrays(), description())
    store.write_arrays(tmp_path / "b.record", arrays(), description("clean"))
    shown = {graddiv("report", "--records", str(tmp_path), "--csv", PYTHONHASHSEED=seed).stdout for seed in "123"}
    assert len(shown) == 1


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    options = ["--scale", "demo", "--set", "network.width=0.05", "--set", "training.epochs=500"]
    command = [
        sys.executable,
        "-m",
        "graddiv",
        "train",
        "mnist-mini/no-defense",
        *options,
        "--out",
        str(tmp_path / "r"),
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs inherit that it is ignored
    )
    while not (tmp_path / "r" / "checkpoints" / "last.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=60)
    assert said == "graddiv: stopped; the same command goes on where it stopped\n"
    assert process.returncode == 130
    assert output.splitlines()[1] == f"run directory: {tmp_path / 'r'}"


def completed(*words: str) -> list[str]:
    """What a shell is offered behind these words, the last of which is not finished."""
    line = ["graddiv", *words]
    asked = {"_GRADDIV_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(words))}
    run = "from graddiv.cli import app; app(prog_name='graddiv')"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, env={**ENVIRONMENT, **asked})
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
def test_the_shell_completes_commands_options_and_names() -> None:
    assert completed("repr") == ["reproduce"]
    assert completed("reproduce", "--dry") == ["--dry-run"]
    assert completed("reproduce", "table-m") == ["table-mnist"]
    assert completed("train", "mnist/adv-t") == ["mnist/adv-train"]
    assert completed("train", "mnist/adv-bnn", "--scale", "q") == ["quick"]
