import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from graddiv.errors import GradDivError
from graddiv.records import Record, as_rows, cross_fitted_total, curve, flips, read_all, summary, table, total, wilson


def record(label: str = "PGD", repeat: int = 0, b: int = 50, seed: int = 0, **settings: object) -> Record:
    rng = np.random.default_rng([seed, repeat, len(label)])
    margins = rng.standard_normal((2, b)).astype(np.float32)
    described = {
        "label": label, "attack": {"name": label, "m": 10, "seed": repeat}, "n": 1, "m": 10, "epsilon": 0.1,
        "repeat": repeat, "target": "t", "examples": b, "data": {"sha256": "0" * 8, "split": "test"}, **settings,
    }  # fmt: skip
    arrays = {
        "margin": margins[0], "correct": margins[0] < 0, "margin_again": margins[1], "correct_again": margins[1] < 0,
        "right": rng.random((b, 3)) < 0.5, "distance": np.full(b, 0.1, np.float32), "cost_forwards": np.full(b, 7),
    }  # fmt: skip
    return Record(described, arrays)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record().save(tmp_path / "a.record")
    again = Record.load(tmp_path / "a.record")
    assert again.description == record().description
    assert all((again[name] == array).all() for name, array in record().arrays.items())
    assert (again.epsilon, again.kind) == (0.1, "attack")
    with pytest.raises(AttributeError):
        _ = again.nonsense


