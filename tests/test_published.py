"""A few of the paper's values, read from its tables by hand; and that all of them are there."""

import pytest

from graddiv import published
from graddiv.published import PublishedCell, Value
from graddiv.records import PAPER_ROWS


def test_table_1_has_every_cell() -> None:
    table = published.table1()
    random, deterministic = ("rse", "pni", "mi", "adv-bnn", "adv-bnn+graddiv"), ("no-defense", "adv-train")
    rows = {"clean", *PAPER_ROWS, "Total"}
    modes = {row for row in rows if not row.startswith("EOT")}
    assert set(table) == {(row, m) for row in rows for m in random} | {(row, m) for row in modes for m in deterministic}
    assert all(0 <= value.mean <= 100 for value in table.values())
    assert all((value.std is None) == (method in deterministic) for (_, method), value in table.items())


@pytest.mark.parametrize(
    ("attack", "method", "expected"),
    [
        ("clean", "no-defense", Value(92.39)),
        ("FGSM", "adv-bnn+graddiv", Value(71.30, 1.59)),
        ("APGD-DLR", "pni", Value(56.07, 0.65)),
        ("EOT^1-B&B", "rse", Value(51.35, 0.19)),
        ("EOT-PGD", "adv-bnn", Value(43.39, 0.48)),
        ("Total", "mi", Value(30.38, 0.08)),
    ],
)
def test_table_1(attack: str, method: str, expected: Value) -> None:
    assert published.table1()[attack, method] == expected
    assert published.value("cifar10", method, attack, 8 / 255, n=10) == expected


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (PublishedCell("mnist", "clean", None, "no-defense", 0.0), 99.41),
        (PublishedCell("mnist", "EOT-PGD", None, "adv-train", 0.34), 50.26),
        (PublishedCell("mnist", "EOT-PGD", 20, "adv-bnn+graddiv", 0.4), 15.57),
        (PublishedCell("mnist", "EOT-FGSM", None, "adv-bnn", 0.32), 97.28),
        (PublishedCell("cifar10", "EOT-PGD", 1, "rse+graddiv", 0.03), 36.95),
        (PublishedCell("cifar10", "EOT-FGSM", None, "rse", 0.07), 4.12),
    ],
)
def test_supplement(cell: PublishedCell, expected: float) -> None:
    assert published.supplement()[cell].mean == expected
    assert published.value(cell.data, cell.method, cell.attack, cell.epsilon, cell.n) is not None


def test_the_supplement_is_whole() -> None:
    assert len(published.supplement()) == 410
    assert published.epsilons("mnist") == [0.1, 0.2, 0.3, 0.32, 0.34, 0.36, 0.38, 0.4]
    assert len(published.epsilons("stl10")) == len(published.epsilons("cifar10")) == 7
    assert all(0 <= value.mean <= 100 for value in published.supplement().values())


def test_a_curve_starts_with_the_clean_accuracy_of_its_own_table() -> None:
    curve = published.curve("cifar10", "rse", "EOT-PGD", 20)
    assert curve[0] == (0.0, 84.06), "of the supplement: Table 1 says 84.27"
    assert curve[-1] == (0.07, 0.30)
    assert published.curve("mnist", "adv-train", "EOT-PGD", None)[1] == (0.1, 98.53)


def test_what_the_paper_does_not_have() -> None:
    assert published.value("cifar10", "adv-bnn", "Square", 8 / 255) is None
    assert published.value("mnist", "adv-bnn", "EOT-PGD", 0.15, 10) is None
    assert published.value("mnist", "adv-bnn", "EOT-PGD", 0.1, 7) is None
    assert published.curve("mnist", "pni", "EOT-PGD", 10) == []


def test_the_embedded_digits_stand_beside_mnist() -> None:
    assert published.value("mnist-mini", "adv-bnn", "EOT-PGD", 0.3, 10) == Value(93.88)
