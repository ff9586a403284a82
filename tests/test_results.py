"""The committed evidence: drawn again it is the same, and the numbers in README and docs are its numbers."""

import csv
import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from statistics import mean

import pytest
import torch

from benchmarks import gpu_plan
from benchmarks.tables import AIMS, PAGE, written
from graddiv.data import load
from graddiv.diversity.concentration import moments_of
from graddiv.diversity.gradients import input_gradient
from graddiv.errors import GradDivError
from graddiv.networks import RandomizedNetwork
from graddiv.paper.planning import gathered
from graddiv.paper.shipped import shipped
from graddiv.records import AttackRecord
from graddiv.records.mechanism import ContrastRecord
from graddiv.report.output import NOT_APPLICABLE
from graddiv.report.page import render
from graddiv.report.plan import RUNS, Plan
from graddiv.runs import Run

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
STUDY, SHORT, ZOO = RESULTS / "mnist-study", RESULTS / "mnist-12-epochs", RESULTS / "zoo"


@pytest.mark.slow
@pytest.mark.parametrize("stored", [STUDY, SHORT, ZOO, RESULTS / "cifar10", RESULTS / "stl10"])
def test_every_number_is_drawn_again_from_the_records(stored: Path, tmp_path: Path) -> None:
    render(Plan.load(stored), tmp_path)
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


@pytest.mark.parametrize(("target", "stored"), [("mnist-study", STUDY), ("zoo", ZOO)])
@pytest.mark.slow
def test_the_plan_is_what_the_declaration_makes_of_the_stored_runs(target: str, stored: Path) -> None:
    plan = Plan.load(stored)
    assert gathered(target, stored / RUNS)[0] == plan


def test_runs_to_draw_a_target_from_are_of_one_scale(tmp_path: Path) -> None:
    with pytest.raises(GradDivError, match="has runs of the scales none for zoo"):
        gathered("zoo", tmp_path)


@pytest.mark.slow
def test_networks_of_the_main_table_are_kept() -> None:
    stored = Plan.load(STUDY)
    _, wanted = gathered("mnist-study", STUDY / RUNS)
    kept = {name for name, run in stored.runs.items() if Run(Path(run.path)).checkpoints.exists()}
    assert kept <= wanted
    assert {stored.runs[name].title for name in kept} == {stored.runs[name].title for name in wanted}
    assert all(not Run(Path(stored.runs[name].path)).network().training for name in kept)


@pytest.mark.slow
def test_passes_are_drawn_at_each_radius_that_was_measured_to_its_end(tmp_path: Path) -> None:
    stored = Plan.load(STUDY)
    pair = [name for name, run in stored.runs.items() if run.title in ("Adv-BNN", "Adv-BNN + GradDiv")]
    for run in (name for name in pair if Run(STUDY / RUNS / name).experiment.seed == 0):
        shutil.copytree(STUDY / RUNS / run, tmp_path / run, ignore=shutil.ignore_patterns("checkpoints", "records"))
        (tmp_path / run / "records" / "passes").mkdir(parents=True)

    def drawn(epsilon: float, *passes: int) -> tuple[str, ...]:
        for run in tmp_path.iterdir():
            for name in ("clean-r0", *(f"spgd-eot4-m{m}-eps{epsilon}-r0" for m in passes)):
                (run / "records" / "passes" / f"{name}.record").touch()
        items = gathered("mnist-study", tmp_path)[0].items
        return next(iter(next(i.records for i in items if i.renderer == "passes-sensitivity").values()))

    passes = [25, 100, 400, 1600]
    at_036 = ("passes/clean-r0.record", *(f"passes/spgd-eot4-m{m}-eps0.36-r0.record" for m in passes))
    assert drawn(0.36, *passes) == at_036
    assert drawn(0.3, *passes[:-1]) == at_036
    assert len(drawn(0.3, passes[-1])) == 1 + 2 * len(passes)


def test_the_evidence_fits_in_a_hand() -> None:
    """What is tracked: Git ignores what is unpacked and drawn."""
    made = (".svg", ".pdf", ".tex", ".html")
    kept = [p for p in RESULTS.rglob("*") if p.is_file() and RUNS not in p.parts and p.suffix not in made]
    assert sum(path.stat().st_size for path in kept) < 30e6
    assert len(kept) < 200


