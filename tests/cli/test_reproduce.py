"""`graddiv reproduce` as a user meets it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from graddiv.cli import app
from graddiv.errors import GradDivError
from graddiv.evaluation.budget import BUDGETS
from graddiv.paper.entries import ENTRIES
from tests.helpers import TINY

SMALLEST = replace(BUDGETS["scale"]["minute"], examples=2, curve_n=(1,), m=1, gradients=2, curve_radii=2, batch=2)
"""What a test of the demo's networks has time for."""


@pytest.fixture(autouse=True)
def _malloc_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graddiv.performance.keep_memory", lambda: True)  # not for the other tests of this process


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["reproduce", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_the_list_names_every_table_and_figure() -> None:
    shown = output("--list")
    listed = [line.split()[0] for line in shown.splitlines() if line.strip()]
    assert {"demo", "mnist", "cifar10", "stl10", *ENTRIES} <= set(listed)
    [demo] = [line for line in shown.splitlines() if line.startswith("demo ")]
    assert "<1 min" in demo  # its two networks come trained
    titles = shown.replace("\n", "")
    assert all(entry.title.split()[0] in titles for entry in ENTRIES.values())


def test_a_plan_is_shown_before_anything_is_done(tmp_path: Path) -> None:
    shown = output("scatter", "--data", "mnist-mini", "--dry-run", "--runs", str(tmp_path / "runs"))
    assert "train Adv-BNN on mnist-mini" in shown
    assert "measure gradients of Adv-BNN + GradDiv" in shown
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_plan_without_its_data_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graddiv.data.files.search_path", lambda root: [tmp_path])
    shown = output("table1", "--dry-run", "--runs", str(tmp_path / "runs"))
    assert "train PNI on cifar10" in shown
    assert "graddiv data fetch cifar10" in shown
    assert re.search(r"a partial total: the data of \d+ of \d+ tasks is missing", " ".join(shown.split()))
    with pytest.raises(GradDivError, match="graddiv data fetch cifar10"):
        output("table1", "--runs", str(tmp_path / "runs"))


def computed_again(*arguments: object, **options: object) -> NoReturn:
    pytest.fail("what is on disk was computed again")


def test_from_nothing_to_a_report_and_not_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    shown = output("scatter", "--data", "mnist-mini", "--scale", "demo", *TINY, *where)
    assert f"report: {tmp_path / 'out' / 'report.html'}" in shown.replace("\n", "")
    again = output("scatter", "--data", "mnist-mini", "--scale", "demo", *TINY, *where, "--dry-run")
    assert again.count("done") == 4
    with monkeypatch.context() as watched:
        watched.setattr("graddiv.evaluation.run._Files.keep", computed_again)
        watched.setattr("graddiv.training.loop._Training._step", computed_again)
        output("scatter", "--data", "mnist-mini", "--scale", "demo", *TINY, *where)
    with pytest.raises(GradDivError, match="target = 'scatter', now it is 'kappa-mnist'"):
        output("kappa-mnist", "--data", "mnist-mini", "--scale", "demo", *TINY, *where)


@pytest.mark.slow
def test_a_quick_demo_is_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUDGETS["scale"], "minute", SMALLEST)
    runs = ["--runs", str(tmp_path / "runs")]
    output("demo", "--quick", *runs, "--out", str(tmp_path / "out"))
    assert "?" not in output("demo", *runs, "--dry-run")
    assert "done" not in output("accuracy-mnist", *runs, "--dry-run")
