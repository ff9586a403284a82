"""Damaged files are refused by name: flipped bits, swapped and retagged tensors, missing parts, files that are none."""

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graddiv import store
from graddiv.attacks import PGD
from graddiv.data import load
from graddiv.errors import GradDivError
from graddiv.evaluation import evaluate
from graddiv.paper.shipped import shipped
from graddiv.records import Record
from graddiv.runs import Run
from graddiv.training import train
from tests.fake_records import arrays, description
from tests.fuzz.damage import flip_a_bit
from tests.helpers import no_type_checks
from tests.training.helpers import loader, tiny

EXPERIMENT = tiny("mnist/adv-bnn+graddiv", "training.epochs=2")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("graddiv.data.load", loader(8))
    train(EXPERIMENT, tmp_path / "run")
    return Run(tmp_path / "run")


@pytest.fixture
def record(tmp_path: Path) -> Path:
    store.write_arrays(tmp_path / "a.record", arrays(), description())
    return tmp_path / "a.record"


def test_one_flipped_bit_anywhere_is_noticed(run: Run, record: Path) -> None:
    chance = random.Random(0)
    for path, read in (
        (record, lambda: Record.load(record)),
        (run.last_checkpoint, run.state),
        (run.log_file, lambda: run.log),
    ):
        content = path.read_bytes()
        for _ in range(100):
            path.write_bytes(flip_a_bit(chance, content))
            with pytest.raises(GradDivError, match=path.name):
                read()
        path.write_bytes(content)
        read()


def test_every_byte_of_a_small_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "file"
    store.write_arrays(path, {"flags": np.array([True, False])}, {"a": 1})
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(GradDivError):
            store.read_arrays(path)


def rewritten(path: Path, header: dict[str, object], data: bytes) -> None:
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def parts(path: Path) -> tuple[dict[str, dict[str, object]], bytes]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def test_swapped_and_retagged_tensors_are_noticed(record: Path, run: Run) -> None:
    header, data = parts(record)
    swapped = {**header, "correct": header["correct_again"], "correct_again": header["correct"]}
    rewritten(record, swapped, data)
    with pytest.raises(GradDivError, match="is damaged: its content has sha256"):
        Record.load(record)
    header, data = parts(run.last_checkpoint)
    name = "network.module.0.weight"
    rewritten(run.last_checkpoint, {**header, name: {**header[name], "dtype": "I32"}}, data)
    with pytest.raises(GradDivError, match=r"is damaged: .*; restore it from a copy, or delete it and run the command"):
        run.network()
    del header["__metadata__"]["sha256"]
    rewritten(run.last_checkpoint, header, data)
    with pytest.raises(GradDivError, match="not a file that graddiv wrote"):
        run.network()


def test_a_tensor_of_another_type_is_noticed(run: Run) -> None:
    tensors, about = store.read_tensors(run.last_checkpoint)
    name = "network.module.0.weight"
    store.write_tensors(run.last_checkpoint, {**tensors, name: tensors[name].int()}, about)
    with pytest.raises(GradDivError, match=r"0\.weight is of type torch\.int32, expected torch\.float32"):
        run.network()


def test_a_training_does_not_go_on_without_its_moments(run: Run) -> None:
    state, about = store.read_tensors(run.last_checkpoint)
    about["progress"]["step"] -= 1
    kept = {name: t for name, t in state.items() if name != "adam.exp_avg_sq.module.0.weight"}
    store.write_tensors(run.last_checkpoint, kept, about)
    with pytest.raises(GradDivError, match=r"it lacks adam\.exp_avg_sq\.module\.0\.weight"):
        train(EXPERIMENT, run.path)
    none = {name: t for name, t in state.items() if not name.startswith("adam.")}
    store.write_tensors(run.last_checkpoint, none, about)
    with pytest.raises(GradDivError, match=r"last\.safetensors lacks the moments of Adam"):
        train(EXPERIMENT, run.path)
    odd = {**state, "adam.exp_avg.module.0.weight": torch.zeros(3)}
    store.write_tensors(run.last_checkpoint, odd, about)
    with pytest.raises(GradDivError, match=r"adam\.exp_avg\.module\.0\.weight has shape \(3,\) there"):
        train(EXPERIMENT, run.path)


