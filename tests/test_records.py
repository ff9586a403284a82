from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from graddiv import store
from graddiv.errors import GradDivError
from graddiv.records import (
    AttackRecord,
    ConcentrationRecord,
    ExplainedRecord,
    GradientsRecord,
    JudgementRecord,
    MeasurementRecord,
    Record,
    TrajectoryRecord,
    accuracy,
    as_rows,
    cross_fitted_total,
    curve,
    flips,
    over_trainings,
    read_all,
    summary,
    table,
    table_per_epsilon,
    total,
    wilson,
)
from graddiv.records.record import KINDS
from tests.fake_records import COMMON, arrays, attack_record, description, total_record
from tests.helpers import no_type_checks

record = attack_record

OF_AUDITS = (ExplainedRecord, JudgementRecord, TrajectoryRecord)


def save(path: Path, made: Record) -> None:
    store.write_arrays(path, made.arrays, {"kind": made.kind, **made.description})


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    save(tmp_path / "a.record", record())
    again = AttackRecord.load(tmp_path / "a.record")
    assert again.description == record().description
    assert all((again.arrays[name] == array).all() for name, array in record().arrays.items())
    assert (again.epsilon, again.value("epsilon"), again.data.split) == (0.1, 0.1, "test")
    with pytest.raises(GradDivError, match="records of kind 'attack' have no setting 'nonsense'"):
        again.value("nonsense")


def test_a_record_of_any_kind_is_read_as_its_class(tmp_path: Path) -> None:
    from tests.report import fake

    path = tmp_path / "run"
    fake.run(path, "adv-bnn", attacks=(), repeats=1)
    save(path / "records" / "total.record", total_record())
    found = read_all(path)
    classes = {type(r) for r in found}
    made_by_runs = {k for k in KINDS.values() if k.__module__.startswith("graddiv.") and k not in OF_AUDITS}
    assert classes == made_by_runs
    assert all(type(r) is KINDS[r.kind] for r in found)
    concentration = path / "records" / "concentration.record"
    assert isinstance(MeasurementRecord.load(concentration), ConcentrationRecord)
    with pytest.raises(
        GradDivError, match=r"concentration\.record is a record of kind 'concentration', expected .*attack"
    ):
        AttackRecord.load(concentration)
    with pytest.raises(GradDivError, match=r"of kind 'concentration', expected one of gradients$"):
        GradientsRecord.load(concentration)


def without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


@pytest.mark.parametrize(
    ("described", "found", "message"),
    [
        (description(), without(arrays(), "margin"), "lacks the array 'margin': it is damaged, or of another version"),
        (description(), arrays(margins=np.zeros(50)), "has the unknown array 'margins', expected only ids, labels, "),
        (description(), arrays(margin=np.zeros(49, np.float32)), r"the array 'margin' has shape \(49,\) .* b = 50"),
        (description(), arrays(margin=np.zeros((50, 1), np.float32)), r"the array 'margin' has shape \(50, 1\)"),
        (
            description(),
            arrays(correct=np.zeros(50)),
            "the array 'correct' has shape .* and type float64, expected Bool",
        ),
        (description(b=49), arrays(), r"the array 'ids' has shape \(50,\) .* b = 49"),
        (without(description(), "epsilon"), arrays(), "lacks the setting 'epsilon'"),
        (description(radius=0.1), arrays(), "has the unknown setting 'radius', expected only target, "),
        (description(data={"name": "d"}), arrays(), "the setting 'data' is .*, expected name, split, sha256"),
        (description(kind="atack"), arrays(), "is a record of kind 'atack', expected one of attack, "),
    ],
)
def test_a_file_with_a_wrong_part_is_refused_by_name(
    tmp_path: Path, described: dict[str, Any], found: dict[str, np.ndarray], message: str
) -> None:
    store.write_arrays(tmp_path / "a.record", found, described)
    with no_type_checks(), pytest.raises(GradDivError, match=rf"a\.record:? {message}"):
        Record.load(tmp_path / "a.record")


