"""What the page says of GradDiv follows from the records, whichever way they fall."""

import re
from dataclasses import replace
from html import unescape
from typing import Any

import numpy as np
import pytest

from graddiv import records
from graddiv.records import ConcentrationRecord
from graddiv.report.closeups import Grid, Paired, Verdict, crossing, verdict
from graddiv.report.comparison import Comparison
from graddiv.report.output import fill
from graddiv.report.tables import attack_table
from tests.report import fake


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return fake.comparison(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def grid(comparison: Comparison) -> Grid:
    return fake.grid(comparison, epsilon=0.2, n=10)


def text(template: str, **content: Any) -> str:
    """What a template says, without its tags."""
    html = fill(template, **content)
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).replace("\u00a0", " ").split())


def told(of: Verdict) -> str:
    return text("verdict.html.jinja", v=of, tag="h1", title="")


def test_the_verdict_is_made_of_the_records(comparison: Comparison, grid: Grid) -> None:
    assert (grid.epsilon, grid.n) == (0.2, 10)
    said = told(verdict(*comparison.runs, grid))
    in_table = {row[0]: row[1:] for row in attack_table(grid.comparison).rows}["Total, cross-fitted"]
    before, after = (in_table[column].split()[0] for column in (0, 2))
    assert f"Robust accuracy at ε = 0.2 {before} % → {after} %" in said
    assert f"{comparison.runs[0].title} keeps {before} % and {comparison.runs[1].title} {after} %" in said
    measured = [run.measured(ConcentrationRecord) for run in comparison.runs]
    rhos = [f"{np.sqrt(np.nanmean(found.mean_cosine)):.2f}" for found in measured if found is not None]
    assert f"debiased {rhos[0]} → {rhos[1]}" in said
    assert "39 of 39" in said, "the example without gradients does not count"


def paired(won: int, lost: int, same: int = 100) -> Paired:
    before = np.repeat([0.0, 1.0, 1.0], [won, lost, same])
    after = np.repeat([1.0, 0.0, 1.0], [won, lost, same])
    return Paired(before, after)


@pytest.mark.parametrize(
    ("rho", "robust", "words"),
    [
        ((0.8, 0.3), paired(20, 2), "more than halves the concentration of the gradients, and robust accuracy rises"),
        ((0.8, 0.6), paired(2, 20), "spreads the gradients, but robust accuracy falls by 14.8 points"),
        ((0.8, 0.3), paired(3, 2), "but robust accuracy moves by +1.0 points, which chance can explain"),
        ((0.8, 0.3), paired(0, 0), "but robust accuracy moves by +0.0 points, which chance can explain"),
        ((0.5, 0.5), paired(20, 2), "leaves the gradients about as concentrated as they were, but robust accuracy"),
        ((0.5, 0.9), paired(2, 20), "With GradDiv the gradients are more concentrated, and robust accuracy falls"),
        ((None, None), paired(2, 20), "With GradDiv, robust accuracy falls by 14.8 points"),
        ((0.8, 0.3), None, "no attack was run on both"),
        ((None, 0.3), None, "Nothing was measured on both"),
    ],
)  # fmt: skip
def test_the_headline_follows_from_the_numbers(
    grid: Grid, rho: tuple[float | None, float | None], robust: Paired | None, words: str
) -> None:
    assert words in told(Verdict(("A", "B"), grid, ["PGD"], robust, None, rho, None))


def test_an_example_counts_once_however_many_repeats() -> None:
    found = Paired(np.array([0.5, 1.0, 0.0]), np.array([1.0, 0.5, 0.0]))
    assert found.flips[:2] == (1, 1)


def test_only_shared_examples_are_paired(comparison: Comparison) -> None:
    first, second = comparison.runs
    moved = replace(second, attacks=tuple(replace(r, ids=r.ids + 30) for r in second.attacks))
    shifted = fake.grid(fake.compared(first, moved), epsilon=0.2, n=10)
    assert "On the same 10 test examples" in told(verdict(first, moved, shifted))


def test_the_crossing_is_told_by_the_curves(comparison: Comparison) -> None:
    """At the radius of training, 0.2, and beyond it, 0.3: from the records, in points."""
    curve = comparison.only(lambda run, r: (r.label, r.n, r.m) == ("EOT-PGD", 10, 20))
    said = text("crossing.html.jinja", crossing=crossing(curve))
    assert said.startswith("At the radius of training GradDiv ")
    assert "; at 1.50 times it, it " in said
    for epsilon, clause in zip((0.2, 0.3), said.partition("Accuracy")[0].split(";"), strict=True):
        before, after = (records.accuracy([r for r in run.attacks if r.epsilon == epsilon]).mean for run in curve.runs)
        assert f"{epsilon}: {100 * before:.1f} → {100 * after:.1f} %" in said
        assert f"{abs(100 * (after - before)):.1f} points" in clause
    farther = curve.of([fake.retrained(run, epsilon=0.3) for run in curve.runs])
    assert crossing(farther) is None, "nothing beyond it"
    others_too = comparison.only(lambda run, r: r.n == 10 and r.m in (1, 20))
    assert {r.label for r in others_too.runs[0].attacks} > {"EOT-PGD"}
    others = text("crossing.html.jinja", crossing=crossing(others_too))
    assert others == said, "other attacks have no say in it"
    twice = text("crossing.html.jinja", crossing=crossing(curve.of([*curve.runs, *curve.runs])))
    assert twice.replace(", means over 2 trainings", "") == said
