"""A pass of the small network with two threads, as torch's threads wait by default and as the command lets them wait.

Alone on the machine, and beside as many other processes as there are cores; in wall-clock time, which waiting takes.
"""

import json
import os
import subprocess
import sys
import time

import torch
from torch.nn.functional import cross_entropy

from benchmarks.harness import arguments, compete, report, spread
from graddiv.cli import share_cores
from graddiv.data import load
from graddiv.networks import mnist_cnn
from graddiv.performance import channels_last, keep_memory

WAITS = ("default", "command")
PLACES = ("alone", "busy")


def run(place: str, wait: str, seconds: float) -> None:
    """Print the wall-clock time of a pass, the mean over so many seconds."""
    if wait == "command" and "GOMP_SPINCOUNT" not in os.environ:  # which is read when torch is imported
        share_cores()
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.threads", *sys.argv[1:]])
    keep_memory()
    torch.set_num_threads(2)
    f = channels_last(mnist_cnn(0.25).eval().requires_grad_(False))
    x, y = load("mnist-mini", "test").batch(range(64))
    x = channels_last(x).requires_grad_()
    crowd = (os.cpu_count() or 1) if place == "busy" else 0
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(crowd)]
    try:
        torch.autograd.grad(cross_entropy(f(x), y), x)
        begun, done = time.perf_counter(), 0
        while (spent := time.perf_counter() - begun) < seconds:
            torch.autograd.grad(cross_entropy(f(x), y), x)
            done += 1
    finally:
        for other in others:
            other.kill()
    print(json.dumps({"seconds": spent / done}))


def main() -> None:
    options = arguments(__doc__ or "")
    if options.contestant:
        place, wait = options.contestant.split(", ")
        run(place, wait, 1.0 if options.quick else 4.0)
        return
    contestants = [f"{place}, {wait}" for place in PLACES for wait in WAITS]
    found = compete("benchmarks.threads", contestants, options.quick, 1 if options.quick else 3)
    turns = {"fastest": "seconds", "slowest": "slowest"}
    ratios = {
        f"two_threads_{place}, {turn} turn, as the command waits/default": found[f"{place}, default"][key]
        / found[f"{place}, command"][key]
        for place in PLACES
        for turn, key in turns.items()
    }
    report(ratios | {"slowest turn/fastest": spread(found)}, options.json)


if __name__ == "__main__":
    main()
