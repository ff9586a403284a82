"""SIGKILL at any moment, also in the middle of writing a file: going on ends with the same bits."""

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from graddiv import store
from graddiv.training import train
from tests.dying import die_at, ended, forked
from tests.helpers import no_type_checks
from tests.training.helpers import assert_same_outcome, loader, tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # fork beside threads
KILLS = 20
EXPERIMENT = tiny("mnist/adv-bnn+graddiv", "training.epochs=6", "training.batch=16", "graddiv.rampup=3")


@pytest.fixture(autouse=True)
def sixty_four_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graddiv.data.load", loader(64))


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Path, float]:
    """An uninterrupted training, and how long a second one takes: the first imports what the children then have."""
    with no_type_checks():
        for name in ("first", "whole"):
            begun = time.monotonic()
            train(EXPERIMENT, tmp_path / name)
    return tmp_path / "whole", time.monotonic() - begun


def test_killed_at_random_moments(whole: tuple[Path, float], tmp_path: Path) -> None:
    chance, (expected, duration) = random.Random(0), whole
    kills = finished = 0
    while kills < KILLS:
        directory = tmp_path / f"killed-{finished}"
        child = forked(lambda directory=directory: train(EXPERIMENT, directory))
        time.sleep(chance.uniform(0.0, 0.6 * duration))
        os.kill(child, signal.SIGKILL)
        code = ended(child)
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        if code == 0:
            assert_same_outcome(directory, expected)
            finished += 1
    directory = tmp_path / f"killed-{finished}"
    assert ended(forked(lambda: train(EXPERIMENT, directory))) == 0
    assert_same_outcome(directory, expected)


def killed_in_write(number: int, rename: bool) -> Callable[[Path, bytes], None]:
    """As store.write, but in its n-th call the process dies with half of the file written, or all but the name."""
    calls = 0

    def write(path: Path, content: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls < number:
            store_write(path, content)
            return
        half = content if rename else content[: len(content) // 2]
        path.with_name(f".{path.name}.{os.getpid()}.tmp").write_bytes(half)
        os.kill(os.getpid(), signal.SIGKILL)

    return write


store_write = store.write


@pytest.mark.parametrize("rename", [False, True], ids=["half written", "before the rename"])
def test_killed_inside_every_write(
    rename: bool, whole: tuple[Path, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, deaths = tmp_path / "killed", 0
    for number in (1, 2, 3, 4, 3, 2, 4, 2, 99):  # of the writes since it was started: settings, then checkpoints
        with monkeypatch.context() as patched:
            write = killed_in_write(number, rename)
            patched.setattr(store, "write", write)
            deaths += ended(forked(lambda: train(EXPERIMENT, directory))) == -signal.SIGKILL
    assert deaths == 8
    assert_same_outcome(directory, whole[0])
    assert not list(directory.rglob(".*.tmp"))


def test_killed_at_every_file_operation(tmp_path: Path) -> None:
    experiment = tiny("mnist/adv-bnn+graddiv", "training.epochs=2", "training.batch=32", "training.checkpoint_every=1")
    with no_type_checks():
        train(experiment, tmp_path / "whole")
    for number in itertools.count(1):
        directory = tmp_path / f"killed-{number}"

        def fatal(directory: Path = directory, number: int = number) -> None:
            die_at(number)
            train(experiment, directory)

        code = ended(forked(fatal))
        assert code in (0, -signal.SIGKILL)
        if code == 0:
            break
        assert ended(forked(lambda directory=directory: train(experiment, directory))) == 0
        assert_same_outcome(directory, tmp_path / "whole")
        assert not list(directory.rglob(".*.tmp"))
    print(f"killed before each of {number - 1} operations")
    assert number > 30  # settings, log and checkpoints: each opened, flushed, renamed
