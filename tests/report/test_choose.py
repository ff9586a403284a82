"""A report on runs without a plan takes explicit choices, and lists the candidates where it needs one."""

import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from graddiv import store
from graddiv.attacks import PGD
from graddiv.data import SOURCES
from graddiv.errors import GradDivError
from graddiv.evaluation import Cell
from graddiv.evaluation.jobs import loss_increase_job
from graddiv.recipes import recipe
from graddiv.records import Record
from graddiv.report.output import RENDERERS
from graddiv.report.page import Choices, plan_for
from graddiv.report.plan import Plan, PlanReader
from tests.report import fake


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    fake.run(path, "adv-bnn", repeats=1)
    return path


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "run"))


CHOSEN = Choices(epsilon=0.2, n=10, m=20)


def named(plan: Plan, item: str) -> set[str]:
    [found] = [planned for planned in plan.items if planned.name == item]
    return {name for names in found.records.values() for name in names}


def add(path: Path, cell: Cell, examples: int = fake.EXAMPLES) -> None:
    of = fake.target(path.name, fake.everything(path).experiment, examples)
    with patch("os.fsync"):
        fake.write_attack(path, of, cell, np.random.default_rng(0))


def test_settings_that_differ_are_listed_with_the_option_that_chooses(run: Path) -> None:
    with pytest.raises(
        GradDivError,
        match=r"EOT-PGD at epsilon 0\.2 was run with n 5, m 20, restarts 1; n 10, m 5, .*--n, --m or --restarts",
    ):
        plan_for([run], Choices())
    with pytest.raises(GradDivError, match=r"n 10, m 5, restarts 1; n 10, m 20, restarts 1; n 10, m 50, restarts 1:"):
        plan_for([run], Choices(n=10))
    plan = plan_for([run], CHOSEN)
    assert named(plan, "attacks-eps0.2") & {"pgd-eot10-m20-eps0.2-r0.record", "pgd-eot5-m20-eps0.2-r0.record"} == {
        "pgd-eot10-m20-eps0.2-r0.record"
    }
    assert "fgsm-eot10-m1-eps0.2-r0.record" in named(plan, "attacks-eps0.2"), "one step, whatever m"
    with_5 = named(plan_for([run], Choices(epsilon=0.2, n=5, m=20)), "attacks-eps0.2")
    assert "pgd-eot5-m20-eps0.2-r0.record" in with_5
    assert "pgd-eot10-m20-eps0.2-r0.record" not in with_5


