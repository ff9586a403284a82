"""The committed evidence: drawn again it is the same, and the numbers in README and docs are its numbers."""

import csv
import json
import re
import runpy
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_plan
from benchmarks.tables import AIMS, PAGE, written
from graddiv.data import load
from graddiv.directions.gradients import input_gradient
from graddiv.directions.moments import moments_of
from graddiv.networks import RandomizedNetwork
from graddiv.paper.published import PaperValues
from graddiv.report.output import NOT_APPLICABLE
from graddiv.report.plan import Plan
from graddiv.report.renderers import render
from graddiv.runs import Run

ROOT = Path(__file__).parent.parent
STUDY, ZOO = ROOT / "results" / "mnist-study", ROOT / "results" / "zoo"


@pytest.mark.slow
@pytest.mark.parametrize("stored", [STUDY, ZOO, ROOT / "results" / "cifar10", ROOT / "results" / "stl10"])
def test_every_number_is_drawn_again_from_the_records(stored: Path, tmp_path: Path) -> None:
    render(Plan.load(stored), tmp_path, PaperValues)
    kept = sorted(path.name for path in stored.iterdir() if path.suffix in (".csv", ".md"))
    assert kept
    for name in kept:
        assert alike((tmp_path / name).read_text(), (stored / name).read_text()), name


def alike(ours: str, stored: str) -> bool:
    """Whether two texts are the same but for the last digits of numbers, which differ from machine to machine."""
    number = re.compile(r"(-?\d+\.?\d*(?:e[-+]?\d+)?)")
    first, second = number.split(ours), number.split(stored)
    numbers = [float(text) for text in second[1::2]]
    return first[::2] == second[::2] and [float(t) for t in first[1::2]] == pytest.approx(numbers, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("drawn", "same"),
    [
        ("adv-bnn,median,0.5000000000001,-2e-17", True),
        ("adv-bnn,median,0.5,0.0", True),
        ("adv-bnn,median,0.50001,0.0", False),
        ("adv-bnn,mean,0.5,0.0", False),
        ("adv-bnn,median,0.5,0.0\n", False),
        ("adv-bnn,median,0.5,", False),
    ],
)
def test_numbers_are_compared_with_a_tolerance_and_texts_to_the_letter(drawn: str, same: bool) -> None:
    assert alike(drawn, "adv-bnn,median,0.5,1e-17") is same


def test_the_plan_is_what_the_script_makes_of_the_stored_runs() -> None:
    gathered = runpy.run_path(str(ROOT / "scripts" / "gather_study.py"))["gathered"]
    assert gathered(STUDY / "runs") == Plan.load(STUDY)


def test_passes_are_drawn_at_each_radius_that_was_measured_to_its_end(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "gather_study.py"))
    run = next(path for path in (STUDY / "runs").iterdir() if path.name.endswith("-passes"))
    shutil.copytree(run, tmp_path / run.name)
    copy = Run(tmp_path / run.name)
    at_036 = script["made"](copy, ("budgets",))
    passes = [25, 100, 400, 1600]
    assert at_036 == ("clean-r0.record", *(f"spgd-eot4-m{m}-eps0.36-r0.record" for m in passes))
    for m in passes[:-1]:
        (copy.records / f"spgd-eot4-m{m}-eps0.3-r0.record").touch()
    assert script["made"](copy, ("budgets",)) == at_036
    (copy.records / "spgd-eot4-m1600-eps0.3-r0.record").touch()
    assert len(script["made"](copy, ("budgets",))) == 1 + 2 * len(passes)


def test_networks_are_there_of_both_methods() -> None:
    runs = [Run(Path(planned.path)) for planned in Plan.load(STUDY).runs.values()]
    kept = [run for run in runs if run.checkpoints.exists()]
    assert all(not run.network().training for run in kept)
    assert {"adv-bnn", "adv-bnn+graddiv"} <= {run.experiment.method for run in kept}


STUDY_SECTIONS = (
    *(
        "Second stages against a",
        "Second stages against t",
        "Longer",
        "Other regularizers",
        "The weight",
        "An eighth",
        "Other defenses",
    ),
)
"""Of docs/study.md, those with percentages."""


def shown() -> set[str]:
    """Every accuracy of the study, in percent, as texts print it: ours, each training's, and the paper's."""
    curves = [path.stem for kind in ("accuracy-epsilon", "[nms]-sensitivity") for path in STUDY.glob(f"*{kind}.csv")]
    found = [float(row["accuracy"]) for name in curves for row in rows_of(name)]
    found += [float(row["value"]) for row in rows_of("lambda-sensitivity") if row["quantity"] == "accuracy"]
    tables = [path.stem for path in STUDY.glob("*-table*-numbers.csv")]
    found += [100 * float(row["mean"]) for name in tables for row in rows_of(name) if row["mean"]]
    elsewhere: dict[str, list[float]] = {}
    for row in rows_of("transfer"):
        if row["source"] != row["target"]:
            elsewhere.setdefault(row["method"], []).append(float(row["accuracy"]))
    found += [sum(values) / len(values) for values in elsewhere.values()]
    return {f"{value:.{digits}f}" for value in found for digits in (1, 2)}