def test_records_are_read_and_tabled_without_torch(tmp_path: Path) -> None:
    record().save(tmp_path / "a.record")
    (tmp_path / "deep").mkdir()
    record("FGSM").save(tmp_path / "deep" / "b.record")
    code = f"""
import sys
from pathlib import Path
from graddiv.records import as_rows, read_all, table
from graddiv.projections import plane
found = read_all(Path({str(tmp_path)!r}))
print(len(found), len(table(found)), len(as_rows(found)), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "5", "2", "False"]


def test_a_directory_without_records_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(GradDivError, match=r"there are no records below .* 'graddiv attack RUN' makes them"):
        read_all(tmp_path)


@given(st.integers(1, 500), st.floats(0, 1))
def test_wilson_intervals(trials: int, share: float) -> None:
    successes = round(share * trials)
    expected = binomtest(successes, trials).proportion_ci(method="wilson")
    assert wilson(float(successes), trials) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_summaries() -> None:
    found = summary([np.array([True, False]), np.array([True, True])])
    assert (found.mean, found.repeats) == (0.75, 2)
    assert found.std == pytest.approx(np.std([0.5, 1.0], ddof=1))
    assert np.isnan(summary([np.array([True])]).std)


def test_flips_are_paired() -> None:
    first, second = np.array([True] * 12 + [False] * 3), np.array([False] * 10 + [True] * 2 + [False] * 2 + [True])
    found = flips(first, second)
    assert (found.lost, found.won) == (10, 1)
    assert found.p == pytest.approx(binomtest(10, 11).pvalue)
    assert flips(first, first).p == 1


def noisy(rng: np.random.Generator, truth: np.ndarray) -> Record:
    """Two independent noisy looks at the same margins."""
    one, two = (truth + rng.standard_normal(len(truth)) for _ in range(2))
    return Record({}, {"margin": one, "correct": one < 0, "margin_again": two, "correct_again": two < 0})


def test_total_of_identical_attacks_is_biased_and_the_cross_fitted_one_is_not() -> None:
    """Eight attacks that do the same to 20000 examples: the worst of them is as good as any."""
    rng = np.random.default_rng(0)
    truth = rng.normal(-0.5, 1, 20_000)
    records = [noisy(rng, truth) for _ in range(8)]
    accuracy = np.mean([r["correct"].mean() for r in records])
    error = 0.5 / np.sqrt(20_000)
    assert total(records).mean() < accuracy - 0.1
    assert abs(cross_fitted_total(records).mean() - accuracy) < 4 * error


def test_total_is_an_and() -> None:
    records = [record(label) for label in ("PGD", "FGSM", "Square!")]
    np.testing.assert_array_equal(total(records), [all(r["correct"][i] for r in records) for i in range(50)])


def test_the_table() -> None:
    records = [record(label, repeat) for label in ("clean", "PGD", "Square") for repeat in range(3)]
    rows = {row.label: row for row in table(records)}
    assert list(rows) == [
        "clean", "PGD", "Square", "Total (paper's rows)", "Total (all attacks)", "Total, cross-fitted",
    ]  # fmt: skip
    assert rows["PGD"].accuracy.repeats == 3
    assert rows["Total (paper's rows)"].accuracy == rows["PGD"].accuracy
    per_repeat = [total(r for r in records[3:] if r.repeat == repeat).mean() for repeat in range(3)]
    assert rows["Total (all attacks)"].accuracy.mean == pytest.approx(np.mean(per_repeat))


def test_namesakes_are_told_apart_by_what_differs() -> None:
    records = [
        record("PGD", repeat, attack={"name": "PGD", "m": m, "seed": repeat}) for m in (5, 9) for repeat in (0, 1)
    ]
    rows = table(records)
    assert [row.label for row in rows[:2]] == ["PGD, m 5", "PGD, m 9"]
    assert [row.accuracy.repeats for row in rows[:2]] == [2, 2]
    by_n = [record("PGD", n=n, attack={"name": "PGD", "m": 5, "seed": 0}) for n in (1, 20)]
    assert [row.label for row in table(by_n)[:2]] == ["PGD, n 1", "PGD, n 20"]


def test_the_same_found_in_two_directories_is_one_repeat() -> None:
    twice = [record("PGD", repeat, examples=50) for repeat in (0, 1, 0, 1)]
    assert table(twice)[0].accuracy.repeats == 2
    assert table([record(), record(seed=1)])[0].accuracy.repeats == 1
    assert table([record(), Record({**record().description, "seed": 1}, record().arrays)])[0].accuracy.repeats == 2


def test_totals_are_of_one_setting_of_each_attack_and_of_those_repeated_as_often_as_most() -> None:
    suite = [record(label, repeat) for label in ("PGD", "FGSM", "Square") for repeat in range(3)]
    expected = {row.label: (row.accuracy, row.attacks) for row in table(suite) if row.label.startswith("Total")}
    assert [attacks for _, attacks in expected.values()] == [2, 3, 3]
    longer = [record("PGD", seed=i, attack={"name": "PGD", "m": m, "seed": 0}, m=m) for i, m in enumerate((5, 200))]
    more = [record("PGD", seed=3, n=100), record("FAB", seed=4)]
    rows = table([*longer, *more, *suite])
    assert {row.label: (row.accuracy, row.attacks) for row in rows if row.label.startswith("Total")} == expected
    unfinished = table([r for r in suite if r.repeat < 2 or r.label == "PGD"])
    assert [(row.accuracy.repeats, row.attacks) for row in unfinished if row.label == "Total (all attacks)"] == [(2, 3)]


def test_the_total_is_of_the_setting_that_most_modes_share() -> None:
    suite = [record(label, n=n, seed=i) for i, (label, n) in enumerate((("PGD", 1), ("EOT-PGD", 10), ("EOT-FGSM", 10)))]
    for other in suite:
        other.description["attack"]["name"] = other.label.removeprefix("EOT-")
    swept = [record("EOT-PGD", n=n, seed=n, attack={"name": "PGD", "m": 10, "seed": 0}) for n in (5, 100)]
    expected = [row.accuracy.mean for row in table(suite)[-3:]]
    assert [row.accuracy.mean for row in table([*swept, *suite])[-3:]] == expected
    assert [row.accuracy.mean for row in table([*swept, *suite[:1], *suite[2:]])[-3:]] != expected


def test_totals_need_common_examples_and_repeats() -> None:
    with pytest.raises(GradDivError, match="2 different sets of examples"):
        table([record(), record("FGSM", b=40)])
    with pytest.raises(GradDivError, match="PGD, FGSM have no repeat in common"):
        table([record("PGD", 0), record("FGSM", 1)])


def test_curves_are_in_order() -> None:
    records = [record(epsilon=e, seed=i) for i, e in enumerate((0.3, 0.1, 0.2, 0.1))]
    assert [(value, found.repeats) for value, found in curve(records, "epsilon")] == [(0.1, 2), (0.2, 1), (0.3, 1)]


def test_rows_for_csv_are_flat() -> None:
    measured = Record({"kind": "concentration", "n": 5}, {"rho": np.array([0.5, np.nan, 0.7]), "m": np.ones((3, 2))})
    attack, other = as_rows([record(), measured])
    assert attack["attack.m"] == 10
    assert attack["accuracy"] == record().accuracy
    assert attack["mean_distance"] == pytest.approx(0.1)
    assert attack["cost_forwards"] == 350
    assert other == {"kind": "concentration", "n": 5, "mean_rho": pytest.approx(0.6)}