def test_a_description_that_is_no_table_is_refused(tmp_path: Path) -> None:
    with no_type_checks():
        store.write_arrays(tmp_path / "a.record", arrays(), ["attack"])
    with pytest.raises(GradDivError, match=r"a\.record: it holds list \['attack'\], expected an object"):
        Record.load(tmp_path / "a.record")


def test_axes_of_one_name_must_agree() -> None:
    n, p, b = 3, 4, 2
    settings = {"kind": "gradients", "n": n, "p": p, "examples": b, **COMMON}
    common = {"ids": np.arange(b), "labels": np.arange(b), "images": np.zeros((b, 1, 2, 2), np.float32)}
    v, cosines = np.zeros((b, n, p), np.float16), np.zeros((b, n, n), np.float32)
    GradientsRecord.made(settings, {**common, "gradients": v, "cosines": cosines}, "here")
    with pytest.raises(GradDivError, match=r"here: the array 'cosines' has shape \(2, 3, 2\)"):
        GradientsRecord.made(settings, {**common, "gradients": v, "cosines": cosines[:, :, :2]}, "here")


def test_records_are_read_and_tabled_at_any_depth(tmp_path: Path) -> None:
    save(tmp_path / "a.record", record())
    (tmp_path / "deep").mkdir()
    save(tmp_path / "deep" / "b.record", record("FGSM"))
    found = [each for each in read_all(tmp_path) if isinstance(each, AttackRecord)]
    assert (len(found), len(table(found)), len(as_rows(found))) == (2, 5, 2)


def test_a_directory_without_records_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(GradDivError, match=r"there are no records below .* 'graddiv attack' makes them"):
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


def test_the_interval_adds_the_variances_of_examples_and_of_draws() -> None:
    """The same images, 16.5 % right on one ensemble and 7 % on the next: the interval covers both."""
    one, other = (np.arange(200) < count for count in (33, 14))
    found = summary([one, other], repeats=1)
    assert (found.mean, found.repeats) == (pytest.approx(0.1175), 1)
    low, high = wilson(0.1175 * 200, 200)
    of_draws = 1.959964 * np.std([0.165, 0.07], ddof=1) / np.sqrt(2)
    assert found.interval.high == pytest.approx(found.mean + np.hypot(high - found.mean, of_draws))
    assert found.interval.low == pytest.approx(max(0, found.mean - np.hypot(found.mean - low, of_draws)))
    assert found.interval.low < 0.07 < 0.165 < found.interval.high
    alone = summary([one])
    assert alone.interval == wilson(33.0, 200)


def test_trainings_are_pooled_apart_from_draws() -> None:
    of_runs = [summary([np.arange(100) < count, np.arange(100) < count + 2]) for count in (40, 60)]
    found = over_trainings(of_runs)
    assert found.mean == pytest.approx(0.51)
    assert found.trainings == pytest.approx((0.41, 0.61))
    assert found.training_std == pytest.approx(np.std([0.41, 0.61], ddof=1))
    assert found.std == pytest.approx(np.std([0.40, 0.42], ddof=1)), "the spread of draws within a training"
    assert over_trainings(of_runs[:1]) == of_runs[0]


def test_flips_are_paired() -> None:
    first, second = np.array([True] * 12 + [False] * 3), np.array([False] * 10 + [True] * 2 + [False] * 2 + [True])
    found = flips(first, second)
    assert (found.lost, found.won) == (10, 1)
    assert found.p == pytest.approx(binomtest(10, 11).pvalue)
    assert flips(first, first).p == 1


def noisy(rng: np.random.Generator, truth: np.ndarray) -> AttackRecord:
    """Two independent noisy looks at the same margins."""
    one, two = (truth + rng.standard_normal(len(truth)).astype(np.float32) for _ in range(2))
    found = {"margin": one, "correct": one < 0, "margin_again": two, "correct_again": two < 0}
    return record(b=len(truth), found=found)


