import io
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from graddiv import progress
from graddiv.errors import GradDivError
from graddiv.progress import Bar, shown, tensorboard

VALUES = {"epoch": 1.0, "loss": 0.5, "lam": 0.25, "images/s": 1234.0}


def tell(console: Console) -> str:
    with Bar(console) as bar:
        listener = shown(bar, "adv-bnn")
        listener(2, 4, {}, None)
        listener(3, 4, VALUES, None)
        listener(3, 4, {"loss": 0.5, "rho": 0.125}, 1)
        listener(4, 4, VALUES, None)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tell(Console(file=io.StringIO())) == "adv-bnn: goes on after step 2 of 4\nepoch 1: loss 0.5  rho 0.125\n"
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
    clock = iter(range(100, 10000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    lines = tell(Console(file=io.StringIO())).splitlines()
    assert re.fullmatch(r"adv-bnn 3/4: 75% done, 0:00:\d\d left, epoch 1  loss 0.5  lam 0.25  images/s 1234", lines[1])
    assert lines[3].startswith("adv-bnn 4/4: 100% done, 0:00:00 left, ")
    assert lines[3].endswith("rho 0.125")


def test_live_lines_on_a_terminal() -> None:
    text = tell(Console(file=io.StringIO(), force_terminal=True, width=100, _environ={}))
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    for part in ("adv-bnn", "4/4", "100%", "epoch 1: loss 0.5", "lam 0.25", "images/s 1234", "rho 0.125"):
        assert part in plain, part


def test_a_finished_run_is_told_so() -> None:
    console = Console(file=io.StringIO())
    shown(Bar(console), "kappa-1")(4, 4, {}, None)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "kappa-1: nothing left to do, all 4 steps are done\n"


def test_only_the_first_process_speaks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        with Bar(stderr=False) as bar:
            shown(bar, "adv-bnn")(1, 2, VALUES, 1)
        assert bool(capsys.readouterr().out) == (rank == 0)


def test_tensorboard_is_an_extra(tmp_path: Path) -> None:
    try:
        import tensorboard as _  # noqa: F401
    except ImportError:
        with pytest.raises(GradDivError, match=r"pip install 'graddiv\[tensorboard\]'"):
            tensorboard(tmp_path)
    else:
        tensorboard(tmp_path)(1, 2, VALUES, 1)
        assert list(tmp_path.iterdir())
