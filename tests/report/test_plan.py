"""A plan is data: it names the records of a report, and the report is drawn from exactly these."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graddiv.attacks import PGD
from graddiv.errors import GradDivError
from graddiv.evaluation import Cell
from graddiv.recipes import recipe
from graddiv.records import Record
from graddiv.report.page import render
from graddiv.report.plan import PLAN, Plan, PlanReader
from graddiv.runs import read_log
from graddiv.training import train
from tests.report import fake


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tree")
    fake.comparison(directory / "runs")
    return directory / "runs"


def planned(runs: Path, *figures: str) -> Plan:
    return fake.plan(sorted(runs.iterdir()), *figures)


@pytest.fixture
def tree(runs: Path, tmp_path: Path) -> Path:
    """The runs, and the plan of a report on them beside them."""
    shutil.copytree(runs, tmp_path / "runs")
    (tmp_path / "report").mkdir()
    planned(tmp_path / "runs").save(tmp_path / "report")
    return tmp_path


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.slow
def test_a_plan_comes_back_as_it_was_and_moves_with_its_runs(tree: Path, tmp_path: Path) -> None:
    plan = Plan.load(tree / "report")
    assert plan.items == planned(tree / "runs").items
    stored = json.loads((tree / "report" / PLAN).read_text())
    assert {run["path"] for run in stored["runs"].values()} == {f"../runs/{p.name}" for p in (tree / "runs").iterdir()}
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for part in ("runs", "report"):
        shutil.move(tree / part, moved / part)
    again = Plan.load(moved / "report")
    assert again.items == plan.items
    assert len(PlanReader(again).everything().runs[0].attacks) > 0
    again.save(moved / "report")
    assert json.loads((moved / "report" / PLAN).read_text()) == stored


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, r"plan\.json has format 2, expected 1"),
        ({"colour": "red"}, r"plan\.json: colour: Extra inputs are not permitted"),
        ({"items": [{"name": "x", "renderer": "kappa"}]}, r"plan\.json: items\.0\.records: Field required"),
    ],
)
def test_a_plan_of_another_form_is_refused(tree: Path, change: dict[str, Any], message: str) -> None:
    path = tree / "report" / PLAN
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(GradDivError, match=message):
        Plan.load(tree / "report")


def changed(plan: Plan, **values: Any) -> Plan:
    """The same with one item, which has these values."""
    [item] = [item for item in plan.items if item.name == "attacks-eps0.2"]
    return plan.model_copy(update={"items": (item.model_copy(update=values),)})


@pytest.mark.slow
def test_what_an_item_looks_into_stands_before_its_title(tree: Path) -> None:
    plan = Plan.load(tree / "report")
    item = next(item for item in plan.items if item.name == plan.headline)
    _, (drawn,) = render(plan.model_copy(update={"items": (item.model_copy(update={"about": "Noise"}),)}), tree / "out")
    assert drawn.title.startswith("Noise: Accuracy (%) under attack")


def test_what_a_plan_names_and_is_not_there(tree: Path) -> None:
    plan = Plan.load(tree / "report")
    run = next(iter(plan.runs))
    for wrong, message in (
        (changed(plan, renderer="attack-tabel"), "unknown renderer 'attack-tabel', did you mean 'attack-table'"),
        (changed(plan, records={run: ("gone.record",)}), r"there is no .*records/gone\.record"),
        (changed(plan, records={"other": ()}), "records of the run 'other', which is none of its runs"),
        (changed(plan, name="renamed"), "the headline of the plan is 'attacks-eps0.2', expected .* renamed"),
    ):
        with pytest.raises(GradDivError, match=message):
            render(wrong, tree / "out")
        assert not (tree / "out").exists(), "nothing is drawn of half a plan"


def test_each_file_is_read_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[Path] = Counter()
    load = Record.load

    def counted(path: Path) -> Record:
        read[path] += 1
        return load(path)

    monkeypatch.setattr(Record, "load", counted)
    plan = Plan.load(tree / "report")
    reader = PlanReader(plan)
    for item in plan.items:
        reader.comparison(item)
    reader.everything()
    named = {(run, name) for item in plan.items for run, names in item.records.items() for name in names}
    assert len(read) == len({name for name in named if name[1].endswith(".record")})
    assert set(read.values()) == {1}


@pytest.mark.slow
def test_other_records_beside_those_of_the_plan_change_no_byte(tree: Path) -> None:
    plan = Plan.load(tree / "report")
    render(plan, tree / "report")
    before = files(tree / "report")
    rng = np.random.default_rng(0)
    for path in (tree / "runs").iterdir():
        run = fake.everything(path)
        of = fake.target(run.path.name, run.experiment)
        for cell in (
            Cell(PGD(m=20), "eot", 10, 0.25, 0),
            Cell(PGD(m=20), "eot", 10, 0.2, 7),
            Cell(PGD(m=20), "eot", 100, 0.2, 0),
            Cell(PGD(m=200), "eot", 10, 0.2, 0),
            Cell(PGD(m=20, restarts=5), "eot", 10, 0.2, 0),
            Cell(PGD(m=20), "eot", 10, 1.0, 0),
            Cell(None, "fixed", 1, 0.0, 7),
        ):
            fake.write_attack(path, of, cell, rng)
        few = fake.target(run.path.name, run.experiment, examples=7)
        fake.write_attack(path, few, Cell(PGD(m=3), "eot", 10, 0.2, 0), rng)
        assert len(fake.everything(path).attacks) == len(run.attacks) + 8
    render(Plan.load(tree / "report"), tree / "report")
    assert files(tree / "report") == before


def test_the_fakes_log_has_the_keys_of_a_real_one(tmp_path: Path) -> None:
    method = "adv-bnn+graddiv"
    small = ["network.width=0.05", "training.epochs=1", "training.batch=8", "training.decays=[]", "data.examples=8"]
    tiny = recipe(f"mnist-mini/{method}", "demo", [*small, "adversary.m=1"])
    train(tiny, tmp_path / "run")
    lines = read_log(tmp_path / "run" / "metrics.jsonl")
    made = fake.log(np.random.default_rng(0), 0.5, tiny)
    assert [set(line) for line in lines] == [set(line) for line in made]


@pytest.mark.slow
def test_accuracy_against_epsilon_stands_first_whatever_its_name(runs: Path, tmp_path: Path) -> None:
    """In a report with several entries, such as the demo's, the name of an item begins with that of its entry."""
    plan = planned(runs, "accuracy-epsilon", "scatter")
    named = [item.model_copy(update={"name": f"demo-{item.name}"}) for item in plan.items]
    order = sorted(named, key=lambda item: item.renderer == "accuracy-epsilon")
    page, _ = render(plan.model_copy(update={"items": tuple(order), "headline": f"demo-{plan.headline}"}), tmp_path)
    pictures = re.findall(r'<img [^>]*alt="([^".]*)', page.read_text())
    assert pictures[0] == "Accuracy under EOT-PGD against the perturbation bound"
    assert pictures.count(pictures[0]) == 1
