"""`graddiv report` as a user meets it."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graddiv.cli import app
from graddiv.errors import GradDivError
from graddiv.report.page import render
from tests.report import fake


def output(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.replace("\n", "")


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [run.path for run in fake.comparison(tmp_path_factory.mktemp("runs")).runs]


@pytest.mark.slow
def test_a_report_is_drawn_again_with_the_same_bytes(runs: list[Path], tmp_path: Path) -> None:
    render(fake.plan(runs), tmp_path / "out")
    before = files(tmp_path / "out")
    for name in before:
        if name != "plan.json":
            (tmp_path / "out" / name).unlink()
    assert f"report: {tmp_path / 'out' / 'report.html'}" in output(tmp_path / "out")
    assert files(tmp_path / "out") == before


@pytest.mark.slow
def test_a_report_on_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fake.run(run, "adv-train", repeats=1)
    shown = output(run, "--out", tmp_path / "out", "--m", 20)
    assert "4 tables and figures, 3 of them tables" in shown
    made = files(tmp_path / "out")
    assert {"plan.json", "report.html", "attacks-eps0.2.md", "accuracy-epsilon.svg"} <= set(made)


@pytest.mark.slow
def test_a_report_can_be_kept_with_all_it_is_drawn_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    fake.run(run, "adv-train", repeats=1)
    monkeypatch.setattr("graddiv.report.plan._copy_network", lambda source, target: [])  # the fake has none
    output(run, "--archive", tmp_path / "kept", "--m", 20)
    shutil.rmtree(run)
    before = files(tmp_path / "kept")
    output(tmp_path / "kept")
    assert files(tmp_path / "kept") == before


@pytest.mark.slow
def test_what_cannot_be_reported_on(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(GradDivError, match=r"there is no directory .*nowhere: expected a report, a trained run"):
        output(tmp_path / "nowhere")
    with pytest.raises(GradDivError, match="choose one with --n, --m or --restarts"):
        output(*runs, "--out", tmp_path / "out")
    with pytest.raises(GradDivError, match="choose one to compare them at, with --epsilon"):
        output(*runs, "--n", 10, "--m", 20, "--epsilon", "0.7", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
