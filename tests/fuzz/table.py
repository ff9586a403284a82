"""What was once tried and failed, tried again as often: every count of failures must be 0."""

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.calls import odd_call
from tests.fuzz.damage import flip_a_bit
from tests.fuzz.fuzzer import Fuzzer, Outcome, odd_override
from tests.fuzz.subjects import SUBJECTS
from tests.helpers import no_type_checks

Row = Callable[[int, int], Iterator[Outcome]]
"""(times, seed) -> what came of each attempt."""


def flipped_bits(times: int, seed: int) -> Iterator[Outcome]:
    """One bit of a checkpoint or of a record, by turns: it must be noticed."""
    with TemporaryDirectory() as directory:
        fuzzers = [Fuzzer(name, _made(Path(directory) / name), seed) for name in ("checkpoint", "record")]
        for number in range(times):
            outcome = fuzzers[number % 2].once(flip_a_bit)
            noticed = outcome.kind in ("refused", "crashed")
            yield outcome if noticed else Outcome("fooled", f"a flipped bit was {outcome.kind}")


def damaged_files(times: int, seed: int) -> Iterator[Outcome]:
    """Files of all kinds by turns, damaged in all ways."""
    with TemporaryDirectory() as directory:
        fuzzers = [Fuzzer(name, _made(Path(directory) / name.replace(" ", "-")), seed) for name in SUBJECTS]
        for number in range(times):
            yield fuzzers[number % len(fuzzers)].once()


def odd_calls(times: int, seed: int) -> Iterator[Outcome]:
    """Attacks and `evaluate` with odd arguments."""
    chance = random.Random(seed)
    yield from (odd_call(chance) for _ in range(times))


def odd_settings(times: int, seed: int) -> Iterator[Outcome]:
    """Recipes with odd overrides."""
    chance = random.Random(seed)
    yield from (odd_override(chance) for _ in range(times))


ROWS: dict[str, tuple[Row, int]] = {
    "one flipped bit in a checkpoint or record": (flipped_bits, 400),
    "damaged headers, JSON, logs": (damaged_files, 2100),
    "attacks and `evaluate` with odd inputs": (odd_calls, 1141),
    "recipes and `--set`": (odd_settings, 1568),
}
"""What is tried, and how often it was when it failed."""


def print_table(seed: int) -> bool:
    """Print the failures of each row, and return whether there was one."""
    print("| tried | times | refused | failures |\n|---|---|---|---|")
    failed = False
    for name, (row, times) in ROWS.items():
        with no_type_checks():
            found = list(row(times, seed))
        failures = [outcome.what for outcome in found if outcome.failed]
        print(f"| {name} | {times} | {sum(o.kind == 'refused' for o in found)} | {len(failures)} |")
        for what in dict.fromkeys(failures):
            print(what, file=sys.stderr)
        failed |= bool(failures)
    return failed


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
