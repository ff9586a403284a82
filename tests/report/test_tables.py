import csv
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from graddiv.errors import GradDivError
from graddiv.records import Record, table
from graddiv.report.output import NOT_APPLICABLE, NOT_RUN, Table, latex, latex_text, markdown, save, table_files
from graddiv.report.study import RunFiles, Study, at_epsilon, sweep
from graddiv.report.tables import accuracy_table, attack_table, checklist_table
from tests.report import fake


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return fake.study(tmp_path_factory.mktemp("runs"), ("adv-train", "adv-bnn", "adv-bnn+graddiv"))


def cells(made: Table, row: str) -> dict[str, str]:
    return next(dict(zip(made.columns, cells, strict=True)) for cells in made.rows if cells[0] == row)


def test_a_cell_is_what_the_records_say(study: Study) -> None:
    made = attack_table(study, 0.2)
    accuracy = next(row for row in table(at_epsilon(study, 0.2)[1]) if row.label == "EOT^1-PGD").accuracy
    low, high = accuracy.interval
    expected = f"{100 * accuracy.mean:.1f} ± {100 * accuracy.std:.1f} ({100 * low:.0f}–{100 * high:.0f})"
    assert cells(made, "EOT^1-PGD")["Adv-BNN"] == expected
    assert accuracy.repeats == 2


def test_rows_are_in_the_papers_order_and_end_with_the_totals(study: Study) -> None:
    rows = [row[0] for row in attack_table(study, 0.2).rows]
    assert rows[:4] == ["clean", "FGSM", "PGD", "Square"]
    assert rows[-3:] == ["Total (paper's rows)", "Total (all attacks)", "Total, cross-fitted"]


def test_a_deterministic_network_has_no_eot(study: Study) -> None:
    made = attack_table(study, 0.2)
    assert cells(made, "EOT-PGD")["Adv. train"] == NOT_APPLICABLE
    assert cells(made, "PGD")["Adv. train, paper"] == "97.16", "the supplement writes EOT-PGD for it"


def test_the_papers_values_stand_beside_ours_and_are_marked(study: Study) -> None:
    made = attack_table(study, 0.2)
    assert cells(made, "EOT-PGD")["Adv-BNN, paper"] == "97.59", "n = 10, as most attacks have it"
    assert cells(attack_table(study, 0.2, n=20), "EOT-PGD")["Adv-BNN, paper"] == "97.43"
    assert {made.columns[i] for i in made.published} == {f"{run.title}, paper" for run in study.runs}
    assert "*97.59*" in markdown(made)
    assert r"\textit{97.59}" in latex(made)
    assert "whole MNIST" in made.caption


def test_table_1_beside_ours(tmp_path: Path) -> None:
    run = fake.run(tmp_path / "run", "adv-bnn+graddiv", 0.3, data="cifar10", attacks=("PGD",), epsilons=(8 / 255,))
    made = attack_table(Study((run,), "quick"), 8 / 255, n=10)
    assert cells(made, "EOT-PGD")["Adv-BNN + GradDiv, paper"] == "45.88 ± 1.68"
    assert cells(made, "Total (paper's rows)")["Adv-BNN + GradDiv, paper"] == "45.77 ± 1.63"
    assert cells(made, "EOT-APGD-CE")["Adv-BNN + GradDiv"] == NOT_RUN
    assert "8/255" in made.title
    assert "3 for Adv-BNN + GradDiv" in made.caption, "how many of the 16 rows the Total is over"
    assert "recipe scale quick, 40 test examples, 2 repeats" in made.caption


def test_what_was_not_run_says_so(tmp_path: Path) -> None:
    full = fake.run(tmp_path / "full", "adv-bnn+graddiv", 0.3)
    part = fake.run(tmp_path / "part", "adv-bnn", attacks=("FGSM",), repeats=1)
    made = attack_table(Study((part, full), "demo"), 0.2)
    assert cells(made, "EOT-PGD")["Adv-BNN"] == NOT_RUN
    assert "±" not in cells(made, "FGSM")["Adv-BNN"], "one repeat has no std"
    with pytest.raises(GradDivError, match=r"attacked at epsilon = 0\.7: 'graddiv attack RUN --epsilon 0\.7'"):
        attack_table(Study((part, full), "demo"), 0.7)