def test_lines_of_a_log_cannot_be_taken_out_or_turned_around(run: Run) -> None:
    first, second, *rest = run.log_file.read_bytes().splitlines(keepends=True)
    for lines in ([second, first, *rest], [first, *rest], [first, first, second, *rest], [b"{}\n", second, *rest]):
        run.log_file.write_bytes(b"".join(lines))
        with pytest.raises(GradDivError, match=r"metrics\.jsonl is damaged: line \d is not as it was written"):
            _ = run.log
    run.log_file.write_bytes(b"".join([first, second, *rest[:-1]]))
    with pytest.raises(GradDivError, match="bytes where the checkpoint knows of"):
        run.network()


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.record")
    (tmp_path / "b.record").mkdir()
    (tmp_path / "c.record").symlink_to("/dev/zero")
    for name, kind in (("a", "a FIFO"), ("b", "a directory"), ("c", "a device")):
        with pytest.raises(GradDivError, match=rf"cannot read .*{name}\.record: it is {kind}, expected a regular file"):
            Record.load(tmp_path / f"{name}.record")
    os.mkfifo(tmp_path / store.LOCK)
    assert not store.is_locked(tmp_path)
    store.write(tmp_path / "d", b"1234")
    with pytest.raises(GradDivError, match="it has 4 bytes, expected at most 3"):
        store.read(tmp_path / "d", 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", r"version\.json: it holds list \[\], expected an object"),
        ('{"format": "new"}', "says that the format is 'new', expected a number"),
        ("[" * 100_000, "nested deeper than 40 levels|too deeply|as JSON"),
        ('{"a": ' * 60 + "1" + "}" * 60, "nested deeper than 40 levels"),
        ("1" * 6000, "as JSON: Exceeds the limit"),
        ('{"format": ', r"version\.json as JSON"),
    ],
)
def test_documents_that_are_none(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "version.json").write_text(content)
    with pytest.raises(GradDivError, match=message):
        Run(tmp_path).check_format()


@pytest.mark.slow
def test_files_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    """Recipes with comments in Greek are read, and tables with signs beyond ASCII are printed."""
    (tmp_path / "mine.toml").write_text("# λ = 1\n" + EXPERIMENT.to_toml(), encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for command in (["recipes", "mine.toml"], ["report", "--records", "."]):
        store.write_arrays(tmp_path / "a.record", arrays(), description())
        store.write_arrays(tmp_path / "b.record", arrays(seed=1), description(repeat=1))
        done = subprocess.run(
            [sys.executable, "-m", "graddiv", *command],
            cwd=tmp_path,
            env={**os.environ, **plain, "PYTHONPATH": str(Path(__file__).parent.parent)},
            capture_output=True,
        )
        assert done.returncode == 0
        assert all(line.startswith(b"next: ") for line in done.stderr.splitlines())
    assert "±".encode() in done.stdout


@pytest.mark.slow
def test_checksums_cost_less_than_a_hundredth_of_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EOT-PGD on a small network is a hard case: the larger the network and the attack, the smaller their share."""
    spent = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal spent
            begun = time.process_time()
            result = function(*arguments)
            spent += time.process_time() - begun
            return result

        return call

    monkeypatch.setattr(store, "_with_description", timed(store._with_description))
    monkeypatch.setattr(store.hashlib, "sha256", timed(hashlib.sha256))
    F, data = shipped("adv-bnn").network(), load("mnist-mini", "test").take(slice(0, 40))
    begun = time.process_time()
    with no_type_checks():
        evaluate(F, data, epsilon=0.2, attacks=[PGD(m=5)], modes=["eot"], n=5, batch=20, directory=tmp_path)
    share = spent / (time.process_time() - begun)
    print(f"checksums took {100 * share:.3f} % of the evaluation")
    assert 0 < share < 0.01
