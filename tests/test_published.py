"""A few of the paper's values, read from its tables by hand; and that all of them are there."""

import pytest

from graddiv.records import PAPER_ROWS
from graddiv.report.published import TRAINED_AT, PaperValues, rows
from graddiv.report.published import PublishedValue as Value


def test_table_1_has_every_cell() -> None:
    table = {(row["attack"], row["method"]): row for row in rows("table1") if not row["commented"]}
    random, deterministic = ("rse", "pni", "mi", "adv-bnn", "adv-bnn+graddiv"), ("no-defense", "adv-train")
    attacks = {"clean", *PAPER_ROWS, "Total"}
    modes = {attack for attack in attacks if not attack.startswith("EOT")}
    assert set(table) == {(a, m) for a in attacks for m in random} | {(a, m) for a in modes for m in deterministic}
    assert all(0 <= row["mean"] <= 100 for row in table.values())
    assert all((row["std"] is None) == (method in deterministic) for (_, method), row in table.items())


@pytest.mark.parametrize(
    ("attack", "method", "expected"),
    [
        ("clean", "no-defense", Value(92.39)),
        ("FGSM", "adv-bnn+graddiv", Value(71.30, 1.59)),
        ("APGD-DLR", "pni", Value(56.07, 0.65)),
        ("EOT^1-B&B", "rse", Value(51.35, 0.19)),
        ("EOT-PGD", "adv-bnn", Value(43.39, 0.48)),
        ("Total", "mi", Value(30.38, 0.08)),
        ("clean", "adv-bnn+graddiv", Value(77.51, 1.30)),
        ("Square", "no-defense", Value(5.73, None, commented=True)),
        ("EOT-Square", "adv-bnn", Value(72.85, 0.0, commented=True)),
        ("EOT-Square", "adv-bnn+graddiv", Value(70.04, 0.0, commented=True)),
        ("Total (all attacks)", "adv-bnn+graddiv", Value(39.17, 0.41, commented=True)),
    ],
)
def test_table_1(attack: str, method: str, expected: Value) -> None:
    assert PaperValues("cifar10", 8 / 255).value(method, attack, 8 / 255, n=10) == expected


@pytest.mark.parametrize(
    ("data", "attack", "n", "method", "epsilon", "expected"),
    [
        ("mnist", "clean", None, "no-defense", 0.0, 99.41),
        ("cifar10", "clean", None, "rse", 0.03, 84.06),
        ("cifar10", "clean", None, "adv-bnn", 0.03, 75.97),
        ("cifar10", "clean", None, "adv-bnn+graddiv", 0.0, 76.45),
        ("mnist", "EOT-PGD", None, "adv-train", 0.34, 50.26),
        ("mnist", "EOT-PGD", 20, "adv-bnn+graddiv", 0.4, 15.57),
        ("mnist", "EOT-FGSM", None, "adv-bnn", 0.32, 97.28),
        ("cifar10", "EOT-PGD", 1, "rse+graddiv", 0.03, 36.95),
        ("cifar10", "EOT-FGSM", None, "rse", 0.07, 4.12),
    ],
)
def test_supplement(data: str, attack: str, n: int | None, method: str, epsilon: float, expected: float) -> None:
    assert PaperValues(data, TRAINED_AT[data]).value(method, attack, epsilon, n) == Value(expected)


def test_the_supplement_is_whole() -> None:
    assert len(rows("supplement")) == 410
    assert PaperValues("mnist", 0.3).epsilons() == [0.1, 0.2, 0.3, 0.32, 0.34, 0.36, 0.38, 0.4]
    assert len(PaperValues("stl10", 0.03).epsilons()) == len(PaperValues("cifar10", 8 / 255).epsilons()) == 7
    assert all(0 <= row["accuracy"] <= 100 for row in rows("supplement"))


def test_a_curve_starts_with_the_clean_accuracy_of_its_own_table() -> None:
    curve = PaperValues("cifar10", 8 / 255).curve("rse", "EOT-PGD", 20)
    assert curve[0] == (0.0, 84.06), "of the supplement: Table 1 says 84.27"
    assert curve[-1] == (0.07, 0.30)
    assert PaperValues("mnist", 0.3).curve("adv-train", "EOT-PGD", None)[1] == (0.1, 98.53)