def test_the_attack_that_decides_the_total_stands_out(study: Study) -> None:
    made = attack_table(study, 0.3)
    for column, records in zip((1, 3, 5), at_epsilon(study, 0.3), strict=True):
        attacks = [row for row in table(records) if row.label != "clean" and row.per_draw is not None]
        lowest = min(attacks, key=lambda row: row.accuracy.mean).label
        assert [made.rows[i][0] for i, j in made.highlighted if j == column] == [lowest]
    for i, j in made.highlighted:
        assert f"**{made.rows[i][j]}**" in markdown(made)
        assert rf"\textbf{{{latex_text(made.rows[i][j])}}}" in latex(made)


def test_sweeps_beside_the_suite_do_not_change_the_table(study: Study) -> None:
    assert {(r.n, r.m) for r in study.runs[1].attacks(label="EOT-PGD")} == {
        (10, 20),
        (5, 20),
        (20, 20),
        (10, 5),
        (10, 50),
    }
    for records in at_epsilon(study, 0.2)[1:]:
        assert [(r.n, r.m) for r in records if r.label == "EOT-PGD"] == [(10, 20), (10, 20)]
    assert {(r.n, r.m) for r in at_epsilon(study, 0.2, n=5)[1] if r.label == "EOT-PGD"} == {(5, 20)}


def test_the_sweep_fixes_all_but_one_setting(study: Study) -> None:
    over = sweep(study, "epsilon")
    assert over is not None
    assert over.fixed == {"n": 10, "m": 20, "restarts": 1, "examples": fake.EXAMPLES}
    assert [run.title for run, _ in over.curves] == ["Adv. train", "Adv-BNN", "Adv-BNN + GradDiv"]
    assert [epsilon for epsilon, _ in over.curves[1][1]] == list(fake.EPSILONS)
    models = sweep(study, "n")
    assert models is not None
    assert [n for n, _ in models.curves[1][1]] == [1, 5, 10, 20]


@pytest.mark.parametrize("which", ["attacks", "accuracy"])
def test_all_forms_hold_the_same_values(study: Study, which: str) -> None:
    made = attack_table(study, 0.2) if which == "attacks" else accuracy_table(study)
    files = table_files(made)
    as_csv = [tuple(row) for row in csv.reader(io.StringIO(files[f"{made.name}.csv"].decode()))]
    assert as_csv == [made.columns, *made.rows]
    lines = [line for line in files[f"{made.name}.md"].decode().splitlines() if line.startswith("|")]
    as_markdown = [tuple(cell.strip(" *") for cell in line.strip("|").split(" | ")) for line in lines]
    assert [as_markdown[0], *as_markdown[2:]] == as_csv
    body = re.findall(r"^  (.*) \\\\$", files[f"{made.name}.tex"].decode(), re.MULTILINE)
    as_latex = [tuple(re.sub(r"\\text(it|bf)\{(.*)\}$", r"\2", c) for c in line.split(" & ")) for line in body]
    assert as_latex == [tuple(map(latex_text, row)) for row in as_csv]


def test_the_numbers_are_those_of_the_texts(study: Study) -> None:
    made = attack_table(study, 0.2)
    rows = list(csv.DictReader(io.StringIO(table_files(made)[f"{made.name}-numbers.csv"].decode())))
    assert len(rows) == len(made.rows) * 3
    row = next(row for row in rows if (row["attack"], row["method"]) == ("EOT-PGD", "adv-bnn"))
    assert cells(made, "EOT-PGD")["Adv-BNN"].startswith(f"{100 * float(row['mean']):.1f}")
    assert float(row["paper_mean"]) == pytest.approx(0.9759)


