"""Every table and figure of the paper can be reproduced: its runs, its measurements, its files."""

import json
from pathlib import Path

import pytest

from graddiv.distributed import ALONE
from graddiv.errors import GradDivError
from graddiv.evaluation.checklist import Settings
from graddiv.paper import DEMO, EFFORTS, ENTRIES, Effort, entries_of, targets
from graddiv.reproduce import RENDERERS, StageRunner, claim, plan, progress_of, render

TINY = Effort(6, 1, "demo", 2, (2,), 2, 4, 2, 2, sweep_n=(1, 2), sweep_m=(1, 2), grid=5, suite_m=2, batch=6)
ASKED = Settings(
    n=2, m=2, queries=4, radii=(0.5, 1.0), samples=4, images=2, n_values=(1, 2), m_values=(1, 2), restarts=(1, 2)
)
SETTINGS = ["training.epochs=1", "training.batch=16", "training.decays=[]", "data.examples=32", "network.width=0.05"]


def reproduced(names: list[str], tmp_path: Path) -> Path:
    entries = [entry for name in names for entry in entries_of(name)]
    stages = plan(entries, "demo", tmp_path / "runs", data="mnist-mini", overrides=SETTINGS)
    runner = StageRunner(TINY, ALONE, checklist=ASKED)
    for stage in stages:
        runner.carry_out(stage)
    assert all(runner.seconds(stage) == 0 for stage in stages), "what is on disk is not run again"
    return render(entries, "demo", tmp_path / "runs", tmp_path / "out", data="mnist-mini", overrides=SETTINGS)[0]


def test_every_entry_names_what_exists() -> None:
    for entry in (*ENTRIES.values(), DEMO):
        assert set(entry.renders) <= set(RENDERERS), entry.name
        for scale in EFFORTS:
            assert entry.experiments(scale, None, ())
    assert {"demo", "mnist", "cifar10", "stl10", "table1", "boundary"} <= set(targets())


def test_a_stage_is_planned_once_and_training_comes_first() -> None:
    stages = plan(entries_of("mnist"), "quick", Path("runs"))
    assert len({(stage.directory, stage.need) for stage in stages}) == len(stages)
    seen = set()
    for stage in stages:
        assert stage.need is None or stage.directory in seen
        seen.add(stage.directory)


def test_an_unknown_target_is_told_with_the_nearest_one() -> None:
    with pytest.raises(GradDivError, match="unknown target 'table-mnits', did you mean 'table-mnist'"):
        entries_of("table-mnits")
    with pytest.raises(GradDivError, match="unknown scale 'huge'"):
        plan(entries_of("demo"), "huge", Path("runs"))


def test_a_report_of_another_target_is_not_overwritten(tmp_path: Path) -> None:
    claim(tmp_path, {"target": "demo", "scale": "demo"}, force=False)
    claim(tmp_path, {"target": "demo", "scale": "demo"}, force=False)
    with pytest.raises(GradDivError, match="target = 'demo', now it is 'table1'"):
        claim(tmp_path, {"target": "table1", "scale": "demo"}, force=False)
    claim(tmp_path, {"target": "table1", "scale": "demo"}, force=True)
    assert json.loads((tmp_path / "reproduce.json").read_text())["target"] == "table1"


def test_files_of_others_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(GradDivError, match="is not empty and holds no report of ours"):
        claim(tmp_path, {"target": "demo"}, force=False)
    claim(tmp_path, {"target": "demo"}, force=True)


def test_one_figure_from_nothing_to_its_files(tmp_path: Path) -> None:
    stages = plan(entries_of("scatter"), "demo", tmp_path / "runs", data="mnist-mini", overrides=SETTINGS)
    assert all(progress_of(stage) == 0 for stage in stages)
    page = reproduced(["scatter"], tmp_path)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert {path.suffix for path in (tmp_path / "out").rglob("scatter.*")} == {".svg", ".pdf", ".png", ".csv"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_table_and_figure_renders(tmp_path: Path) -> None:
    """On mnist-mini whatever the paper's data set, at tiny settings; no figure is a stub."""
    reproduced(["demo", *ENTRIES], tmp_path)
    files = {path.name for path in (tmp_path / "out").rglob("*")}
    for entry in ENTRIES.values():
        assert any(name.startswith(entry.name) and name.endswith(".csv") for name in files), entry.name
