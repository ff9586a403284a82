import io
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from graddiv.errors import GradDivError
from graddiv.training import display
from graddiv.training.display import Display, TensorBoard

VALUES = {"epoch": 1.0, "loss": 0.5, "lam": 0.25, "images/s": 1234.0}


def tell(console: Console) -> str:
    with Display("adv-bnn", console) as shown:
        shown.begin(2, 4)
        shown.step(3, 4, VALUES)
        shown.epoch(1, {"loss": 0.5, "rho": 0.125})
        shown.step(4, 4, VALUES)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tell(Console(file=io.StringIO())) == "goes on after step 2 of 4\nepoch 1: loss 0.5  rho 0.125\n"
    monkeypatch.setattr(display, "PLAIN_EVERY", 0.0)
    clock = iter(range(100, 1000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    lines = tell(Console(file=io.StringIO())).splitlines()
    assert lines[1] == "step 3/4, 0:00:10 left, epoch 1  loss 0.5  lam 0.25  images/s 1234"
    assert lines[3].startswith("step 4/4, 0:00:00 left, ")
    assert lines[3].endswith("rho 0.125")


def test_live_lines_on_a_terminal() -> None:
    text = tell(Console(file=io.StringIO(), force_terminal=True, width=100, _environ={}))
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    for part in ("adv-bnn", "4/4", "left", "epoch 1: loss 0.5", "lam 0.25", "images/s 1234", "rho 0.125"):
        assert part in plain, part


def test_a_finished_run_is_told_so() -> None:
    console = Console(file=io.StringIO())
    Display("adv-bnn", console).titled("kappa-1").begin(4, 4)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "kappa-1\nnothing left to do: all 4 steps were done before\n"


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with Display("adv-bnn", quiet=True) as shown:
        shown.epoch(1, VALUES)
    assert capsys.readouterr().out == ""


def test_tensorboard_is_an_extra(tmp_path: Path) -> None:
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        with pytest.raises(GradDivError, match=r"pip install 'graddiv\[tensorboard\]'"):
            TensorBoard(tmp_path)
    else:
        board = TensorBoard(tmp_path)
        board.epoch(1, VALUES)
        assert list(tmp_path.iterdir())