def test_the_supplements_form(study: Study) -> None:
    made = accuracy_table(study)
    rows = [row[:4] for row in made.rows]
    assert rows[0] == ("EOT-FGSM", NOT_APPLICABLE, "Adv. train", "ours")
    assert ("EOT-PGD", "5", "Adv-BNN", "paper") in rows
    for i, row in enumerate(made.rows):
        assert (row[3] == "paper") == (i in made.published_rows)
    papers = made.rows[rows.index(("EOT-PGD", "10", "Adv-BNN + GradDiv", "paper"))]
    assert papers[4:8] == ("99.14", "98.19", "96.08", "89.21")
    ours = made.rows[rows.index(("EOT-PGD", "10", "Adv-BNN + GradDiv", "ours"))]
    assert NOT_RUN in ours
    assert "±" in ours[5]


def test_the_checks_records_do_not_get_into_the_tables(tmp_path: Path) -> None:
    """An unbounded attack, and a random search on some of the images only, lie beside the suite's records."""
    run = fake.run(tmp_path / "run", "adv-bnn")

    def files(of: RunFiles) -> dict[str, bytes]:
        study = Study((of,), "demo")
        return table_files(attack_table(study, 0.2)) | table_files(accuracy_table(study))

    before = files(run)
    pgd = run.attacks(label="EOT-PGD", n=10, m=20, epsilon=0.2, repeat=0)[0]
    Record({**pgd.description, "epsilon": 1.0}, pgd.arrays).save(run.path / "records" / "unbounded.record")
    few = {name: array[:7] for name, array in pgd.arrays.items()}
    search = {**pgd.description, "label": "EOT-RandomSearch", "attack": {"name": "RandomSearch"}, "examples": 7}
    Record(search, few).save(run.path / "records" / "search.record")
    again = RunFiles(run.path, run.title)
    assert len(again.attacks()) == len(run.attacks()) + 2
    assert files(again) == before


def test_the_checklist(study: Study) -> None:
    made = checklist_table(study)
    assert made.rows[:2] == (
        ("success grows with epsilon", "Adv. train", NOT_RUN, ""),
        ("success grows with epsilon", "Adv-BNN", "pass", "It does."),
    )
    assert [made.rows[i][:3] for i, _ in made.highlighted] == [("black-box attacks do no better", "Adv-BNN", "fail")]
    assert "2 not run, 3 pass, 1 fail" in made.caption
    with pytest.raises(GradDivError, match="'graddiv checklist RUN'"):
        checklist_table(Study(study.runs[:1], "demo"))


def test_no_attack_at_all_names_the_command(tmp_path: Path) -> None:
    run = fake.run(tmp_path / "run", "adv-bnn", attacks=())
    with pytest.raises(GradDivError, match="'graddiv attack RUN --attacks fgsm,pgd"):
        accuracy_table(Study((run,), "demo"))


def test_equal_records_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        made = attack_table(fake.study(tmp_path / name), 0.2)
        paths = save(made, tmp_path / f"out-{name}")
    assert [p.name for p in paths] == [f"attacks-eps0.2{end}" for end in (".md", ".tex", ".csv", "-numbers.csv")]
    for path in paths:
        assert path.read_bytes() == (tmp_path / "out-a" / path.name).read_bytes()


def test_a_report_needs_no_torch() -> None:
    code = "import sys, graddiv.report.figures; print(sorted({'torch', 'scipy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_latex_escapes() -> None:
    assert latex_text("EOT^1-B&B 5 % ± a_b") == r"EOT$^1$-B\&B 5 \% $\pm$ a\_b"
    assert latex_text("κ̂ and κ") == r"$\hat\kappa$ and $\kappa$"


def test_a_run_tells_of_itself(study: Study) -> None:
    first, _, last = study.runs
    assert (first.random, last.random, first.lam, last.lam, last.epsilon) == (False, True, 0.0, 0.3, 0.2)
    assert study.run("adv-bnn") is study.runs[1]
    assert study.run("pni") is None
    assert study.epsilons == list(fake.EPSILONS)
    assert first.checklist is None
    assert last.checklist is not None
    assert last.clean is not None
    assert RunFiles(last.path, "x").data == study.data
