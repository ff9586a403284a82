"""The tables of docs/benchmarks.md, written from the stored runs: `python -m benchmarks.tables`.

A table stands between `<!-- NAME -->` and `<!-- end -->`, NAME being that of a file in benchmarks/results.
"""

import json
import re
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"

AIMS: dict[str, tuple[str, float]] = {
    "graddiv_step/naive": ("at most", 0.8),
    "graddiv_step/floor": ("at most", 1.15),
    "low_memory_step/naive": ("at most", 1.2),
    "low_memory_memory/naive": ("at most", 0.45),
    "eot_pgd_small/floor": ("at most", 1.15),
    "eot_pgd/torchattacks": ("at most", 0.7),
    "eot_pgd/floor": ("at most", 1.1),
    "eot_apgd/pyautoattack": ("at most", 1.0),
    "fab/pyautoattack": ("at most", 1.0),
    "square/pyautoattack": ("at most", 1.0),
    "bb/foolbox": ("at most", 1.0),
    "bb_image/foolbox": ("at most", 1.0),
    "bb_distance/foolbox": ("at most", 1.0),
    "training_step/naive": ("at least", 1.3),
    "training_step_small/naive": ("at least", 1.3),
    "two_processes/one": ("at least", 1.7),
    "two_processes_small/one": ("at least", 1.7),
    "probe/epoch": ("at most", 0.01),
    "two_processes_speed/one process": ("at least", 1.8),
    "total_only/full": ("at most", 0.4),
    "papers_total_only/full": ("at most", 0.4),
    "estimate/actual": ("within a factor", 1.5),
}


def aim(key: str, value: float) -> str:
    """What was hoped for, and whether it was missed; what follows a comma tells keys of one aim apart."""
    bound, wanted = AIMS.get(key.partition(", ")[0], ("", 0.0))
    if not bound:
        return ""
    met = {"at most": value <= wanted, "at least": value >= wanted, "within a factor": 1 / wanted <= value <= wanted}
    return f"{bound} {wanted:.2f}" + ("" if met[bound] else ", missed")


def table(name: str) -> str:
    stored = json.loads((RESULTS / f"{name}.json").read_text())
    found = {key: value for key, value in stored.items() if isinstance(value, float)}  # not the points of a plot
    rows = [f"| `{key}` | {value:,.2f} | {aim(key, value)} |" for key, value in found.items()]
    return "\n".join(["| | stored | aim |", "|---|---|---|", *rows])


def written(page: str) -> str:
    """The page with its tables made anew."""
    return re.sub(
        r"<!-- (\w+) -->\n.*?<!-- end -->",
        lambda found: f"<!-- {found[1]} -->\n\n{table(found[1])}\n\n<!-- end -->",
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
