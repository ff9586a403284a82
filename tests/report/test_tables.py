import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graddiv.attacks import FGSM, PGD
from graddiv.errors import GradDivError
from graddiv.records import GradientNoiseRecord, table
from graddiv.report.comparison import Comparison, ReportRun, curves
from graddiv.report.output import NOT_APPLICABLE, NOT_RUN, Table, drawn_files, latex, latex_text, markdown, save
from graddiv.report.published import PaperValues
from graddiv.report.tables import accuracy_summary, accuracy_table, attack_table, checklist_table, gradient_noise_table
from tests.report import fake


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return fake.comparison(tmp_path_factory.mktemp("runs"), ("adv-train", "adv-bnn", "adv-bnn+graddiv"))


@pytest.fixture(scope="module")
def at_02(comparison: Comparison) -> Comparison:
    return fake.at(comparison, epsilon=0.2, n=10)


def cells(made: Table, row: str) -> dict[str, str]:
    return next(dict(zip(made.columns, cells, strict=True)) for cells in made.rows if cells[0] == row)


def test_a_cell_is_what_the_records_say(at_02: Comparison) -> None:
    made = attack_table(at_02)
    accuracy = next(row for row in table(at_02.runs[1].attacks) if row.label == "EOT^1-PGD").accuracy
    low, high = accuracy.interval
    expected = f"{100 * accuracy.mean:.1f} ± {100 * accuracy.std:.1f} ({100 * low:.0f}–{100 * high:.0f})"
    assert cells(made, "EOT^1-PGD")["Adv-BNN"] == expected
    assert accuracy.repeats == 2


def test_rows_are_in_the_papers_order_and_end_with_the_totals(at_02: Comparison) -> None:
    rows = [row[0] for row in attack_table(at_02).rows]
    assert rows[:4] == ["clean", "FGSM", "PGD", "Square"]
    assert rows[-3:] == ["Total (paper's rows)", "Total (all attacks)", "Total, cross-fitted"]


def test_a_deterministic_network_has_no_eot(at_02: Comparison) -> None:
    made = attack_table(at_02)
    assert cells(made, "EOT-PGD")["Adv. train"] == NOT_APPLICABLE
    assert cells(made, "PGD")["Adv. train, paper"] == "94.85", "the supplement writes EOT-PGD for it"