def test_total_of_identical_attacks_is_biased_and_the_cross_fitted_one_is_not() -> None:
    """Eight attacks that do the same to 20000 examples: the worst of them is as good as any."""
    rng = np.random.default_rng(0)
    truth = rng.normal(-0.5, 1, 20_000).astype(np.float32)
    records = [noisy(rng, truth) for _ in range(8)]
    accuracy = np.mean([r.correct.mean() for r in records])
    error = 0.5 / np.sqrt(20_000)
    for either in total(records):
        assert either.mean() < accuracy - 0.1
    for either in cross_fitted_total(records):
        assert abs(either.mean() - accuracy) < 4 * error


def test_total_is_an_and() -> None:
    records = [record(label) for label in ("PGD", "FGSM", "Square!")]
    first, second = total(records)
    np.testing.assert_array_equal(first, [all(r.correct[i] for r in records) for i in range(50)])
    np.testing.assert_array_equal(second, [all(r.correct_again[i] for r in records) for i in range(50)])


def test_the_table() -> None:
    records = [record(label, repeat) for label in ("clean", "PGD", "Square") for repeat in range(3)]
    rows = {row.label: row for row in table(records)}
    assert list(rows) == [
        "clean", "PGD", "Square", "Total (paper's rows)", "Total (all attacks)", "Total, cross-fitted",
    ]  # fmt: skip
    assert rows["PGD"].accuracy.repeats == 3
    assert rows["Total (paper's rows)"].accuracy == rows["PGD"].accuracy
    per_repeat = [total(r for r in records[3:] if r.repeat == repeat) for repeat in range(3)]
    assert rows["Total (all attacks)"].accuracy.mean == pytest.approx(np.mean(per_repeat))


def test_every_epsilon_has_its_own_rows_and_totals() -> None:
    labels, radii = ("PGD", "FGSM", "Square"), (0.2, 0.05)
    at = {e: [record(label, draw=int(100 * e), epsilon=e) for label in labels] for e in radii}
    clean = record("clean", epsilon=0.0)
    rows = table([clean, *at[0.2], *at[0.05]])
    alone = {e: table([clean, *at[e]]) for e in radii}
    assert rows[0].label == "clean"
    assert rows[0].accuracy.mean == np.mean([clean.correct, clean.correct_again])
    assert [row.label for row in rows[1:]] == [
        f"{row.label}, epsilon {e:g}" for e in sorted(radii) for row in alone[e][1:]
    ]
    assert [row.accuracy.mean for row in rows[1:]] == [row.accuracy.mean for e in sorted(radii) for row in alone[e][1:]]
    assert {row.epsilon for row in rows[1:]} == set(radii)
    totals = [row.accuracy.mean for row in rows if row.label.startswith("Total (all")]
    assert totals == pytest.approx([np.mean(total(at[e])) for e in sorted(radii)])
    assert totals[0] != totals[1], "the numbers are worth looking at"


def test_namesakes_are_told_apart_by_what_differs() -> None:
    records = [record("PGD", repeat, m=m) for m in (5, 9) for repeat in (0, 1)]
    rows = table(records)
    assert [row.label for row in rows[:2]] == ["PGD, m 5", "PGD, m 9"]
    assert [row.accuracy.repeats for row in rows[:2]] == [2, 2]
    by_n = [record("PGD", n=n) for n in (1, 20)]
    assert [row.label for row in table(by_n)[:2]] == ["PGD, n 1", "PGD, n 20"]