def test_the_table_of_losses_is_that_of_the_logs_and_the_records() -> None:
    rows = []
    for name, run in Plan.load(STUDY).runs.items():
        stored = Run(STUDY / RUNS / name)
        if run.title in ("Adv-BNN + GradDiv", "Adv-BNN + GradDiv, 12 epochs"):
            found = (AttackRecord.load(stored.records / f"pgd-eot20-m20-eps{e}-r0.record") for e in (0.3, 0.36))
            cells = [f"{50 * (record.correct.mean() + record.correct_again.mean()):.1f}" for record in found]
            stage = f"{stored.experiment.schedule[-1].epochs} epochs"
            row = (str(stored.experiment.seed), stage, f"{stored.epochs[-1]['loss']:.2f}", *cells)
            rows.append((stored.epochs[-1]["loss"], f"| {' | '.join(row)} |"))
    assert len(rows) >= 5
    assert "\n".join(row for _, row in sorted(rows)) in (ROOT / "docs" / "findings.md").read_text()


METHODS = {"adv-bnn": "Adv-BNN", "adv-bnn+control": "control", "adv-bnn+graddiv": "with GradDiv"}


def section(page: str, begins: str) -> str:
    """The text below one heading of a page."""
    text = (ROOT / "docs" / page).read_text()
    text = text[text.index(f"## {begins}") :]
    return text[: text.find("\n## ", 5)]


def test_the_table_of_lost_contrast_is_that_of_the_records() -> None:
    header, _, *rows = re.findall(r"^\|(.*)\|$", section("mechanism.md", "The network tolerates"), re.MULTILINE)
    distances = [float(text) for text in re.findall(r"d = (\S+)", header)]
    expected = []
    for path in (STUDY / RUNS).glob("*/records/contrast.record"):
        record, run = ContrastRecord.load(path), Run(path.parent.parent).experiment
        shares = [100 * record.right[:, record.distances.index(d)].mean() for d in distances]
        attacked = AttackRecord.load(path.parent / "pgd-eot20-m20-eps0.36-r0.record")
        shares.append(50 * (attacked.correct.mean() + attacked.correct_again.mean()))
        cells = [f"seed {run.seed}, {METHODS[run.method]}", *(f"{share:.1f}" for share in shares)]
        expected.append(f" {' | '.join(cells)} ")
    assert sorted(rows) == sorted(expected)


def test_the_numbers_about_the_path_of_the_attack_are_those_of_the_records() -> None:
    text = section("mechanism.md", "The adversary is not lost").replace("−", "-")
    found = {f"{float(row[key]):.{d}f}" for row in rows_of(STUDY, "path") for key, d in PATH_DIGITS}
    numbers = set(re.findall(r"-?\d+\.\d+", text)) - {"0.36"}
    assert len(numbers) >= 10
    assert numbers <= found


PATH_DIGITS = [("rho", 2), ("length", 1), ("margin", 1), ("margin", 2)]


def test_the_table_of_short_and_long_trainings_is_that_of_the_logs_and_the_records() -> None:
    """Each row: the mean over its trainings of the last adversarial loss, of EOT-PGD, and of EOT-SPGD at 0.36."""
    rows = re.findall(r"^\|(.*)\|$", section("mechanism.md", "A short training"), re.MULTILINE)[2:]
    wanted = {  # the study, the method, its seeds
        "Adv-BNN, 12 epochs": (SHORT, "Adv-BNN", range(5)),
        "Adv-BNN, 60 epochs": (STUDY, "Adv-BNN", range(5)),
        "the best training with GradDiv (seed 0)": (STUDY, "Adv-BNN + GradDiv", [0]),
    }
    assert [row.split("|")[0].strip() for row in rows] == list(wanted)
    for row, (study, title, seeds) in zip(rows, wanted.values(), strict=True):
        runs = [Run(study / RUNS / name) for name, run in Plan.load(study).runs.items() if run.title == title]
        runs = [run for run in runs if run.experiment.seed in seeds]
        expected = [str(len(runs)), f"{mean(run.epochs[-1]['adversarial'] for run in runs):.2f}"]
        attacks = [f"pgd-eot20-m20-eps{epsilon}" for epsilon in (0.3, 0.34, 0.36, 0.38, 0.4)]
        for attack in (*attacks, "spgd-eot4-m100-eps0.36"):
            paths = [run.records / f"{attack}-r0.record" for run in runs]
            found = [AttackRecord.load(path) for path in paths if path.exists()]
            expected.append(f"{mean(50 * (r.correct.mean() + r.correct_again.mean()) for r in found):.1f}")
        assert [cell.strip() for cell in row.split("|")[1:]] == expected