def test_the_papers_values_stand_beside_ours_and_are_marked(
    comparison: Comparison, at_02: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = attack_table(at_02)
    assert cells(made, "EOT-PGD")["Adv-BNN, paper"] == "93.88"
    with_20 = fake.at(comparison, epsilon=0.2, n=20)
    assert cells(attack_table(with_20), "EOT-PGD")["Adv-BNN, paper"] == "93.83"
    assert {made.columns[i] for i in made.published} == {f"{run.title}, paper" for run in at_02.runs}
    assert "*93.88*" in markdown(made)
    assert r"\textit{93.88}" in latex(made)
    assert "whole MNIST" in made.caption
    monkeypatch.setattr("graddiv.report.comparison.PaperValues", lambda data, radius: PaperValues("unknown", radius))
    without = attack_table(at_02)
    assert not without.published
    assert "paper's values" not in without.caption


def test_the_papers_values_stand_at_the_same_multiple_of_the_radius_of_training(tmp_path: Path) -> None:
    """Ours were trained at 0.2, the paper's at 0.3: its 0.38 is our 0.2533, and it has nothing of 0.45 = 1.5 * 0.3."""
    run = fake.run(tmp_path / "run", "adv-bnn", attacks=(PGD(m=20),), epsilons=(0.2, 0.253333, 0.3), repeats=1)
    of = fake.compared(run)
    at_train, at_far, beyond = (
        cells(attack_table(fake.at(of, epsilon=epsilon, n=10)), "EOT-PGD") for epsilon in (0.2, 0.253333, 0.3)
    )
    assert at_train["Adv-BNN, paper"] == "93.88"
    assert at_far["Adv-BNN, paper"] == "3.26"
    assert beyond["Adv-BNN, paper"] == NOT_APPLICABLE
    made = accuracy_table(fake.at(of, n=10, modes="eot"))
    shown = {row[3]: dict(zip(made.columns, row, strict=True)) for row in made.rows if row[:2] == ("EOT-PGD", "10")}
    assert shown["paper"]["ε = 0.2533"] == "3.26"
    assert shown["paper"]["ε = 0.3"] == NOT_APPLICABLE
    assert shown["ours"]["ε = 0.3"] != NOT_RUN
    for caption in (made.caption, attack_table(fake.at(of, epsilon=0.2, n=10)).caption):
        assert "at the same multiple of the radius of training, which is 0.3 there and 0.2 here" in caption


def test_runs_trained_at_two_radii_each_stand_beside_their_own_ratio(comparison: Comparison) -> None:
    run = comparison.runs[1]
    of = fake.compared(run, replace(fake.retrained(run, epsilon=0.3), title="farther"))
    row = cells(attack_table(fake.at(of, epsilon=0.2, n=10)), "EOT-PGD")
    assert (row["Adv-BNN, paper"], row["farther, paper"]) == ("93.88", "97.59"), "of its 0.3 and 0.2"
    made = accuracy_table(fake.at(of, n=10, modes="eot"))
    shown = [dict(zip(made.columns, row, strict=True)) for row in made.rows if row[:2] == ("EOT-PGD", "10")]
    assert [(row["method"], row["ε = 0.2"]) for row in shown if row["whose"] == "paper"] == [
        ("Adv-BNN, for training at 0.2", "93.88"),
        ("Adv-BNN, for training at 0.3", "97.59"),
    ]
    summed_up = accuracy_summary(fake.at(of, n=10, modes="eot"))
    names = [row[1] for i, row in enumerate(summed_up.rows) if i in summed_up.published_rows]
    assert names[-2:] == [f"Adv-BNN, for training at {epsilon}, the paper's" for epsilon in (0.2, 0.3)]
    assert "which is 0.3 there and 0.2 here (Adv-BNN); of the whole MNIST" in made.caption
    assert made.caption.endswith("which ours is a part of (farther).")


def test_the_papers_checklist_stands_beside_one_of_its_own_radius(tmp_path: Path) -> None:
    run = fake.run(tmp_path / "run", "adv-bnn+graddiv", 0.3, data="cifar10", attacks=(FGSM(),), epsilons=(0.2,))
    assert "The paper" not in checklist_table(fake.compared(run)).caption
    at_8 = replace(run, checklist_epsilon=8 / 255)
    assert "more than (%) 74 (adv-bnn+graddiv)" in checklist_table(fake.compared(at_8)).caption


def test_a_published_zero_is_shown(tmp_path: Path) -> None:
    run = fake.run(tmp_path / "run", "no-defense", data="cifar10", attacks=(PGD(m=20),), epsilons=(8 / 255,), repeats=1)
    of = fake.compared(run)
    made = attack_table(fake.at(of, epsilon=8 / 255))
    assert cells(made, "PGD")["No defense, paper"] == "0.00"
    assert "*0.00*" in markdown(made)
    [numbers] = [row for row in made.numbers if row[0] == "PGD"]
    assert dict(zip(made.number_columns, numbers, strict=True))["paper_mean"] == 0.0
    shown = [row for row in accuracy_table(fake.at(of)).rows if row[0] == "EOT-PGD" and row[3] == "paper"]
    assert "0.00" in shown[0]


def test_table_1_beside_ours(tmp_path: Path) -> None:
    run = fake.run(tmp_path / "run", "adv-bnn+graddiv", 0.3, "cifar10", attacks=(PGD(m=20),), epsilons=(8 / 255,))
    made = attack_table(fake.at(fake.compared(run, scale="quick"), epsilon=8 / 255, n=10))
    assert cells(made, "EOT-PGD")["Adv-BNN + GradDiv, paper"] == "45.88 ± 1.68"
    assert cells(made, "Total (paper's rows)")["Adv-BNN + GradDiv, paper"] == "45.77 ± 1.63"
    assert cells(made, "EOT-APGD-CE")["Adv-BNN + GradDiv"] == NOT_RUN
    assert "8/255" in made.title
    assert "3 for Adv-BNN + GradDiv" in made.caption, "how many of the 16 rows the Total is over"
    assert "recipe scale quick, 40 test examples, 2 repeats" in made.caption


def test_what_was_not_run_says_so(tmp_path: Path) -> None:
    full = fake.run(tmp_path / "full", "adv-bnn+graddiv", 0.3)
    part = fake.run(tmp_path / "part", "adv-bnn", attacks=(FGSM(),), repeats=1)
    made = attack_table(fake.at(fake.compared(part, full), epsilon=0.2, n=10))
    assert cells(made, "EOT-PGD")["Adv-BNN"] == NOT_RUN
    again = next(r for r in part.attacks if (r.label, r.epsilon) == ("FGSM", 0.2))
    spread = np.std([again.correct.mean(), again.correct_again.mean()], ddof=1)
    assert f"± {100 * spread:.1f} " in cells(made, "FGSM")["Adv-BNN"], "one repeat is judged by two ensembles"
    with pytest.raises(GradDivError, match=r"attack-table .*'graddiv attack RUN'"):
        attack_table(fake.at(fake.compared(part, full), epsilon=0.7))


def test_the_attack_that_decides_the_total_stands_out(comparison: Comparison) -> None:
    at_03 = fake.at(comparison, epsilon=0.3, n=10)
    made = attack_table(at_03)
    for run in at_03.runs:
        attacks = [row for row in table(run.attacks) if row.label != "clean" and row.per_draw is not None]
        lowest = min(attacks, key=lambda row: row.accuracy.mean).label
        column = made.columns.index(run.title)
        assert [made.rows[i][0] for i, j in made.highlighted if j == column] == [lowest]
    for i, j in made.highlighted:
        assert f"**{made.rows[i][j]}**" in markdown(made)
        assert rf"\textbf{{{latex_text(made.rows[i][j])}}}" in latex(made)


def test_a_table_of_attacks_is_of_one_radius_and_one_n(comparison: Comparison) -> None:
    with pytest.raises(GradDivError, match=r"the records have epsilon = 0\.1, 0\.2, 0\.3, expected one value"):
        attack_table(fake.at(comparison, n=10))
    with pytest.raises(GradDivError, match="the records have n = 5, 10, 20, expected one value"):
        attack_table(fake.at(comparison, epsilon=0.2))


@pytest.mark.parametrize(
    ("over", "restricted", "message"),
    [
        ("epsilon", {"modes": "eot"}, "EOT-PGD have n = 5, 10, 20: a curve over epsilon needs one value, .* --n$"),
        ("epsilon", {"n": 10, "m": None, "modes": "eot"}, "have m = 5, 20, 50: .* --m$"),
        ("n", {"modes": "eot1 eot"}, r"have epsilon = 0\.1, 0\.2, 0\.3: a curve over n .* --epsilon$"),
    ],
)
def test_a_curve_has_one_value_of_all_settings_but_one(
    comparison: Comparison, over: str, restricted: dict[str, object], message: str
) -> None:
    with pytest.raises(GradDivError, match=message):
        curves(fake.at(comparison, **restricted), over)  # type: ignore[arg-type]


def test_curves(comparison: Comparison) -> None:
    found = curves(fake.swept(comparison, "epsilon"), "epsilon")
    assert found is not None
    assert found.fixed == {"n": 10, "m": 20, "restarts": 1, "examples": fake.EXAMPLES}
    assert [run.title for run, _ in found.of_runs] == ["Adv. train", "Adv-BNN", "Adv-BNN + GradDiv"]
    assert [epsilon for epsilon, _ in found.of_runs[1][1]] == list(fake.EPSILONS)
    models = curves(fake.swept(comparison, "n"), "n")
    assert models is not None
    assert [n for n, _ in models.of_runs[1][1]] == [1, 5, 10, 20]
    assert curves(comparison.only(lambda run, record: False), "n") is None


def tables(comparison: Comparison, which: str) -> Table:
    if which == "attacks":
        return attack_table(fake.at(comparison, epsilon=0.2, n=10))
    return accuracy_table(fake.at(comparison, modes="eot"))


@pytest.mark.parametrize("which", ["attacks", "accuracy"])
def test_all_forms_hold_the_same_values(comparison: Comparison, which: str) -> None:
    made = tables(comparison, which)
    files = drawn_files(made)
    as_csv = [tuple(row) for row in csv.reader(io.StringIO(files[f"{made.name}.csv"].decode()))]
    assert as_csv == [made.columns, *made.rows]
    lines = [line for line in files[f"{made.name}.md"].decode().splitlines() if line.startswith("|")]
    as_markdown = [tuple(cell.strip(" *") for cell in line.strip("|").split(" | ")) for line in lines]
    assert [as_markdown[0], *as_markdown[2:]] == as_csv
    body = re.findall(r"^  (.*) \\\\$", files[f"{made.name}.tex"].decode(), re.MULTILINE)
    as_latex = [tuple(re.sub(r"\\text(it|bf)\{(.*)\}$", r"\2", c) for c in line.split(" & ")) for line in body]
    assert as_latex == [tuple(map(latex_text, row)) for row in as_csv]


def test_the_numbers_are_those_of_the_texts(at_02: Comparison) -> None:
    made = attack_table(at_02)
    rows = list(csv.DictReader(io.StringIO(drawn_files(made)[f"{made.name}-numbers.csv"].decode())))
    assert len(rows) == len(made.rows) * 3
    row = next(row for row in rows if (row["attack"], row["method"]) == ("EOT-PGD", "adv-bnn"))
    assert cells(made, "EOT-PGD")["Adv-BNN"].startswith(f"{100 * float(row['mean']):.1f}")
    assert float(row["paper_mean"]) == pytest.approx(0.9388)


def test_the_supplements_form(comparison: Comparison) -> None:
    made = tables(comparison, "accuracy")
    rows = [row[:4] for row in made.rows]
    assert rows[0] == ("EOT-FGSM", NOT_APPLICABLE, "Adv. train", "ours")
    assert ("EOT-PGD", "5", "Adv-BNN", "paper") in rows
    for i, row in enumerate(made.rows):
        assert (row[3] == "paper") == (i in made.published_rows)
    papers, ours = (
        dict(zip(made.columns, made.rows[rows.index(("EOT-PGD", "10", "Adv-BNN + GradDiv", whose))], strict=True))
        for whose in ("paper", "ours")
    )
    assert [papers[key] for key in ("clean", "ε = 0.06667", "ε = 0.1333", "ε = 0.2")] == [
        *("99.14", "98.19", "96.08", "89.21")
    ]
    assert ours["ε = 0.06667"] == NOT_RUN
    assert "±" in ours["ε = 0.2"]


def test_iterations_that_differ_between_numbers_of_models_are_told(comparison: Comparison) -> None:
    wanted = {5: 20, 10: 5}
    mixed = comparison.only(lambda run, r: r.label == "EOT-PGD" and r.epsilon == 0.2 and wanted.get(r.n) == r.m)
    assert "iterations m: PGD 20 where n = 5, PGD 5 where n = 10." in accuracy_table(mixed).caption


def test_the_papers_row_has_the_papers_name_whatever_ours_is_called(comparison: Comparison) -> None:
    renamed = comparison.of([replace(run, title=f"{run.title}, longer") for run in comparison.runs])
    rows = accuracy_table(fake.swept(renamed, "epsilon")).rows
    names = {whose: {row[2] for row in rows if row[3] == whose} for whose in ("ours", "paper")}
    assert names["paper"]
    assert all(name.endswith(", longer") for name in names["ours"])
    assert not any(name.endswith(", longer") for name in names["paper"])


@pytest.mark.slow
def test_variants_of_a_method_share_the_papers_row_and_are_told_apart(comparison: Comparison) -> None:
    swept = fake.swept(comparison, "epsilon")
    variants = [replace(run, title=f"{run.title}, longer") for run in swept.runs]
    alone, both = (accuracy_table(swept.of(runs)) for runs in (swept.runs, (*swept.runs, *variants)))
    assert [row for row in both.rows if row[3] == "paper"] == [row for row in alone.rows if row[3] == "paper"]
    titles = {row[both.number_columns.index("title")] for row in both.numbers}
    assert titles == {run.title for run in (*swept.runs, *variants)}


@pytest.mark.slow
def test_a_summary_has_one_number_in_a_cell_and_counts_the_trainings_that_were_attacked(
    comparison: Comparison, tmp_path: Path
) -> None:
    again = [fake.run(tmp_path / f"again-{i}", "adv-bnn") for i in range(2)]
    unattacked = replace(again[1], attacks=tuple(r for r in again[1].attacks if r.is_clean))
    pooled = fake.swept(comparison.of([*comparison.runs, again[0], unattacked]), "epsilon")
    made = accuracy_summary(pooled)
    assert made.columns == ("attack", "method", "trainings", "clean", "ε = 0.1", "ε = 0.2", "ε = 0.3")
    row = next(row for row in made.rows if row[:2] == ("EOT-PGD, n = 10", "Adv-BNN"))
    assert row[2] == "2"
    swept = dict(curves(pooled, "epsilon").of_runs[1][1])  # type: ignore[union-attr]
    assert row[5] == f"{100 * swept[0.2].mean:.1f} ± {100 * swept[0.2].training_std:.1f}"
    published = [row for i, row in enumerate(made.rows) if i in made.published_rows]
    assert ("EOT-PGD, n = 10", "Adv-BNN, the paper's") in {row[:2] for row in published}
    (deterministic,) = [row for row in made.rows if row[:2] == ("PGD", "Adv. train")]
    assert "±" not in "".join(deterministic)


def test_the_checklist(comparison: Comparison) -> None:
    made = checklist_table(comparison)
    assert made.rows[:2] == (
        ("success grows with epsilon", "Adv. train", NOT_RUN, ""),
        ("success grows with epsilon", "Adv-BNN", "pass", "It does."),
    )
    assert [made.rows[i][:3] for i, _ in made.highlighted] == [("black-box attacks do no better", "Adv-BNN", "fail")]
    assert "2 not run, 3 pass, 1 fail" in made.caption
    with pytest.raises(GradDivError, match="'graddiv measure RUN --what checklist'"):
        checklist_table(comparison.of(comparison.runs[:1]))


def test_trainings_of_one_method_have_rows_that_differ(comparison: Comparison) -> None:
    run = comparison.runs[1]
    twice = comparison.of([run, fake.retrained(run, seed=1)])
    assert [row[1] for row in checklist_table(twice).rows[:2]] == ["Adv-BNN, seed 0", "Adv-BNN, seed 1"]
    assert [row[0] for row in gradient_noise_table(twice).rows[1:3]] == ["Adv-BNN, seed 0", "Adv-BNN, seed 1"]


def test_a_table_of_one_attack_says_nothing_of_a_total(comparison: Comparison) -> None:
    of_pgd = fake.at(comparison, epsilon=0.2, n=10).only(lambda run, r: r.label == "EOT-PGD")
    made = attack_table(of_pgd.of(of_pgd.runs[1:]))
    assert "Total" not in made.caption
    assert "Bold: the attack" in attack_table(fake.at(comparison, epsilon=0.2, n=10)).caption


def test_the_noise_of_gradients_is_told_at_both_places(comparison: Comparison) -> None:
    made = gradient_noise_table(comparison)
    assert [row[:2] for row in made.rows[:2]] == [("Adv-BNN", "clean x"), ("Adv-BNN", "attacked x")]
    clean, attacked = (dict(zip(made.columns, row, strict=True)) for row in made.rows[:2])
    assert float(attacked["q"]) == pytest.approx(4 * float(clean["q"]), rel=0.05)
    assert float(clean["cosine predicted"]) == pytest.approx(float(clean["cosine measured"]), abs=0.02)
    assert int(clean["draws for 0.9"]) > int(attacked["draws for 0.9"])
    found = comparison.runs[1].measured(GradientNoiseRecord)
    assert found is not None
    uneven = replace(found, measured=found.measured**9, predicted=found.predicted**9)
    row = gradient_noise_table(comparison.of([replace(comparison.runs[1], measurements=(uneven,))])).rows[0]
    medians = [np.median(values[:, 0]) for values in (uneven.predicted, uneven.measured)]
    assert list(row[6:8]) == [f"{median:.2f}" for median in medians]
    assert list(row[6:8]) != [f"{values[:, 0].mean():.2f}" for values in (uneven.predicted, uneven.measured)]
    assert all(column in made.caption.lower() for column in map(str.lower, made.columns[2:]))
    with pytest.raises(GradDivError, match="'graddiv measure RUN --what gradient-noise'"):
        gradient_noise_table(comparison.of(comparison.runs[:1]))


def test_no_attack_at_all_names_the_command(comparison: Comparison) -> None:
    with pytest.raises(GradDivError, match="'graddiv attack RUN --attacks fgsm,pgd"):
        accuracy_table(comparison.only(lambda run, record: False))


@pytest.mark.slow
def test_equal_records_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        made = attack_table(fake.at(fake.comparison(tmp_path / name), epsilon=0.2, n=10))
        paths = save(made, tmp_path / f"out-{name}")
    assert {p.name for p in paths} == {f"attacks-eps0.2{end}" for end in (".md", ".tex", ".csv", "-numbers.csv")}
    for path in paths:
        assert path.read_bytes() == (tmp_path / "out-a" / path.name).read_bytes()


def test_latex_escapes() -> None:
    assert latex_text("EOT^1-B&B 5 % ± a_b") == r"EOT$^1$-B\&B 5 \% $\pm$ a\_b"
    assert latex_text("κ̂ and κ") == r"$\hat\kappa$ and $\kappa$"


def test_a_run_tells_of_itself(comparison: Comparison) -> None:
    first, _, last = comparison.runs
    assert (first.random, last.random, first.lam, last.lam, last.epsilon) == (False, True, 0.0, 0.3, 0.2)
    assert (last.method, last.data, comparison.training_epsilons) == ("adv-bnn+graddiv", "mnist-mini", [0.2])
    assert first.checklist == ()
    assert len(last.checklist) == 2
    assert last.clean is not None
    assert ReportRun(last.path, "x").clean is None, "a run without records of attacks"
