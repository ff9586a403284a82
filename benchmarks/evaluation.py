"""The paper's suite on a Bayesian mnist_cnn: its cost, its time against the floor, two processes, the transfer matrix.

floor: as many plain forward and input backward passes as the suite says it spent, in the best memory format.
naive transfer: for each source and target bind both anew, attack and score; `attack once` moves the attack out of the
inner loop, as one would at second thought.
total only: the Total by elimination beside that of the whole table, in passes of attacks and of the models that choose
and judge, on a network that was briefly trained; an untrained one is fooled before the first attack.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from benchmarks.attacks import QUICK, train
from benchmarks.harness import Measurement, arguments, compete, cpu_seconds, measure, plain_passes, report, spread
from graddiv import bayesian
from graddiv.attacks import PGD, Given
from graddiv.data import load
from graddiv.distributed import join_processes
from graddiv.evaluation import Cell, Target, attack_all, attack_until_fooled, cells, suite, target_of
from graddiv.evaluation.batches import run as make
from graddiv.evaluation.concentration import concentration_job
from graddiv.evaluation.robustness import attack_job
from graddiv.evaluation.transfer import transfer_job
from graddiv.experiment import forward_work
from graddiv.experiment.probe import multiplications_per_second
from graddiv.networks import GaussianNetwork, mnist_cnn
from graddiv.performance import channels_last, keep_memory
from graddiv.recipes import recipe
from graddiv.records import AttackRecord, cross_fitted_total
from graddiv.seeding import fold, generator
from graddiv.training import train as train_run

EPSILON = 0.3
N = 10
SHORTER = 250
"""Iterations of the suite are divided by this: all steps of an attack cost the same, so two lengths tell its cost."""


def target(quick: bool, examples: int, batch: int) -> Target:
    F = channels_last(bayesian(mnist_cnn(0.25 if quick else 1.0), 0.05).eval())
    g = generator(0)
    x, y = torch.rand(examples, 1, 28, 28, generator=g), torch.randint(10, (examples,), generator=g)
    return Target.of(F, x, y, batch=batch, n_ensemble=2)


def shortened(times: int = 1) -> list[Cell]:
    """The paper's suite in three modes, with fewer iterations."""
    short = [
        a if a.iterations == 1 else replace(a, m=times * max(2, a.iterations // SHORTER))  # type: ignore[call-arg]
        for a in suite("paper")
    ]
    return [cell for cell in cells(short, [EPSILON], n=N) if cell.attack is not None]


def passes(records: list[AttackRecord]) -> dict[str, float]:
    """Forward and backward passes that an example cost, and what the whole suite would: each step costs the same.

    What comes before the first step, such as B&B's search for a start, is paid once: a step is the difference to twice
    as many, on an example of a small network, whose passes are as many.
    """
    spent = [(float(r.cost_forwards[0]), float(r.cost_backwards[0])) for r in records]
    longer = attack_all(target(True, 1, 1), shortened(2))
    full = {cell.attack.name: cell.attack.iterations for cell in cells(suite("paper"), [EPSILON], n=N) if cell.attack}
    whole = 0.0
    for both, r, double in zip(spent, records, longer, strict=True):
        more = float(double.cost_forwards[0] + double.cost_backwards[0]) - sum(both)
        whole += sum(both) + more / max(1, double.m - r.m) * (full[r.attack["name"]] - r.m)
    return {"forwards": sum(f for f, _ in spent), "backwards": sum(b for _, b in spent), "whole suite": whole}


def naive_transfer(of: Target, k: int, m: int, once: bool) -> Tensor:
    """The double loop."""
    x, y, _ = of.examples(slice(0, of.batch))
    seed = fold(0, "transfer")
    right = torch.zeros(k, k, len(x), dtype=torch.bool)
    for i in range(k):
        for j in range(k):
            if j == 0 or not once:
                source = of.F.bind(of.F.draw(fold(seed, "model", i)))
                x_adv = PGD(m=m)(Given([source]), x, y, EPSILON)
            with torch.no_grad():
                right[i, j] = of.F.bind(of.F.draw(fold(seed, "model", j)))(x_adv).argmax(1) == y
    return right


def total_only(quick: bool) -> Measurement:
    """The quick suite in three modes, or in a hurry the three cheapest attacks of it; both Totals beside each other."""
    x, y = load("mnist-mini", "test").batch(range(100))
    of = Target.of(train(QUICK).eval(), x, y)
    wanted = cells(suite("quick", ("fgsm", "pgd", "apgd-ce") if quick else ()), QUICK.epsilon, n=5)
    table, (alone,) = attack_all(of, wanted), attack_until_fooled(of, wanted)
    judges = 2 * of.n_ensemble
    spent = [int((r.cost_forwards + r.cost_backwards + judges).sum()) for r in table]
    attacks = [record for record in table if not record.is_clean]
    return {
        "share": (int(alone.passes.sum()) + judges * len(x)) / sum(spent),
        "total": float(np.mean(alone.verdicts)),
        "table's total": float(np.mean(cross_fitted_total(attacks))),
    }


def estimates(quick: bool) -> Measurement:
    """Estimated over actual CPU time of EOT-PGD and of a training of three stages, the network tried before."""
    examples = 1000 if quick else 4500
    changes = [f"data.examples={examples}", "training.epochs=1", "training.decays=[]"]
    experiment = recipe("mnist-mini/adv-bnn+graddiv", "demo" if quick else "quick", changes)
    speed = multiplications_per_second(experiment, clock=cpu_seconds)
    of = target_of(experiment, experiment.build(), examples=100)
    job = attack_job(of, Cell(PGD(m=10), "eot", N, EPSILON, 0))
    begun = cpu_seconds()
    make([job])
    attacked = cpu_seconds()
    with tempfile.TemporaryDirectory() as directory:
        train_run(experiment, Path(directory) / "run", device="cpu")
    trained = cpu_seconds()
    return {
        "attack": job.work * len(of.data) * forward_work(experiment.network) / speed / (attacked - begun),
        "training": experiment.work / speed / (trained - attacked),
    }


def share_of_the_suite(directory: Path, quick: bool) -> None:
    """One of the processes that torchrun starts."""
    with join_processes("cpu") as process:
        of = target(quick, 40, 10)
        wanted = [cell for cell in shortened() if cell.attack is not None and cell.attack.name in ("PGD", "Square")]
        attack_all(of, wanted[:1], None)  # warm
        process.wait()
        begun, before = time.perf_counter(), cpu_seconds()
        attack_all(of, wanted, directory, process=process)
        line = f"{time.perf_counter() - begun} {cpu_seconds() - before}\n"
        os.write(1, line.encode())  # in one piece: the other process writes here too


def run(contestant: str, quick: bool) -> None:
    torch.set_num_threads(1)
    keep_memory()
    who, _, option = contestant.partition(", ")
    of = target(quick, 50, 50)
    k, m = (6, 5) if quick else (10, 10)
    match who:
        case "suite":
            measure(
                lambda: attack_all(of, shortened()),
                score=passes,
                warm_up=lambda: attack_all(of, shortened()[:3]),
            )
        case "floor" | "pgd floor":
            of = target(quick, 100, 100) if who == "pgd floor" else of
            x, y, _ = of.examples(slice(0, 100))
            F = cast(GaussianNetwork, of.F)
            measure(
                lambda: plain_passes(F, x, y, int(option)), repeats=2 if who == "pgd floor" else 1, warm_up=lambda: None
            )
        case "pgd":
            of, cell = target(quick, 100, 100), Cell(PGD(m=10), "eot", N, EPSILON, 0)
            measure(lambda: attack_all(of, [cell]), repeats=2, warm_up=lambda: None)
        case "transfer":
            measure(lambda: make([transfer_job(of, epsilon=EPSILON, k=k, m=m)]), warm_up=lambda: None)
        case "naive transfer":
            measure(lambda: naive_transfer(of, k, m, once=option == "attack once"), warm_up=lambda: None)
        case "concentration":
            measure(lambda: make([concentration_job(of, n=int(option))]), warm_up=lambda: None)
        case "total only":
            measure(lambda: total_only(quick), warm_up=lambda: None, score=lambda found: found)
        case "estimate":
            measure(lambda: estimates(quick), warm_up=lambda: None, score=lambda found: found)
        case "share":
            share_of_the_suite(Path(option), quick)


def seconds_with(processes: int, quick: bool) -> tuple[float, float]:
    """Wall time of a part of the suite, shared by so many processes of one thread, and the busiest one's CPU time."""
    with tempfile.TemporaryDirectory() as directory:
        worker = ["-m", "benchmarks.evaluation", "--contestant", f"share, {directory}", *(["--quick"] if quick else [])]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--no-python"]
        done = subprocess.run(
            [*launcher, "--standalone", sys.executable, *worker],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        wall, cpu = zip(*(map(float, line.split()) for line in done.stdout.splitlines()), strict=True)
        return max(wall), max(cpu)


def main() -> None:
    options = arguments(__doc__ or "")
    if options.contestant:
        run(options.contestant, options.quick)
        return
    name = "benchmarks.evaluation"
    found = compete(name, ["suite"], options.quick, rounds=1)
    spent = found["suite"]
    # a forward pass alone is half of a plain pass
    floor = f"floor, {round((spent['forwards'] + spent['backwards']) / 2)}"
    pgd_floor = f"pgd floor, {10 * N}"
    found |= compete(name, [floor], options.quick, rounds=1)
    contestants = ["pgd", pgd_floor, "transfer", "naive transfer, attack once", "naive transfer"]
    sizes = ("concentration, 10", "concentration, 100")
    found |= compete(name, [*contestants, *sizes], options.quick, rounds=3)
    total = compete(name, ["total only"], options.quick, rounds=1)["total only"]
    estimated = compete(name, ["estimate"], options.quick, rounds=1)["estimate"]
    rounds = [[seconds_with(processes, options.quick) for processes in (1, 2)] for _ in range(3)]
    one, two = ([min(times) for times in zip(*of, strict=True)] for of in zip(*rounds, strict=True))

    def seconds(a: str, b: str) -> float:
        return found[a]["seconds"] / found[b]["seconds"]

    report(
        {
            "paper_suite_forward_equivalents_per_example/one forward": spent["whole suite"],
            "shortened_suite_forward_equivalents/one forward": spent["forwards"] + spent["backwards"],
            "shortened_suite_time/floor": seconds("suite", floor),
            "shortened_suite_megabytes/1": spent["megabytes"],
            "eot_pgd_cell/floor": seconds("pgd", pgd_floor),
            "two_processes_speed/one process": one[0] / two[0],
            "two_processes_speed, by the busiest's CPU time/one process": one[1] / two[1],
            "transfer_time/naive double loop": seconds("transfer", "naive transfer"),
            "transfer_time/naive, attack once": seconds("transfer", "naive transfer, attack once"),
            "total_only/full": total["share"],
            "accuracy, total only": total["total"],
            "accuracy, cross-fitted total of the table": total["table's total"],
            "estimate/actual, attack": estimated["attack"],
            "estimate/actual, training": estimated["training"],
            "concentration_memory n=100/n=10": found[sizes[1]]["megabytes"] / max(found[sizes[0]]["megabytes"], 1.0),
            "slowest turn/fastest": spread(found),
        },
        options.json,
    )


if __name__ == "__main__":
    main()