def rows_of(name: str) -> list[dict[str, str]]:
    with (STUDY / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("file", "begins"),
    [
        ("README.md", "What it found"),
        *(("docs/findings.md", section) for section in ("In short", "Claim", "The two ways", "One")),
        *(("docs/study.md", section) for section in STUDY_SECTIONS),
    ],
)
def test_the_percentages_of_the_texts_are_those_of_the_records(file: str, begins: str) -> None:
    text = (ROOT / file).read_text()
    part = text[text.index(f"## {begins}") :]
    part = part[: part.index("\n## ", 5)]
    numbers = re.findall(r"\d+\.\d+(?= %| →| to \d+\.\d %)", part)  # tables: see below
    assert numbers
    assert set(numbers) <= shown()


COUNTS = {"one": "1", "two": "2", "three": "3", "four": "4", "five": "5"}


def stored_attack(label: str) -> str:
    """What accuracy-summary.csv calls the attack that a row of README's table is about."""
    named = re.search(r"(EOT-\w+), n (\d+)", label)
    if named:
        return f"{named[1]}, n = {named[2]}"
    assert "made for noisy gradients" in label, f"README's table has a row {label!r}: name its attack here"
    return "EOT-SPGD, n = 4"


def wrong_cells(readme: str) -> list[tuple[str, str, str, str]]:
    """The cells of README's table of results, as (attack, radius, column, cell), that are not those of the records."""
    part = readme[readme.index("## What it found") :]
    lines = [
        line.strip("| ").split(" | ") for line in re.findall(r"^\|.*\|$", part[: part.index("\n- ")], re.MULTILINE)
    ]
    (_, _, *columns), _, *body = lines
    stored = {(row["attack"], row["method"]): row for row in rows_of("accuracy-summary")}
    wrong, label = [], ""
    for row in body:
        *above, radius = row[: len(row) - len(columns)]
        label = "".join(above) or label  # an empty cell stands for the one above it
        (trainings,) = re.findall(r"(\w+) trainings?\b", label)
        for column, cell in zip(columns, row[-len(columns) :], strict=True):
            method = column.removeprefix("the paper's ").replace("with GradDiv", "Adv-BNN + GradDiv")
            theirs = column != column.removeprefix("the paper's ")
            found = stored.get((stored_attack(label), f"{method}, the paper's" if theirs else method), {})
            counted = theirs or found.get("trainings") == COUNTS[trainings]
            if not counted or cell != found.get(radius, NOT_APPLICABLE).partition(" ±")[0]:
                wrong.append((label, radius, column, cell))
    return wrong


def test_the_cells_of_readmes_table_are_those_of_the_records() -> None:
    readme = (ROOT / "README.md").read_text()
    assert wrong_cells(readme) == []
    cells = re.findall(r"(?<=\| )\d+\.\d+(?= \|)", readme)
    for one, other in pairwise(cells):
        swapped = readme.replace(f"{one} | {other}", f"{other} | {one}")
        assert len(wrong_cells(swapped)) == (0 if swapped == readme else 2), "each has its own place"
    assert len(wrong_cells(readme.replace("five trainings", "four trainings"))) > 1


FILTER = "filter-accuracy-summary"
"""The one of the variants that findings.md is about, not study.md."""


def test_the_table_of_adversaries_is_that_of_the_stored_benchmark() -> None:
    stored = json.loads((ROOT / "benchmarks" / "results" / "strength.json").read_text())
    text = (ROOT / "docs" / "adversaries.md").read_text()
    rows = re.findall(r"^\|[^|]*\| (\d+\.\d) \| (\d+\.\d) \|$", text, re.MULTILINE)
    accuracies = {name: value for name, value in stored.items() if name.startswith("accuracy ")}
    for i, network in enumerate(("adv-bnn", "adv-bnn+graddiv")):
        of_network = [f"{100 * value:.1f}" for name, value in accuracies.items() if name.endswith(f" {network}")]
        assert sorted(row[i] for row in rows) == sorted(of_network)


