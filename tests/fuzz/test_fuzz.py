"""A few seconds of `python -m tests.fuzz`: no damaged file fools a reader or makes it crash."""

import random
import warnings
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.fuzzer import Fuzzer, odd_override
from tests.fuzz.subjects import SUBJECTS, WHOLE
from tests.fuzz.table import ROWS, odd_calls
from tests.helpers import no_type_checks

TIMES = 40


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_what_failed_before_any_of_this_was_checked(name: str) -> None:
    row, times = ROWS[name]
    with no_type_checks(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = list(row(times, 0))
    assert len(outcomes) == times
    assert [outcome.what for outcome in outcomes if outcome.failed] == []
    assert sum(outcome.kind == "refused" for outcome in outcomes) > times / 3


def test_odd_calls() -> None:
    with no_type_checks():
        outcomes = list(odd_calls(TIMES, 1))
    assert [outcome.what for outcome in outcomes if outcome.failed] == []
    assert {outcome.kind for outcome in outcomes} == {"refused", "accepted"}


@pytest.mark.parametrize("name", SUBJECTS)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    with no_type_checks():
        fuzzer = Fuzzer(name, tmp_path)
        outcomes = [fuzzer.once() for _ in range(TIMES)]
    assert [outcome.what for outcome in outcomes if outcome.failed] == []
    counts = Counter(outcome.kind for outcome in outcomes)
    assert counts["refused"] > TIMES / (2 if SUBJECTS[name].accepts == WHOLE else 5), counts


def test_odd_settings() -> None:
    chance = random.Random(0)
    outcomes = [odd_override(chance) for _ in range(5 * TIMES)]
    assert [outcome.what for outcome in outcomes if outcome.failed] == []
