"""`python -m tests.fuzz`: damages files for some minutes, and prints what came of it."""

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.fuzzer import Fuzzer, odd_override
from tests.fuzz.subjects import SUBJECTS
from tests.fuzz.table import print_table


def main() -> None:
    parser = argparse.ArgumentParser(description="Damage files at random and see whether a reader is fooled.")
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="what was tried when nothing was checked, as often")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.table:
        sys.exit(print_table(options.seed))
    ends = time.monotonic() + (60 * options.minutes + options.seconds or 60.0)
    counts: dict[str, Counter[str]] = {name: Counter() for name in [*SUBJECTS, "--set"]}
    failures: list[str] = []
    chance = random.Random(options.seed)
    with TemporaryDirectory() as directory:
        fuzzers = {}
        for number, name in enumerate(SUBJECTS):
            (folder := Path(directory) / str(number)).mkdir()
            fuzzers[name] = Fuzzer(name, folder, options.seed)
        while time.monotonic() < ends:
            for name, count in counts.items():
                outcome = fuzzers[name].once() if name in fuzzers else odd_override(chance)
                count[outcome.kind] += 1
                if outcome.failed:
                    failures.append(f"{name}: {outcome.what}")
    kinds = ("refused", "harmless", "accepted", "fooled", "crashed")
    print("| read | damaged | " + " | ".join(kinds) + " |\n" + "|---" * (len(kinds) + 2) + "|")
    for name, count in counts.items():
        print(f"| {name} | {count.total()} | " + " | ".join(str(count[kind]) for kind in kinds) + " |")
    for failure in dict.fromkeys(failures):
        print(failure, file=sys.stderr)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