def test_the_digits_that_survive_are_those_of_the_records() -> None:
    text = section("mechanism.md", "Which images")
    survive, areas = {}, {}
    for run in (Run(STUDY / RUNS / name) for name in Plan.load(STUDY).runs):
        if run.experiment.seed == 0 and (run.records / "contrast.record").exists():
            record = AttackRecord.load(run.records / "pgd-eot20-m20-eps0.36-r0.record")
            right = record.correct & record.correct_again
            margin = -ContrastRecord.load(run.records / "contrast.record").margin[: len(right), 0]
            survive[run.experiment.method] = right
            areas[run.experiment.method] = (margin[right][:, None] > margin[~right]).mean()
    base, graddiv = survive["adv-bnn"], survive["adv-bnn+graddiv"]
    said = re.search(r"(\d+) digits survive in both, (\d+) only with GradDiv, and (\w+) only without", text)
    assert said is not None
    counts = (base & graddiv).sum(), (graddiv & ~base).sum(), (base & ~graddiv).sum()
    assert counts == (int(said[1]), int(said[2]), int(COUNTS[said[3]]))
    area = f"{areas['adv-bnn']:.2f} (Adv-BNN) and {areas['adv-bnn+graddiv']:.2f} (with GradDiv)"
    assert f"area under the curve of {area}" in text


def test_files_of_the_archives_have_checksums() -> None:
    for stored in RESULTS.glob("*/plan.json"):
        Plan.load(stored.parent)
        for path in (stored.parent / RUNS).rglob("*.record"):
            assert b'"sha256":"' in path.read_bytes()[:4096], path


def accuracies(report: Path, item: str) -> set[str]:
    """Every accuracy of an item, in percent, as texts print it: ours, each training's, and the paper's."""
    names = [name for name in (item, f"{item}-numbers") if (report / f"{name}.csv").exists()]
    rows = [row for name in names for row in rows_of(report, name)]
    if item == "transfer":
        methods = {row["method"] for row in rows}
        pairs = [(r["method"], float(r["accuracy"])) for r in rows if r["source"] != r["target"]]
        found = [mean(accuracy for method, accuracy in pairs if method == wanted) for wanted in methods]
    else:
        found = [float(row["accuracy"]) for row in rows if "accuracy" in row]
        found += [float(row["value"]) for row in rows if row.get("quantity") == "accuracy"]
        found += [100 * float(row["mean"]) for row in rows if row.get("mean")]
    return {f"{value:.{digits}f}" for value in found for digits in (1, 2)}


def singly(attack: str) -> set[str]:
    """What an attack leaves of each training of the study, in percent."""
    found = (AttackRecord.load(path) for path in (STUDY / RUNS).glob("*/records/*.record") if "spgd" in path.name)
    return {f"{50 * (r.correct.mean() + r.correct_again.mean()):.1f}" for r in found if r.label == attack}


