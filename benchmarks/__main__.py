"""All benchmarks, one after the other: `python -m benchmarks`, on a machine with nothing else running.

Writes benchmarks/results/NAME.json and from these the tables and the plot of docs/benchmarks.md.  `strength` and
`auditors` are not among them: what they find does not depend on the machine.  Names of benchmarks as arguments run
these alone.
"""

import subprocess
import sys
import time

from benchmarks.tables import PAGE, RESULTS, written

ALL = ("regularizer", "attacks", "training", "evaluation", "threads", "sweep", "total")


def main(names: list[str]) -> None:
    for name in names or ALL:
        begun = time.perf_counter()
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(RESULTS / f"{name}.json")]
        subprocess.run(command, check=True)
        print(f"{name}: {(time.perf_counter() - begun) / 60:.1f} min", flush=True)
    PAGE.write_text(written(PAGE.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
