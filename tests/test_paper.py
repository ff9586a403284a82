"""Every table and figure of the paper can be reproduced: its runs, its measurements, its files."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

from graddiv import store
from graddiv.attacks import PGD, Attack
from graddiv.data import load
from graddiv.distributed import ALONE
from graddiv.errors import GradDivError
from graddiv.evaluation.budget import BUDGETS, Budget
from graddiv.evaluation.measurements import MEASUREMENTS
from graddiv.experiment import Experiment
from graddiv.experiment.cost import training_work
from graddiv.paper import entries, tasks
from graddiv.paper.entries import DEMO, ENTRIES, QUICK_DEMO, STUDY, ZOO, entries_of, targets
from graddiv.paper.planning import ATTACKED, CHECKLIST_NEED, ComparedRun, Request, seconds_to_train
from graddiv.paper.tasks import TaskRunner, claim, tasks_of
from graddiv.recipes import SCALES, recipe, title
from graddiv.report.output import RENDERERS
from graddiv.report.page import render
from graddiv.report.plan import PLAN, Plan

TINY = Budget(
    examples=6, suite="demo", n=2, curve_n=(2,), m=2, gradients=4, models=2, curve_radii=2, sweep_n=(1, 2),
    sweep_m=(1, 2), grid=5, suite_m=2, batch=6, draws=3,
)  # fmt: skip
ASKED = Budget(
    n=2,
    m=2,
    queries=4,
    radii=(0.5, 1.0),
    random_points=4,
    random_images=2,
    sweep_n=(1, 2),
    sweep_m=(1, 2),
    restarts=(1, 2),
)
SETTINGS = ["training.epochs=1", "training.batch=16", "training.decays=[]", "data.examples=32", "network.width=0.05"]


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUDGETS["scale"], "demo", TINY)
    monkeypatch.setitem(BUDGETS["checklist"], TINY.checklist, ASKED)


def computed_again(*arguments: object, **options: object) -> NoReturn:
    pytest.fail("what is on disk was computed again")


def reproduced(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Sequence[str] = SETTINGS
) -> Path:
    """The page of these entries, once carried out; going through their tasks again does nothing."""
    chosen = [entry for name in names for entry in entries_of(name)]
    request = Request(chosen, "demo", "mnist-mini", settings)
    planned = tasks_of(request, tmp_path / "runs")
    runner = TaskRunner(ALONE)
    for task in planned:
        runner.carry_out(task)
    assert all(runner.seconds(task) == 0 for task in planned)
    with monkeypatch.context() as watched:
        watched.setattr(Attack, "__call__", computed_again)
        watched.setattr("graddiv.evaluation.run._Files.keep", computed_again)
        watched.setattr("graddiv.training.loop._Training._step", computed_again)
        for task in planned:
            runner.carry_out(task)
    return render(request.report(tmp_path / "runs"), tmp_path / "out")[0]


def test_every_entry_names_what_exists() -> None:
    needs = {*ATTACKED, *MEASUREMENTS, CHECKLIST_NEED}
    for entry in (*ENTRIES.values(), *DEMO, *QUICK_DEMO, *STUDY, ZOO):
        assert {render.draw for render in entry.renders} <= set(RENDERERS), entry.name
        assert {need.name for need in entry.needs} <= needs, entry.name
        for scale in entry.scales:
            assert entry.experiments(scale)
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
    drawn = {render.draw for entry in (*ENTRIES.values(), *STUDY, ZOO) for render in entry.renders}
    assert drawn == set(RENDERERS)


@pytest.mark.parametrize(
    ("target", "scale"),
    [
        ("demo", "demo"),
        ("mnist-study", "quick"),
        ("zoo", "quick"),
        ("zoo", "demo"),
        *((data, scale) for data in ("mnist", "cifar10", "stl10") for scale in SCALES),
    ],
)
def test_the_plan_names_exactly_the_records_that_the_tasks_make(target: str, scale: str) -> None:
    chosen = entries_of(target)
    made = {
        (task.run.path.name, name)
        for task in tasks_of(Request(chosen, scale), Path("runs"))
        if task.need is not None
        for name in task.compared.files(task.need)
    }
    plan = Request(chosen, scale).report(Path("runs"))
    named = {(run, name) for item in plan.items for run, files in item.records.items() for name in files}
    assert named == made
    assert len({item.name for item in plan.items}) == len(plan.items), "no two write the same files"


def test_a_task_is_planned_once_and_training_comes_first() -> None:
    planned = tasks_of(Request(entries_of("mnist"), "quick"), Path("runs"))
    assert len({(task.run, task.need) for task in planned}) == len(planned)
    seen = set()
    for task in planned:
        assert task.need is None or task.run in seen
        seen.add(task.run)


@pytest.mark.slow
def test_demos_and_the_study_do_not_share_run_directories() -> None:
    """They judge the same two networks on other digits, and a copy in half precision is not a training."""
    requests = [
        Request(QUICK_DEMO, "demo", quick=True),
        Request(entries_of("demo"), "demo"),
        Request(entries_of("mnist-study"), "quick"),
    ]
    quick, full, study = ({task.run.path for task in tasks_of(each, Path("runs"))} for each in requests)
    assert not quick & full
    assert not (quick | full) & study
    for request in requests:
        planned = {Path(run.path) for run in request.report(Path("runs")).runs.values()}
        assert planned == {task.run.path for task in tasks_of(request, Path("runs"))}


def test_an_unknown_target_is_told_with_the_nearest_one() -> None:
    with pytest.raises(GradDivError, match="unknown target 'table-mnits', did you mean 'table-mnist'"):
        entries_of("table-mnits")
    with pytest.raises(GradDivError, match="unknown scale 'huge'"):
        Request(entries_of("demo"), "huge")
    with pytest.raises(GradDivError, match="study-seeds is reproduced at scale quick, but --scale is demo"):
        Request(entries_of("study-seeds"), "demo")


@pytest.mark.slow
def test_items_of_several_entries_say_what_they_look_into() -> None:
    alone = Request(entries_of("study-longer"), "quick").report(Path("runs"))
    assert {item.about for item in alone.items} == {""}
    study = Request(entries_of("mnist-study"), "quick").report(Path("runs"))
    abouts = [item.about for item in study.items if item.renderer == "accuracy-epsilon"]
    assert len(set(abouts)) == len(abouts) > 3


def test_seeds_are_trainings_of_one_method() -> None:
    plan = Request(entries_of("kappa-mnist"), "quick", seeds=(3, 5)).report(Path("runs"))
    assert len(plan.runs) == 4
    assert sorted(run.title for run in plan.runs.values()) == ["Adv-BNN"] * 2 + ["Adv-BNN + GradDiv"] * 2


def test_what_the_paper_says_is_what_is_compared() -> None:
    """The choices of its text: which networks, at which radius, with how many models."""
    transfer, boundary = ENTRIES["transfer"], ENTRIES["boundary"]
    assert transfer.methods == ("adv-bnn", "adv-bnn+graddiv-dpp")
    regularizers = [e.regularization.regularizer for e, _ in boundary.experiments("paper") if e.regularization]
    assert regularizers == ["dpp"]
    run, *_ = compared("n-sensitivity")
    assert {cell.epsilon for cell in run.cells("sweep-n") if cell.attack} == {0.38}
    for need in ("increase", "transfer"):
        assert run.measured_at(need) == 0.4
    rse, _ = compared("table-rse")
    assert {cell.mode for cell in rse.cells("curve-n1-repeated") if cell.attack} == {"eot1"}


def compared(target: str, scale: str = "paper") -> list[ComparedRun]:
    return [run for run, _ in Request(entries_of(target), scale).needs().values()]


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
@pytest.mark.slow
def test_one_figure_from_nothing_to_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = reproduced(["scatter"], tmp_path, monkeypatch)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert {path.suffix for path in (tmp_path / "out").rglob("scatter.*")} == {".svg", ".pdf", ".png", ".csv"}
    [item] = Plan.load(tmp_path / "out").items
    assert set(item.records.values()) == {("gradients.record",)}


@pytest.mark.usefixtures("_tiny")
@pytest.mark.slow
def test_estimates_build_nothing_and_each_run_is_built_once_for_training_and_once_for_all_that_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: Counter[str] = Counter()
    monkeypatch.setattr(entries, "_recipe", cache(counting(recipe, counted)))
    monkeypatch.setattr(Experiment, "build", counting(Experiment.build, counted))
    monkeypatch.setattr(tasks, "load", counting(load, counted))
    request = Request([ENTRIES["scatter"], ENTRIES["kappa-mnist"]], "demo", "mnist-mini", SETTINGS)
    planned, runner = tasks_of(request, tmp_path), TaskRunner(ALONE)
    request.report(tmp_path)
    for task in planned:
        runner.seconds(task)
    assert counted["build"] == 0
    for task in planned:
        runner.carry_out(task)
    runs = len(request.needs())
    assert counted == {"recipe": 2 * runs, "build": 2 * runs, "load": 1}


@pytest.mark.usefixtures("_tiny")
def test_each_record_is_written_once_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: Counter[str] = Counter()
    for name in ("read_arrays", "write_arrays"):
        monkeypatch.setattr(store, name, counting(getattr(store, name), counted))
    request = Request([ENTRIES["scatter"], ENTRIES["kappa-mnist"]], "demo", "mnist-mini", SETTINGS)
    runner = TaskRunner(ALONE)
    for task in tasks_of(request, tmp_path / "runs"):
        runner.carry_out(task)
    records = len(list(tmp_path.rglob("*.record")))
    assert counted == {"write_arrays": records}
    render(request.report(tmp_path / "runs"), tmp_path / "out")
    assert counted == {"write_arrays": records, "read_arrays": records}


def counting(function: Callable[..., Any], counted: Counter[str]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        counted[function.__name__] += 1
        return function(*arguments, **options)

    return call


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
    monkeypatch.setattr("graddiv.paper.entries.ZOO", ZOO.model_copy(update={"methods": methods}))
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


@pytest.mark.parametrize(
    ("override", "taken_by"),
    [
        ("graddiv.rampup_from=start", {"rse+graddiv", "adv-bnn+graddiv"}),
        ("gaussian.kl_scope=last", {"adv-bnn", "adv-bnn+graddiv"}),
        ("stages.0.lr=1e-4", {"rse+graddiv", "adv-bnn+graddiv"}),
        ("adversary.m=3", {"adv-bnn", "adv-bnn+graddiv"}),
        ("training.batch=32", {"no-defense", "rse+graddiv", "adv-bnn", "adv-bnn+graddiv"}),
    ],
)
def test_an_override_is_for_the_recipes_that_have_its_section(override: str, taken_by: set[str]) -> None:
    methods = ("no-defense", "rse+graddiv", "adv-bnn", "adv-bnn+graddiv")
    entry = ENTRIES["kappa-mnist"].model_copy(update={"methods": methods})
    plain, changed = (Request([entry], "quick", overrides=o).needs() for o in ([], [override]))
    assert len(changed) == len(plain)
    assert {run.experiment.method for name, (run, _) in changed.items() if name not in plain} == taken_by


def test_an_override_may_be_for_a_section_that_an_entry_adds() -> None:
    runs = Request(entries_of("study-whole"), "quick", overrides=["graddiv.lam=3"]).needs().values()
    assert {run.experiment.lam for run, _ in runs} == {0, 3}
    assert "Adv-BNN + GradDiv from scratch, trained against 10 steps" in {run.title for run, _ in runs}


@pytest.mark.parametrize("target", ["rotation", "demo"])
def test_an_override_that_no_recipe_takes_is_told_once(target: str) -> None:
    told = r"^--set 'pni.scale=1': [^\n]* no section pni, expected one of adversary, data, [^\n]*network[^\n]*training$"
    with pytest.raises(GradDivError, match=told):
        Request(entries_of(target), "demo", overrides=["pni.scale=1"])


def test_networks_that_come_trained_have_no_recipe_to_change() -> None:
    with pytest.raises(GradDivError, match="--set 'seed=1': the networks come trained"):
        Request(QUICK_DEMO, "demo", overrides=["seed=1"], quick=True)


def test_every_training_of_the_study_has_a_label_of_its_own() -> None:
    planned = tasks_of(Request(entries_of("mnist-study"), "quick"), Path("runs"))
    labels = [task.label for task in planned]
    assert len(set(labels)) == len(labels)
    assert "train Adv-BNN + GradDiv, first stage of 12 epochs on mnist (lambda 1)" in labels
    assert "measure suite (close) of Adv-BNN on mnist" in labels


def test_a_first_stage_that_is_taken_over_takes_no_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("graddiv.experiment.cost.multiplications_per_second", lambda experiment, device: 1.0)
    trainings = [s for s in tasks_of(Request(entries_of("scatter"), "quick"), tmp_path) if s.need is None]
    base, second = (training_work(task.compared.experiment) for task in trainings)
    runner = TaskRunner(ALONE)
    assert runner.seconds(trainings[0]) == base
    assert runner.seconds(trainings[1]) == pytest.approx(second - base, rel=0.01)
    assert seconds_to_train(entries_of("scatter"), "quick", lambda _: 1.0) == pytest.approx(second, rel=0.01)
    [alone] = [s for s in tasks_of(Request(entries_of("study-lambda"), "quick"), tmp_path) if s.need is None][:1]
    assert runner.seconds(alone) == training_work(alone.compared.experiment), "nothing to take over"


@pytest.mark.parametrize("name", ["table-mnist", "table-cifar10", "table-stl10", "table-rse"])
@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_tables_that_people_quote_have_three_repeats(name: str, scale: str) -> None:
    for run, needs in Request([ENTRIES[name]], scale).needs().values():
        for need in needs:
            assert {cell.repeat for cell in run.cells(need.name)} == {0, 1, 2}


def test_the_whole_schedule_is_the_papers_at_a_quarter_of_its_width() -> None:
    for run, _ in Request(entries_of("study-whole"), "quick").needs().values():
        whole = recipe(f"mnist/{run.experiment.method}", "paper", ["network.width=0.25"])
        assert run.experiment.digest == whole.digest
        assert (whole.epochs, whole.training.batch, whole.training.decays) == (60, 128, (30,))
        assert whole.adversary is not None
        assert not whole.stages
        assert (whole.adversary.m, whole.adversary.alpha) == (10, 0.25)
    assert not any(entry.name == "study-whole" for entry in entries_of("mnist-study")), "a night of training"


def test_budgets_grow_at_four_radii() -> None:
    run, *_ = compared("study-close", "quick")
    attacked = [cell for cell in run.cells("budgets") if cell.attack]
    assert {cell.epsilon for cell in attacked} == {0.3, 0.34, 0.36, 0.38}
    assert len(attacked) == 4 * 4


@pytest.mark.parametrize("n", [1, 5])
def test_the_adversary_of_training_is_that_of_the_recipe(n: int) -> None:
    request = Request(entries_of("study-longer"), "quick", overrides=[f"stages.0.adversary_n={n}"])
    for plan, _ in request.needs().values():
        clean, cell = plan.cells("of-training")
        assert clean.attack is None
        assert (cell.attack, cell.n, cell.epsilon) == (PGD(m=5, alpha=0.4), n, 0.3)