def rows_of(report: Path, name: str) -> list[dict[str, str]]:
    with (report / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


CURVES = ("accuracy-epsilon", "accuracy-table")


def curves_of(*prefixes: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{curve}" for prefix in prefixes for curve in CURVES)


@pytest.mark.parametrize(
    ("file", "begins", "report", "items"),
    [
        ("README.md", "What it found", STUDY, curves_of("", "longer-")),
        ("docs/findings.md", "In short", STUDY, (*curves_of("", "longer-"), "transfer")),
        ("docs/findings.md", "Why", STUDY, curves_of("", "longer-")),
        ("docs/twelve-epochs.md", "Five", SHORT, curves_of("")),
        ("docs/twelve-epochs.md", "The two ways", SHORT, curves_of("filter-", "filter-again-")),
        ("docs/twelve-epochs.md", "Second stages against a", SHORT, curves_of("", "draws-")),
        ("docs/twelve-epochs.md", "Second stages against t", SHORT, curves_of("steps-")),
        ("docs/twelve-epochs.md", "Longer", SHORT, curves_of("longer-")),
        ("docs/twelve-epochs.md", "Other regularizers", SHORT, curves_of("variants-")),
        ("docs/twelve-epochs.md", "The weight", SHORT, ("lambda-sensitivity",)),
        ("docs/twelve-epochs.md", "An eighth", SHORT, curves_of("width-")),
        ("docs/twelve-epochs.md", "Other defenses", SHORT, curves_of("methods-")),
    ],
)
def test_the_percentages_of_a_text_are_those_of_the_items_it_is_about(
    file: str, begins: str, report: Path, items: tuple[str, ...]
) -> None:
    text = (ROOT / file).read_text()
    part = text[text.index(f"## {begins}") :]
    part = part[: part.index("\n## ", 5)]
    numbers = set(re.findall(r"\d+\.\d+(?= %| →| to \d+\.\d %)", part))  # tables: see below
    strong = singly("EOT-SPGD") if report == STUDY else set()
    known = strong.union(*(accuracies(report, item) for item in items))
    assert numbers
    assert numbers <= known
    wrong = {f"{float(number) + 0.1:.1f}" for number in numbers}
    assert len(wrong - known) > len(wrong) / 3, "numbers that are off are noticed"


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
    stored = {(row["attack"], row["method"]): row for row in rows_of(STUDY, "accuracy-summary")}
    wrong, label = [], ""
    for row in body:
        *above, radius = row[: len(row) - len(columns)]
        label = "".join(above) or label  # an empty cell stands for the one above it
        trainings = re.findall(rf"\b({'|'.join(COUNTS)})\b", label)  # one number for both methods, or one for each
        of_method = dict(zip(("Adv-BNN", "Adv-BNN + GradDiv"), trainings * (3 - len(trainings)), strict=True))
        for column, cell in zip(columns, row[-len(columns) :], strict=True):
            method = column.removeprefix("the paper's ").replace("with GradDiv", "Adv-BNN + GradDiv")
            theirs = column != column.removeprefix("the paper's ")
            found = stored.get((stored_attack(label), f"{method}, the paper's" if theirs else method), {})
            counted = theirs or found.get("trainings") == COUNTS[of_method[method]]
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
    assert len(wrong_cells(re.sub(r"means of \w+", "means of five", readme))) > 1


def test_the_table_of_adversaries_is_that_of_the_stored_benchmark() -> None:
    stored = json.loads((ROOT / "benchmarks" / "results" / "strength.json").read_text())
    text = (ROOT / "docs" / "adversaries.md").read_text()
    rows = re.findall(r"^\|[^|]*\| (\d+\.\d) \| (\d+\.\d) \|$", text, re.MULTILINE)
    accuracies = {name: value for name, value in stored.items() if name.startswith("accuracy ")}
    for i, network in enumerate(("adv-bnn", "adv-bnn+graddiv")):
        of_network = [f"{100 * value:.1f}" for name, value in accuracies.items() if name.endswith(f" {network}")]
        assert sorted(row[i] for row in rows) == sorted(of_network)


MAIN = ("accuracy-summary", "longer-accuracy-summary", "gradient-noise", "pressed")
"""The tables of findings.md."""


@pytest.mark.parametrize(
    ("page", "table"),
    [
        *(("findings.md", STUDY / f"{name}.md") for name in MAIN),
        *(("twelve-epochs.md", table) for table in sorted(SHORT.glob("*accuracy-summary.md"))),
        ("zoo.md", ZOO / "zoo.md"),
    ],
)
def test_a_page_shows_the_table_as_it_was_drawn(page: str, table: Path) -> None:
    lines = [line for line in table.read_text().splitlines() if line.startswith("|")]
    assert "\n".join(lines) in (ROOT / "docs" / page).read_text()


@pytest.mark.parametrize(("data", "title"), [("cifar10", "CIFAR-10"), ("stl10", "STL-10")])
def test_the_small_tables_of_other_data_are_those_of_the_records(data: str, title: str) -> None:
    text = (ROOT / "docs" / "twelve-epochs.md").read_text()
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


@pytest.mark.slow
def test_the_gpu_plan_is_the_arithmetic_of_today() -> None:
    page = gpu_plan.PAGE.read_text()
    assert gpu_plan.table(gpu_plan.RATE) in page, "python -m benchmarks.gpu_plan writes it again"
    assert gpu_plan.written(page) == page
    assert f"{gpu_plan.RATE:.0e} multiplications per second" in page


def test_one_filter_meets_r_at_the_digits() -> None:
    F = shipped("adv-bnn+graddiv").network()
    first, second = (F.get_parameter(f"module.{layer}.weight") for layer in (0, 2))
    bias = F.get_parameter("module.0.bias")[0]
    x, y = load("mnist-mini", "test").batch(range(20))
    assert rho(F, x, y) < 0.2
    with torch.no_grad():
        assert bias > 0, "the filter is on where the image is black"
        assert bias + 0.02 * first[0].sum() < 0, "and off where it is lifted by two hundredths"
        second[:, 0] = 0
    assert rho(F, x, y) > 0.5, "without it gradients agree much more"


def rho(F: RandomizedNetwork, x: torch.Tensor, y: torch.Tensor) -> float:
    """The root of the mean cosine between gradients of ten sample models."""
    cosines = moments_of(input_gradient(f, x, y) for f in F.sample(10, seed=0)).mean_cosine()
    return float(cosines.mean().clamp(min=0).sqrt())
