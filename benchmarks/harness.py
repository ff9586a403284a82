"""Contestants side by side: one process each, in turns, CPU time and peak memory, ratios."""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Measurement = dict[str, float]


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a narrow network and few repeats")
    parser.add_argument("--json", type=Path, help="write the ratios to this file")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    return parser.parse_args()


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(step: Callable[[], object], repeats: int) -> None:
    """In the contestant's process: print the least CPU time of a step and the memory that steps took."""
    start = peak_megabytes()
    step()
    times = []
    for _ in range(repeats):
        before = cpu_seconds()
        step()
        times.append(cpu_seconds() - before)
    print(json.dumps({"seconds": min(times), "megabytes": peak_megabytes() - start}))


def compete(module: str, contestants: list[str], quick: bool, rounds: int = 2) -> dict[str, Measurement]:
    """Run every contestant `rounds` times, in turns, and keep its least time and memory."""
    results: dict[str, Measurement] = {}
    for turn in range(rounds):
        for name in contestants:
            command = [sys.executable, "-m", module, "--contestant", name, *(["--quick"] if quick else [])]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{name} failed:\n{done.stderr}")
            found = json.loads(done.stdout.splitlines()[-1])
            known = results.get(name, found)
            results[name] = {key: min(found[key], known[key]) for key in found}
            print(f"  round {turn + 1}: {name:<32} {found['seconds']:7.3f} s {found['megabytes']:7.0f} MB", flush=True)
    return results


def report(ratios: dict[str, float], path: Path | None) -> None:
    """Print the ratios and, if asked to, write them down."""
    for name, value in ratios.items():
        print(f"{name:<48} {value:.2f}")
    if path is not None:
        path.write_text(json.dumps({name: round(value, 3) for name, value in ratios.items()}, indent=1) + "\n")
