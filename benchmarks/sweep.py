"""Time and memory of EOT-PGD against each size it depends on, the others held: n, batch, width, examples, processes.

Each point is a process of its own; the least CPU time of its turns is kept (for processes, the wall-clock time) beside
the slowest.  The plot in docs/ is drawn from the stored points: `python -m benchmarks.sweep --draw`.
"""

import json
from pathlib import Path

import torch

from benchmarks.evaluation import seconds_with
from benchmarks.harness import LOAD, compete, measure, parser, spread
from graddiv import bayesian
from graddiv.attacks import EOT, PGD
from graddiv.networks import mnist_cnn
from graddiv.performance import channels_last, keep_memory
from graddiv.seeding import generator

HELD = {"n": 5.0, "batch": 64.0, "width": 0.25, "examples": 64.0}
SIZES: dict[str, tuple[float, ...]] = {
    "n": (1, 2, 5, 10, 20),
    "batch": (16, 32, 64, 128, 256),
    "width": (0.125, 0.25, 0.5, 1.0),
    "examples": (64, 128, 256, 512),
}
STEPS = 3
Points = dict[str, list[dict[str, float]]]
"""For each size that is varied what was found at each of its values."""
STORED = Path(__file__).parent / "results" / "sweep.json"
PLOT = Path(__file__).parent.parent / "docs" / "benchmarks-sweep.svg"


def run(point: str) -> None:
    """A name is '<size>=<value>'."""
    what, _, value = point.partition("=")
    size = HELD | {what: float(value)}
    if what == "batch":  # a batch is attacked at once
        size["examples"] = size["batch"]
    torch.set_num_threads(1)
    keep_memory()
    F, g = channels_last(bayesian(mnist_cnn(size["width"]), 0.05).eval()), generator(0)
    examples, batch = int(size["examples"]), int(size["batch"])
    x, y = torch.rand(examples, 1, 28, 28, generator=g), torch.randint(10, (examples,), generator=g)

    def attack() -> None:
        for images, labels in zip(x.split(batch), y.split(batch), strict=True):
            PGD(m=STEPS)(EOT(F, int(size["n"])), channels_last(images), labels, 0.2)

    measure(attack)


def sweep(quick: bool) -> Points:
    points = {what: values[:2] if quick else values for what, values in SIZES.items()}
    names = [f"{what}={value}" for what, values in points.items() for value in values]
    found = compete("benchmarks.sweep", names, quick, rounds=1 if quick else 3)
    kept = ("seconds", "slowest", "megabytes")
    table = {
        what: [{what: value} | {key: found[f"{what}={value}"][key] for key in kept} for value in values]
        for what, values in points.items()
    }
    walls = {processes: [seconds_with(processes)[0] for _ in range(1 if quick else 3)] for processes in (1, 2)}
    table["processes"] = [{"processes": p, "seconds": min(w), "slowest": max(w)} for p, w in walls.items()]
    return table


def draw(table: Points, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "graddiv"  # equal points, equal bytes
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(table), figsize=(3 * len(table), 3), layout="constrained")
    for axis, (what, points) in zip(axes, table.items(), strict=True):
        x = [point[what] for point in points]
        axis.plot(x, [point["seconds"] for point in points], "o-", color="C0")
        axis.vlines(x, [p["seconds"] for p in points], [p["slowest"] for p in points], color="C0")
        axis.set(xlabel=what, ylabel="seconds", xlim=(0, None), ylim=(0, None))
        if all("megabytes" in point for point in points):
            memory = axis.twinx()
            memory.plot(x, [point["megabytes"] for point in points], "s--", color="C1")
            memory.set(ylabel="MB", ylim=(0, None))
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--contestant", help="for internal use: a single point")
    options.add_argument("--draw", action="store_true", help="only draw the stored points again")
    chosen = options.parse_args()
    if chosen.contestant:
        run(chosen.contestant)
        return
    if not chosen.draw:
        table = sweep(chosen.quick)
        print(json.dumps(table, indent=1))
        if chosen.json is None:
            return
        points = {w: [{k: round(v, 4) for k, v in p.items()} for p in points] for w, points in table.items()}
        turns = spread({f"{what} {i}": point for what, of in table.items() for i, point in enumerate(of)})
        found = {"points": points, "slowest turn/fastest": round(turns, 3), "load average before": LOAD}
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    draw(json.loads((chosen.json or STORED).read_text())["points"], PLOT)


if __name__ == "__main__":
    main()