def test_what_the_paper_does_not_have() -> None:
    mnist = PaperValues("mnist", 0.3)
    assert PaperValues("cifar10", 8 / 255).value("adv-bnn", "SPGD", 8 / 255) is None
    assert mnist.value("adv-bnn", "EOT-PGD", 0.15, 10) is None
    assert mnist.value("adv-bnn", "EOT-PGD", 0.1, 7) is None
    assert mnist.curve("pni", "EOT-PGD", 10) == []
    assert PaperValues("unheard-of", 0.3).epsilons() == []
    assert mnist.origin() == ""


def test_networks_trained_at_another_radius_are_compared_at_the_same_ratio_to_it() -> None:
    ours = PaperValues("mnist", 0.2)
    assert ours.value("adv-bnn", "EOT-PGD", 0.2, 10) == Value(93.88), "the paper's 0.3"
    assert ours.value("adv-bnn", "EOT-PGD", 0.253333, 10) == Value(3.26), "the paper's 0.38"
    assert ours.value("adv-bnn", "EOT-PGD", 0.3, 10) is None, "the paper has no 0.45"
    assert ours.value("adv-bnn", "clean", 0.0) == PaperValues("mnist", 0.3).value("adv-bnn", "clean", 0.0) is not None
    assert ours.epsilons() == [0.0666667, 0.133333, 0.2, 0.213333, 0.226667, 0.24, 0.253333, 0.266667]
    assert (0.253333, 3.26) in ours.curve("adv-bnn", "EOT-PGD", 10)
    assert "which is 0.3 there and 0.2 here" in ours.origin()


def test_the_eot_rows_of_table_1_are_of_10_models() -> None:
    cifar10 = PaperValues("cifar10", 8 / 255)
    assert cifar10.value("adv-bnn", "EOT-PGD", 8 / 255, n=20) is None
    assert cifar10.value("adv-bnn", "EOT-PGD", 8 / 255) == Value(43.39, 0.48)
    assert cifar10.value("rse", "EOT^1-B&B", 8 / 255, n=20) == Value(51.35, 0.19), "one model, whatever n"
    assert cifar10.value("adv-bnn+graddiv", "FGSM", 8 / 255, n=20) == Value(71.30, 1.59)


@pytest.mark.parametrize(
    ("figure", "data", "epsilon", "expected"),
    [
        ("transfer", "mnist", 0.4, {"adv-bnn": [24, 4.5, 68], "adv-bnn+graddiv-dpp": [75, 29, 94]}),
        ("scatter", "mnist", 0.0, {"adv-bnn": [0.64], "adv-bnn+graddiv": [0.15]}),
        ("loss-increase", "mnist", 0.4, {"adv-bnn+graddiv": [-75]}),
        ("checklist", "cifar10", 8 / 255, {"adv-bnn+graddiv": [74]}),
        ("m-sensitivity", "cifar10", 8 / 255, {"adv-bnn+graddiv": [44.62, 0.33]}),
    ],
)
def test_the_numbers_of_the_text(figure: str, data: str, epsilon: float, expected: dict[str, list[float]]) -> None:
    found = [row for row in rows("text") if row["figure"] == figure]
    assert {row["data"] for row in found} == {data}
    assert {m: [row["value"] for row in found if row["method"] == m] for m in expected} == expected
    assert {row["method"] for row in found} == set(expected)
    trained_at = TRAINED_AT[data]
    said = PaperValues(data, trained_at).said(figure, epsilon)
    assert all(f"{value:g} ({method})" in said for method, values in expected.items() for value in values)
    assert PaperValues(data, trained_at / 2).said(figure, epsilon / 2) == said, "the same ratio"
    assert PaperValues(data, trained_at).said(figure, epsilon + 0.1) == ""
    assert PaperValues(data, trained_at / 2).said(figure, epsilon) == (said if epsilon == 0 else "")


def test_there_is_no_other_number_of_the_text() -> None:
    assert len(rows("text")) == 12


def test_without_adversarial_training_radii_are_the_papers_own() -> None:
    assert PaperValues("mnist", 0.0).value("adv-bnn", "EOT-PGD", 0.3, 10) == Value(93.88)


def test_the_embedded_digits_stand_beside_mnist() -> None:
    digits = PaperValues("mnist-mini", 0.3)
    assert digits.value("adv-bnn", "EOT-PGD", 0.3, 10) == Value(93.88)
    assert "of the whole MNIST" in digits.origin()