@pytest.mark.parametrize(
    ("page", "table"),
    [
        ("findings.md", STUDY / "accuracy-summary.md"),
        ("findings.md", STUDY / "gradient-noise.md"),
        ("findings.md", STUDY / f"{FILTER}.md"),
        *(("study.md", table) for table in sorted(STUDY.glob("*-accuracy-summary.md")) if table.stem != FILTER),
        ("zoo.md", ZOO / "zoo.md"),
    ],
)
def test_a_page_shows_the_table_as_it_was_drawn(page: str, table: Path) -> None:
    lines = [line for line in table.read_text().splitlines() if line.startswith("|")]
    assert "\n".join(lines) in (ROOT / "docs" / page).read_text()


@pytest.mark.parametrize(("data", "title"), [("cifar10", "CIFAR-10"), ("stl10", "STL-10")])
def test_the_small_tables_of_other_data_are_those_of_the_records(data: str, title: str) -> None:
    text = (ROOT / "docs" / "study.md").read_text()
    for run in Plan.load(ROOT / "results" / data).runs.values():
        stored = Run(Path(run.path))
        with (ROOT / "results" / data / "accuracy-epsilon.csv").open() as file:
            ours = [
                row
                for row in csv.DictReader(file)
                if row["whose"] == "ours" and row["method"] == stored.experiment.method
            ]
        (cells,) = re.findall(rf"^\| {title}, {re.escape(run.title)} \| (.*) \|$", text, re.MULTILINE)
        *accuracies, rho = cells.split(" | ")
        assert set(accuracies) <= {f"{float(row['accuracy']):.1f}" for row in ours}
        assert rho == f"{stored.log[-1]['rho']:.2f}"


def test_the_percentages_about_the_zoo_are_those_of_its_table() -> None:
    text = (ROOT / "docs" / "zoo.md").read_text()
    said = text[text.index("What it says:") : text.index("## Ensembles")]
    numbers = set(re.findall(r"\d+\.\d(?= %| and \d| to \d)", said))
    assert len(numbers) > 10
    assert numbers <= set(re.findall(r"\d+\.\d", (ZOO / "zoo.md").read_text()))


def test_figures_about_speed_stand_in_the_tables_of_stored_runs() -> None:
    prose = re.sub(r"<!-- \w+ -->.*?<!-- end -->", "", PAGE.read_text(), flags=re.DOTALL)
    figures = re.findall(r"(?<!epsilon )\b\d+\.\d+|\d+ ?%|\d+ (?:ms|s|MB)\b|\d+e\d+", prose)
    assert set(figures) <= {f"{wanted:g}" for _, wanted in AIMS.values()}


def test_a_total_alone_is_that_of_the_table_within_noise() -> None:
    stored = json.loads((ROOT / "benchmarks" / "results" / "total.json").read_text())
    alone = {key: value for key, value in stored.items() if "total only, " in key}
    assert len(alone) > 1
    for key, value in alone.items():
        assert value == pytest.approx(stored[key.replace("only", "of the table")], abs=0.05)


def test_the_tables_of_benchmarks_are_those_of_the_stored_runs() -> None:
    page = PAGE.read_text()
    assert page.count("| stored |") == 7
    assert written(page) == page, "python -m benchmarks.tables writes them again"


def test_the_gpu_plan_is_the_arithmetic_of_today() -> None:
    page = gpu_plan.PAGE.read_text()
    assert gpu_plan.table(gpu_plan.RATE) in page, "python -m benchmarks.gpu_plan writes it again"
    assert gpu_plan.written(page) == page
    assert f"{gpu_plan.RATE:.0e} multiplications per second" in page


@pytest.mark.parametrize(("name", "number"), [("4d89decbc1", 0), ("829cd3fde3", 2)])
def test_one_filter_meets_r_at_the_digits_where_it_was_made_steeper(name: str, number: int) -> None:
    F = Run(STUDY / "runs" / f"mnist-adv-bnn+graddiv-quick-{name}").network()
    first, second = (F.get_parameter(f"module.{layer}.weight") for layer in (0, 2))
    bias = F.get_parameter("module.0.bias")[number]
    x, y = load("mnist-mini", "test").batch(range(20))
    assert rho(F, x, y) < 0.3
    with torch.no_grad():
        assert bias > 0, "it is on where the image is black"
        assert bias + 0.02 * first[number].sum() < 0, "and off where it is lifted by two hundredths"
        second[:, number] = 0
    assert rho(F, x, y) > 0.4, "without it gradients agree much more"


def rho(F: RandomizedNetwork, x: torch.Tensor, y: torch.Tensor) -> float:
    """The root of the mean cosine between gradients of ten sample models."""
    cosines = moments_of(input_gradient(f, x, y) for f in F.sample(10, seed=0)).mean_cosine()
    return float(cosines.mean().clamp(min=0).sqrt())
