"""A few seconds of `python -m tests.fuzz`: no damaged file fools a reader or makes it crash."""

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.fuzzer import Fuzzer, odd_override
from tests.fuzz.subjects import SUBJECTS, WHOLE
from tests.helpers import no_type_checks

TIMES = 40


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