def test_a_namesake_that_lacks_a_setting_keeps_its_row() -> None:
    attack = {"name": "PGD", "m": 10, "seed": 0}
    older, newer, other = (
        record("PGD", draw=draw, attack=attack | own)
        for draw, own in enumerate(({}, {"random_start": True}, {"random_start": None}))
    )
    for records in ([older, newer, other], [newer, older, other]):
        rows = {row.label: row for row in table(records)}
        for label, one in (("PGD", older), ("PGD, random_start True", newer), ("PGD, random_start None", other)):
            assert rows[label].accuracy.mean == np.mean([one.correct, one.correct_again])
        assert rows["Total (all attacks)"].attacks == 3
    backwards = record("PGD", draw=1, attack=dict(reversed(attack.items())))
    assert len(table([older, backwards])) == 1, "the same settings in another order"


def test_the_same_found_in_two_directories_is_one_repeat() -> None:
    twice = [record("PGD", repeat) for repeat in (0, 1, 0, 1)]
    assert table(twice)[0].accuracy.repeats == 2
    assert table([record(), record(draw=1)])[0].accuracy.repeats == 1
    assert table([record(), record(seed=1)])[0].accuracy.repeats == 2


def test_totals_count_every_setting_of_an_attack_over_the_repeats_that_all_have() -> None:
    suite = [record(label, repeat) for label in ("PGD", "FGSM", "Square") for repeat in range(3)]
    rows = {row.label: row for row in table([*suite, record("PGD", draw=1, m=200)])}
    totals = {label: (row.attacks, row.accuracy.repeats) for label, row in rows.items() if label.startswith("Total")}
    assert totals == {"Total (paper's rows)": (3, 1), "Total (all attacks)": (4, 1), "Total, cross-fitted": (4, 1)}
    assert rows["PGD, m 10"].accuracy.repeats == 3
    unfinished = table([r for r in suite if r.repeat < 2 or r.label == "PGD"])
    assert [(row.accuracy.repeats, row.attacks) for row in unfinished if row.label == "Total (all attacks)"] == [(2, 3)]


def test_a_table_is_of_one_network() -> None:
    both = [record("PGD", parameters=name * 8) for name in "ab"]
    with pytest.raises(GradDivError, match=r"of 2 networks, t \(aaaaaaaa\), t \(bbbbbbbb\): make a table of each"):
        table(both)
    with pytest.raises(GradDivError, match="make a table of each"):
        table_per_epsilon(both)


def test_totals_need_common_examples_and_repeats() -> None:
    with pytest.raises(GradDivError, match="2 different sets of examples"):
        table([record(), record("FGSM", b=40)])
    with pytest.raises(GradDivError, match="PGD, FGSM have no repeat in common"):
        table([record("PGD", 0), record("FGSM", 1)])


def test_curves_are_in_order() -> None:
    records = [record(epsilon=e, draw=i) for i, e in enumerate((0.3, 0.1, 0.2, 0.1))]
    assert [(value, found.repeats) for value, found in curve(records, "epsilon")] == [(0.1, 2), (0.2, 1), (0.3, 1)]


def test_rows_for_csv_are_flat() -> None:
    names = ("rho", "rho_1", "rho_debiased", "mean_cosine", "kappa", "kappa_mle", "norm_ratio")
    values = {name: np.array([0.5, np.nan, 0.7], np.float32) for name in names}
    found = {"ids": np.arange(3), "labels": np.arange(3), "usable": np.array([True, False, True]), **values}
    described = {"kind": "concentration", "n": 5, "p": 16, "examples": 3, **COMMON}
    attack, other = as_rows([record(), ConcentrationRecord.made(described, found, "here")])
    assert attack["attack.m"] == 10
    of_both = accuracy([record()])
    assert [attack[f"accuracy{end}"] for end in ("", "_std", "_low", "_high")] == [*of_both[:2], *of_both.interval]
    assert attack["accuracy"] != record().accuracy, "which is that of one ensemble"
    assert attack["mean_distance"] == pytest.approx(0.1)
    assert attack["cost_forwards"] == 350
    assert (other["kind"], other["n"], other["data.split"]) == ("concentration", 5, "test")
    assert other["mean_rho"] == pytest.approx(0.6), "of those that have a direction"
