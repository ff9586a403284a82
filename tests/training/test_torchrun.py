"""Processes that torchrun started: the commands of the help work, and a lost process ends the others with one line."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graddiv.runs import Run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent
TINY = ["network.width=0.05", "data.examples=256", "adversary.m=1", "training.epochs=30", "training.batch=32"]
TRAIN = ["train", "mnist-mini/adv-bnn", "--scale", "demo", *(word for pair in TINY for word in ("--set", pair))]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def torchrun(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "graddiv", *words]
    return subprocess.run([str(word) for word in command], env=environment(), capture_output=True, text=True)


def ranks(*words: object) -> list[subprocess.Popen[str]]:
    """Two processes as torchrun starts them, without torchrun, which would end the second when the first is lost."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "graddiv", *map(str, words)],
            env=environment(**common, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def test_a_lost_process_ends_the_others_with_one_line_and_one_process_goes_on(tmp_path: Path) -> None:
    processes = ranks(*TRAIN, "--out", tmp_path / "run")
    while not Run(tmp_path / "run").log_file.exists() or Run(tmp_path / "run").epochs_done < 2:
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGKILL)
    _, said = processes[0].communicate(timeout=120)
    processes[1].communicate()
    assert processes[0].returncode == 2
    assert re.fullmatch(r"graddiv: process 0 of 2 stops, since another one was lost: the same command .*\n", last(said))
    assert "Traceback" not in said
    alone = subprocess.run(
        [sys.executable, "-m", "graddiv", *TRAIN, "--out", str(tmp_path / "run")], env=environment(), text=True
    )
    assert alone.returncode == 0
    assert [line["processes"] for line in Run(tmp_path / "run").log if "processes" in line] == [2, 1]
    assert Run(tmp_path / "run").finished
    evaluate_in_three_ways(tmp_path)


def last(text: str) -> str:
    return text.splitlines(keepends=True)[-1]


def evaluate_in_three_ways(folder: Path) -> None:
    """With dashes, with the other name of the option, and alone: the same records."""
    options = ["--attacks", "fgsm", "--examples", "4", "--batch", "2"]
    runs = [Path(shutil.copytree(folder / "run", folder / name)) for name in ("dashes", "named", "alone")]
    tables = [
        torchrun("--", "attack", runs[0], "--n", "2", *options),
        torchrun("attack", runs[1], "--models", "2", *options),
        subprocess.run(
            [sys.executable, "-m", "graddiv", "attack", str(runs[2]), "--n", "2", *options],
            env=environment(),
            capture_output=True,
            text=True,
        ),
    ]
    assert [table.returncode for table in tables] == [0, 0, 0], tables
    contents = [{p.name: p.read_bytes() for p in sorted(Run(run).records.glob("*.record"))} for run in runs]
    assert contents[0]
    assert contents[0] == contents[1] == contents[2]
