"""Every table and figure of the paper can be reproduced: its runs, its measurements, its files."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from graddiv.attacks import PGD, Attack
from graddiv.distributed import ALONE
from graddiv.errors import GradDivError
from graddiv.evaluation.batches import Job
from graddiv.evaluation.checklist import Settings
from graddiv.evaluation.measurements import MEASUREMENTS
from graddiv.paper.entries import DEMO, ENTRIES, QUICK_DEMO
from graddiv.paper.entry import EFFORTS, Effort
from graddiv.paper.planning import ATTACKED, CHECKLIST_NEED, Request, plan_report, plan_runs
from graddiv.paper.published import PaperValues
from graddiv.paper.stages import StageRunner, claim, stages_of
from graddiv.paper.study import STUDY, ZOO
from graddiv.paper.targets import entries_of, targets
from graddiv.recipes import title
from graddiv.report.figures import FIGURES
from graddiv.report.plan import PLAN, Plan
from graddiv.report.renderers import RENDERERS, render

TINY = Effort(6, 1, "demo", 2, (2,), 2, 4, 2, 2, sweep_n=(1, 2), sweep_m=(1, 2), grid=5, suite_m=2, batch=6, draws=3)
ASKED = Settings(
    n=2, m=2, queries=4, radii=(0.5, 1.0), samples=4, images=2, n_values=(1, 2), m_values=(1, 2), restarts=(1, 2)
)
SETTINGS = ["training.epochs=1", "training.batch=16", "training.decays=[]", "data.examples=32", "network.width=0.05"]


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "demo", TINY)


def computed_again(*arguments: object, **options: object) -> NoReturn:
    pytest.fail("what is on disk was computed again")


def reproduced(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Sequence[str] = SETTINGS
) -> Path:
    """The page of these entries, once carried out; going through their stages again does nothing."""
    chosen = [entry for name in names for entry in entries_of(name)]
    request = Request(chosen, "demo", "mnist-mini", settings)
    planned = stages_of(request, tmp_path / "runs")
    runner = StageRunner(ALONE, checklist=ASKED)
    for stage in planned:
        runner.carry_out(stage)
    assert all(runner.seconds(stage) == 0 for stage in planned)
    with monkeypatch.context() as watched:
        watched.setattr(Attack, "__call__", computed_again)
        watched.setattr(Job, "write_batch", computed_again)
        watched.setattr("graddiv.training.loop._Training._step", computed_again)
        for stage in planned:
            runner.carry_out(stage)
    return render(plan_report(request, tmp_path / "runs"), tmp_path / "out", PaperValues)[0]


def test_every_entry_names_what_exists() -> None:
    needs = {*ATTACKED, *MEASUREMENTS, CHECKLIST_NEED}
    for entry in (*ENTRIES.values(), *DEMO, *STUDY, ZOO):
        assert {render.renderer for render in entry.renders} <= set(RENDERERS), entry.name
        assert set(entry.needs) <= needs, entry.name
        for scale in entry.scales:
            assert entry.experiments(scale, None, ())
    assert set(targets()) == {
        "demo",
        "mnist",
        "cifar10",
        "stl10",
        "mnist-study",
        "zoo",
        *(e.name for e in STUDY),
        *ENTRIES,
    }


def test_every_renderer_draws_something_of_the_papers_or_of_our_own() -> None:
    drawn = {render.renderer for entry in (*ENTRIES.values(), *STUDY, ZOO) for render in entry.renders}
    assert drawn == set(RENDERERS)
    assert set(FIGURES) < drawn


@pytest.mark.parametrize(
    ("target", "scale"),
    [
        ("demo", "demo"),
        ("mnist-study", "quick"),
        ("zoo", "quick"),
        ("zoo", "demo"),
        *((data, scale) for data in ("mnist", "cifar10", "stl10") for scale in EFFORTS),
    ],
)
def test_the_plan_names_exactly_the_records_that_the_stages_make(target: str, scale: str) -> None:
    chosen = entries_of(target)
    made = {
        (stage.directory.name, name)
        for stage in stages_of(Request(chosen, scale), Path("runs"))
        if stage.need is not None
        for name in stage.plan.files(stage.need)
    }
    plan = plan_report(Request(chosen, scale), Path("runs"))
    named = {(run, name) for item in plan.items for run, files in item.records.items() for name in files}
    assert named == made
    assert len({item.name for item in plan.items}) == len(plan.items), "no two write the same files"


def test_a_stage_is_planned_once_and_training_comes_first() -> None:
    planned = stages_of(Request(entries_of("mnist"), "quick"), Path("runs"))
    assert len({(stage.directory, stage.need) for stage in planned}) == len(planned)
    seen = set()
    for stage in planned:
        assert stage.need is None or stage.directory in seen
        seen.add(stage.directory)


def test_demos_and_the_study_do_not_share_run_directories() -> None:
    """They judge the same two networks on other digits, and a copy in half precision is not a training."""
    requests = [
        Request(QUICK_DEMO, "demo", quick=True),
        Request(entries_of("demo"), "demo"),
        Request(entries_of("mnist-study"), "quick"),
    ]
    quick, full, study = ({stage.directory for stage in stages_of(each, Path("runs"))} for each in requests)
    assert not quick & full
    assert not (quick | full) & study
    for request in requests:
        planned = {Path(run.path) for run in plan_report(request, Path("runs")).runs.values()}
        assert planned == {stage.directory for stage in stages_of(request, Path("runs"))}


def test_an_unknown_target_is_told_with_the_nearest_one() -> None:
    with pytest.raises(GradDivError, match="unknown target 'table-mnits', did you mean 'table-mnist'"):
        entries_of("table-mnits")
    with pytest.raises(GradDivError, match="unknown scale 'huge'"):
        Request(entries_of("demo"), "huge")
    with pytest.raises(GradDivError, match="study-seeds is reproduced at scale quick, but --scale is demo"):
        Request(entries_of("study-seeds"), "demo")


def test_items_of_several_entries_say_what_they_look_into() -> None:
    alone = plan_report(Request(entries_of("study-longer"), "quick"), Path("runs"))
    assert {item.about for item in alone.items} == {""}
    study = plan_report(Request(entries_of("mnist-study"), "quick"), Path("runs"))
    abouts = [item.about for item in study.items if item.renderer == "accuracy-epsilon"]
    assert len(set(abouts)) == len(abouts) > 3


def test_seeds_are_trainings_of_one_method() -> None:
    plan = plan_report(Request(entries_of("kappa-mnist"), "quick", seeds=(3, 5)), Path("runs"))
    assert len(plan.runs) == 4
    assert sorted(run.title for run in plan.runs.values()) == ["Adv-BNN"] * 2 + ["Adv-BNN + GradDiv"] * 2


def test_what_the_paper_says_is_what_is_compared() -> None:
    """The choices of its text: which networks, at which radius, with how many models."""
    transfer, boundary = ENTRIES["transfer"], ENTRIES["boundary"]
    assert transfer.methods == ("adv-bnn", "adv-bnn+graddiv-dpp")
    assert [e.regularization.regularizer for e in boundary.experiments("paper", None, ()) if e.regularization] == [
        "dpp"
    ]
    [run] = [r for r in stages_of(Request([ENTRIES["n-sensitivity"]], "paper"), Path("runs")) if r.need == "sweep-n"][
        :1
    ]
    assert {cell.epsilon for cell in run.plan.cells("sweep-n") if cell.attack} == {0.38}
    for need in ("increase", "transfer"):
        assert run.plan.measurement_settings(need).epsilon == 0.4
    [rse, _] = [r for r in stages_of(Request([ENTRIES["table-rse"]], "paper"), Path("runs")) if r.need == "curve-n1"]
    assert {cell.mode for cell in rse.plan.cells("curve-n1") if cell.attack} == {"eot1"}


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


@pytest.mark.usefixtures("_tiny")
def test_one_figure_from_nothing_to_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = reproduced(["scatter"], tmp_path, monkeypatch)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert {path.suffix for path in (tmp_path / "out").rglob("scatter.*")} == {".svg", ".pdf", ".png", ".csv"}
    [item] = Plan.load(tmp_path / "out").items
    assert set(item.records.values()) == {("gradients.record",)}


@pytest.mark.slow
@pytest.mark.usefixtures("_tiny")
def test_the_demo_attacks_the_shipped_networks_and_trains_one_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_width = [setting for setting in SETTINGS if not setting.startswith("network.width")]
    page = reproduced(["demo"], tmp_path, monkeypatch, own_width)
    html = page.read_text()
    assert "Accuracy (%) under attack, MNIST, ε = 0.3" in html
    first = re.findall(r'<img [^>]*alt="([^".]*)', html)[0]
    assert first.endswith("Accuracy under EOT-PGD against the perturbation bound")
    copied = [run for run in (tmp_path / "runs").iterdir() if run.name.startswith("demo-mnist-adv-bnn")]
    assert len(copied) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("_tiny")
def test_the_table_of_the_literatures_defenses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = ("no-defense", "ensemble", "smoothing", "jpeg")  # test_loop trains all of them
    monkeypatch.setattr("graddiv.paper.targets.ZOO", replace(ZOO, methods=methods))
    reproduced(["zoo"], tmp_path, monkeypatch)
    table = (tmp_path / "out" / "zoo.md").read_text()
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in table.splitlines() if line.startswith("|")}
    columns = [name.strip() for name in rows["defense"]]
    cells = {name: dict(zip(columns, (cell.strip() for cell in row), strict=True)) for name, row in rows.items()}
    assert {title(method) for method in methods} <= set(cells)
    assert "not run" not in table
    assert cells["No defense"]["mean of draws"] == cells["JPEG (Guo)"]["other models"] == "–"
    assert float(cells["Randomized smoothing"]["certified"]) >= 0
    assert cells["Random ensemble"]["certified"] == "–"
    assert cells["Random ensemble"]["training"] == "3.0×"
    assert cells["JPEG (Guo)"]["fixed draw"].endswith("*")
    assert "the gradient is a proxy" in table


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_tiny")
def test_every_table_and_figure_renders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On mnist-mini whatever the paper's data set, at tiny settings; no figure is a stub."""
    reproduced(list(ENTRIES), tmp_path, monkeypatch)
    files = {path.name for path in (tmp_path / "out").iterdir()}
    for item in Plan.load(tmp_path / "out").items:
        assert f"{item.name}.csv" in files
    for entry in ENTRIES.values():
        assert f"{entry.name}.csv" in files
    assert PLAN in files


@pytest.mark.parametrize("n", [1, 5])
def test_the_adversary_of_training_is_that_of_the_recipe(n: int) -> None:
    request = Request(entries_of("study-longer"), "quick", overrides=[f"stages.0.adversary_n={n}"])
    for plan, _ in plan_runs(request).values():
        clean, cell = plan.cells("of-training")
        assert clean.attack is None
        assert (cell.attack, cell.n, cell.epsilon) == (PGD(m=5, alpha=0.4), n, 0.3)
