"""Contestants side by side: one process each, in turns, CPU time and peak memory, ratios."""

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from graddiv.networks import GaussianNetwork, SampleModel

Measurement = dict[str, float]
LOAD = os.getloadavg()[0]
"""Processes that wanted a core in the minute before the benchmark began: an idle machine has 0."""
Result = TypeVar("Result")


def parser(description: str) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--quick", action="store_true", help="smaller and shorter")
    options.add_argument("--json", type=Path, help="write the ratios to this file")
    return options


def arguments(description: str) -> argparse.Namespace:
    options = parser(description)
    options.add_argument("--contestant", help=argparse.SUPPRESS)
    options.add_argument("--network", type=Path, help=argparse.SUPPRESS)
    return options.parse_args()


def naive_weights(F: GaussianNetwork) -> dict[str, Tensor]:
    """mu + exp(log sigma) * noise, as one would write it: through exp each time, from the global random state."""
    mu = dict(F.module.named_parameters())
    return {name: w + torch.exp(F.log_sigma[name.replace(".", "/")]) * torch.randn_like(w) for name, w in mu.items()}


def plain_passes(F: GaussianNetwork, x: Tensor, y: Tensor, count: int) -> Tensor:
    """The arithmetic floor: a forward and an input backward of the architecture, `count` times; no noise, no step."""
    weights = {name: p.detach() for name, p in F.module.named_parameters()}
    return passes_of(lambda x: functional_call(F.module, weights, (x,)), x, y, count)


def passes_of(f: SampleModel, x: Tensor, y: Tensor, count: int) -> Tensor:
    """A forward and an input backward of a model, `count` times."""
    for _ in range(count):
        x = x.detach().requires_grad_()
        torch.autograd.grad(cross_entropy(f(x), y), x)
    return x.detach()


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(
    step: Callable[[], Result],
    repeats: int = 1,
    warm_up: Callable[[], object] | None = None,
    passes: Callable[[], float] = lambda: 0,
    score: Callable[[Result], Measurement] = lambda _: {},
) -> None:
    """In the contestant's process: print the least CPU time of a step, the memory that steps took, and the score.

    The first step, or the warm-up in its place, is timed apart: it compiles and fills caches.  `passes` is a meter of
    the passes spent so far.
    """
    start, before = peak_megabytes(), cpu_seconds()
    (warm_up or step)()
    found = {"warm-up": cpu_seconds() - before}
    times = []
    for _ in range(repeats):
        spent, before = passes(), cpu_seconds()
        result = step()
        times.append(cpu_seconds() - before)
    found |= {"seconds": min(times), "megabytes": peak_megabytes() - start, "passes": passes() - spent}
    print(json.dumps(found | score(result)))


def in_turns(calls: Mapping[str, Callable[[], object]], turns: int = 5) -> dict[str, list[float]]:
    """In one process: the CPU times of each call, one after the other in each turn, after a first one that warms up."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            before = cpu_seconds()
            call()
            times[name].append(cpu_seconds() - before)
    return times


def side_by_side(one: Callable[[], object], other: Callable[[], object], turns: int = 5) -> Measurement:
    """In one process: the CPU time of one over that of the other, in turns, with the least and the greatest of them."""
    times = in_turns({"one": one, "other": other}, turns)
    ratios = [a / b for a, b in zip(*times.values(), strict=True)]
    ratio = min(times["one"]) / min(times["other"])
    return {"seconds": ratio, "lowest": min(ratios), "highest": max(ratios)}


def spread(found: dict[str, Measurement]) -> float:
    """The slowest turn of a contestant over its fastest, of the contestant where that is greatest."""
    return max(it["slowest"] / max(it["seconds"], 1e-9) for it in found.values())


def compete(
    module: str, contestants: Sequence[str], quick: bool, rounds: int = 2, options: Sequence[str] = ()
) -> dict[str, Measurement]:
    """Run every contestant `rounds` times, in turns, and keep its least time and memory."""
    results: dict[str, Measurement] = {}
    for turn in range(rounds):
        for name in contestants:
            command = [sys.executable, "-m", module, "--contestant", name, *(["--quick"] if quick else []), *options]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{name} failed:\n{done.stderr}")
            found = json.loads(done.stdout.splitlines()[-1])
            known = results.get(name, found)
            results[name] = {key: min(found[key], known[key]) for key in found}
            results[name]["slowest"] = max(found["seconds"], known.get("slowest", 0.0))
            shown = "".join(f"  {key} {value:.3g}" for key, value in found.items())
            print(f"  round {turn + 1}: {name:<32}{shown}", flush=True)
    return results


def report(ratios: dict[str, float], path: Path | None) -> None:
    """Print the ratios and, if asked to, write them down."""
    ratios = ratios | {"load average before": LOAD}
    for name, value in ratios.items():
        print(f"{name:<48} {value:.2f}")
    if path is not None:
        path.write_text(json.dumps({name: round(value, 3) for name, value in ratios.items()}, indent=1) + "\n")