def test_the_papers_values_stand_beside_its_own_data_and_all_its_images_alone(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.run(tmp_path / "digits", "adv-bnn", data="mnist", repeats=1)

    def beside(path: Path) -> list[float]:
        plan = plan_for([path], CHOSEN)
        comparison = PlanReader(plan).everything()
        return comparison.published(comparison.runs[0]).epsilons()

    assert beside(run) == [], "a part of the data"
    assert beside(tmp_path / "digits") == [], f"{fake.EXAMPLES} of 10,000 images"
    whole = replace(SOURCES["mnist"], sizes={"train": 60_000, "test": fake.EXAMPLES})
    monkeypatch.setitem(SOURCES, "mnist", whole)
    assert 0.2 in beside(tmp_path / "digits")


def test_iterations_of_one_step_can_be_chosen_away(run: Path) -> None:
    add(run, Cell(PGD(m=1), "eot", 10, 0.2, 0))
    assert "pgd-eot10-m1-eps0.2-r0.record" not in named(plan_for([run], CHOSEN), "attacks-eps0.2")


def test_the_pilot_of_the_strong_suite_is_no_measurement(run: Path) -> None:
    there = run / "records" / "gradient-noise-eps0.36.record"
    (there.parent / "pilot").mkdir()
    shutil.copy(there, there.parent / "pilot" / "gradient-noise-eps0.2.record")
    assert named(plan_for([run], CHOSEN), "rho-attacked") == {there.name}


def test_restarts_are_chosen(run: Path) -> None:
    add(run, Cell(PGD(m=20, restarts=3), "eot", 10, 0.2, 0))
    with pytest.raises(GradDivError, match=r"n 10, m 20, restarts 1; n 10, m 20, restarts 3: choose"):
        plan_for([run], CHOSEN)
    chosen = plan_for([run], Choices(epsilon=0.2, n=10, m=20, restarts=1))
    assert "pgd-eot10-m20x3-eps0.2-r0.record" not in named(chosen, "attacks-eps0.2")


def test_examples_are_chosen(run: Path) -> None:
    before = named(plan_for([run], CHOSEN), "attacks-eps0.2")
    add(run, Cell(PGD(m=20, alpha=0.5), "eot", 10, 0.2, 0), examples=7)
    with pytest.raises(GradDivError, match="different sets of 7, 40 examples: choose one with --examples"):
        plan_for([run], CHOSEN)
    chosen = plan_for([run], Choices(epsilon=0.2, n=10, m=20, examples=40))
    assert named(chosen, "attacks-eps0.2") == before


def test_the_radius_of_a_measurement_is_chosen(run: Path) -> None:
    of = fake.target(run.name, fake.everything(run).experiment)
    found = Record.load(run / "records" / "loss-increase-eps0.3.record")
    fake.write(run / "records", loss_increase_job(of, epsilon=0.2), found.arrays)
    with pytest.raises(
        GradDivError, match=r"loss-increase was measured at the radii 0\.2, 0\.3: choose one with --epsilon"
    ):
        plan_for([run], Choices(epsilon=0.1, n=10, m=20))
    assert named(plan_for([run], CHOSEN), "loss-increase") == {"loss-increase-eps0.2.record"}


def test_the_radius_that_runs_are_compared_at(run: Path) -> None:
    assert plan_for([run], Choices(n=10, m=20)).headline == "attacks-eps0.2", "that of training"
    assert plan_for([run], Choices(epsilon=0.3, n=10, m=20)).headline == "attacks-eps0.3"
    with pytest.raises(GradDivError, match=r"attacked at epsilon 0\.1, 0\.2, 0\.3: choose one .* --epsilon"):
        plan_for([run], Choices(epsilon=0.7, n=10, m=20))


def test_a_curve_is_of_one_n(run: Path) -> None:
    assert "pgd-eot1-m20-eps0.2-r0.record" not in named(plan_for([run], CHOSEN), "accuracy-epsilon")
    single = plan_for([run], Choices(epsilon=0.2, n=1, m=20))
    assert "pgd-eot1-m20-eps0.2-r0.record" in named(single, "accuracy-epsilon")
    for plan in (plan_for([run], CHOSEN), single):
        [item] = [item for item in plan.items if item.name == "accuracy-epsilon"]
        assert RENDERERS["accuracy-epsilon"](PlanReader(plan).comparison(item)).rows


@pytest.mark.slow
def test_runs_that_differ_in_more_than_the_seed_are_told_apart(tmp_path: Path) -> None:
    def run(name: str, *changes: str) -> Path:
        settings = recipe("mnist-mini/adv-bnn+graddiv", "demo", changes)
        path = fake.run(tmp_path / name, "adv-bnn+graddiv", 1.0).path
        store.write_json(path / "experiment.json", settings.dump())
        return path

    seeds = [run("a"), run("b", "seed=1")]
    assert {planned.title for planned in plan_for(seeds, CHOSEN).runs.values()} == {"Adv-BNN + GradDiv"}
    weights = plan_for([*seeds, run("c", "graddiv.lam=3")], CHOSEN).runs
    assert weights["a"].title == weights["b"].title == "Adv-BNN + GradDiv"
    assert weights["c"].title == "Adv-BNN + GradDiv, λ = 3"
    gradients = run("d", "graddiv.n=5")
    assert plan_for([seeds[0], gradients], CHOSEN).runs["d"].title == "Adv-BNN + GradDiv, R of 5 gradients"
    other = run("e", "training.lr=0.01")  # of which titles do not tell
    assert plan_for([seeds[0], other], CHOSEN).runs["e"].title == "Adv-BNN + GradDiv, e"


def test_an_unbounded_attack_is_no_row(run: Path) -> None:
    before = plan_for([run], CHOSEN)
    add(run, Cell(PGD(m=20), "eot", 10, 1.0, 0))
    assert plan_for([run], CHOSEN) == before


def test_runs_that_cannot_be_reported_on(run: Path, tmp_path: Path) -> None:
    with pytest.raises(GradDivError, match="2 runs were named, some of them twice"):
        plan_for([run, run], CHOSEN)
    shutil.rmtree(run / "records")
    with pytest.raises(GradDivError, match=r"there are no records of .*run: 'graddiv attack .*run' makes them"):
        plan_for([run], CHOSEN)
