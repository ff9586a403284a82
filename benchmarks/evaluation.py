"""Evaluations of a Bayesian mnist_cnn, width 1/4: time and the floor, two processes, the transfer matrix, estimates.

floor: as many plain forwards and input backwards as the attacks and judges say they spent, in the best memory format.
evaluate_100: the quick suite in the two modes of one model on 100 images, and each attack of it by itself.
naive transfer: for each source and target bind both anew, attack and score; `attack once` moves the attack out of the
inner loop, as one would at second thought.
total only: the Total by elimination, see benchmarks/total.py, at one radius.
speed: multiplications per second of other networks over those of this one, as the probe finds them.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from benchmarks.harness import (
    Measurement,
    arguments,
    compete,
    cpu_seconds,
    in_turns,
    measure,
    plain_passes,
    report,
    spread,
)
from benchmarks.total import compare
from graddiv import bayesian
from graddiv.attacks import PGD, Given
from graddiv.distributed import join_processes
from graddiv.evaluation import Cell, Target, attack_all, cells, suite, target_of
from graddiv.evaluation.jobs import concentration_job, transfer_job
from graddiv.evaluation.robustness import attack_job
from graddiv.evaluation.run import IN_MEMORY, Session
from graddiv.experiment import forward_work, multiplications_per_second
from graddiv.experiment.cost import training_work
from graddiv.networks import GaussianNetwork, mnist_cnn
from graddiv.performance import channels_last, keep_memory
from graddiv.recipes import recipe
from graddiv.records import AttackRecord
from graddiv.seeding import fold, generator
from graddiv.training import train as train_run

EPSILON = 0.3
N = 10
SHORTER = 250
"""Iterations of the suite are divided by this: all steps of an attack cost the same, so two lengths tell its cost."""


NETWORKS = {
    "mnist_cnn, width 1/4": ("mnist/adv-bnn", 0.25),
    "vgg16, width 1/4": ("cifar10/adv-bnn", 0.25),
    "stl10_cnn, width 1/4": ("stl10/adv-bnn", 0.25),
    "stl10_cnn, width 1/8": ("stl10/adv-bnn", 0.125),
}
"""Networks whose speeds are compared with that of the first: recipe and width."""


def target(examples: int, batch: int, n_ensemble: int = 2) -> Target:
    F = channels_last(bayesian(mnist_cnn(0.25), 0.05).eval())
    g = generator(0)
    x, y = torch.rand(examples, 1, 28, 28, generator=g), torch.randint(10, (examples,), generator=g)
    return Target.of(F, x, y, batch=batch, n_ensemble=n_ensemble)


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
    longer = attack_all(target(1, 1), shortened(2))
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


def audited(quick: bool) -> Measurement:
    """The CPU time of a small audit's rows, both modes of an attack together, and that of their passes alone."""
    of = target(20 if quick else 100, 100, n_ensemble=20)
    x, y, _ = of.examples(slice(0, of.batch))
    F = cast(GaussianNetwork, of.F)
    forward, both = least(lambda: plain_forward(F, x)), least(lambda: plain_passes(F, x, y, 1))
    found: Measurement = {}
    for attack in suite("quick"):
        begun = cpu_seconds()
        records = attack_all(of, cells([attack], EPSILON, modes=["fixed", "eot1"])[1:])
        found[attack.name] = cpu_seconds() - begun
        forwards = sum(int(r.cost_forwards[0]) + 2 * of.n_ensemble for r in records)
        backwards = sum(int(r.cost_backwards[0]) for r in records)
        found[f"floor of {attack.name}"] = forwards * forward + backwards * (both - forward)
    return found


def plain_forward(F: GaussianNetwork, x: Tensor) -> None:
    with torch.no_grad():
        F.module(x)


def least(call: Callable[[], object], repeats: int = 10) -> float:
    """The least CPU time of a call."""
    return min(in_turns({"call": call}, repeats)["call"])


def times_of_networks() -> Measurement:
    """Seconds per multiplication of each of the NETWORKS, as the probe finds them."""
    experiments = {name: recipe(of, "quick", [f"network.width={width}"]) for name, (of, width) in NETWORKS.items()}
    return {name: 1 / multiplications_per_second(each, clock=cpu_seconds) for name, each in experiments.items()}


def estimates(quick: bool) -> Measurement:
    """Estimated and actual CPU time of EOT-PGD and of a training of three stages, the network tried before."""
    changes = [f"data.examples={200 if quick else 1000}", "training.epochs=1", "training.decays=[]"]
    experiment = recipe("mnist-mini/adv-bnn+graddiv", "demo", changes)
    speed = multiplications_per_second(experiment, clock=cpu_seconds)
    of = target_of(experiment, experiment.build(), examples=100)
    job = attack_job(of, Cell(PGD(m=10), "eot", N, EPSILON, 0))
    begun = cpu_seconds()
    IN_MEMORY.run([job])
    attacked = cpu_seconds()
    with tempfile.TemporaryDirectory() as directory:
        train_run(experiment, Path(directory) / "run", device="cpu")
    trained = cpu_seconds()
    return {
        "attack": attacked - begun,
        "estimate of attack": job.work * len(of.data) * forward_work(experiment) / speed,
        "training": trained - attacked,
        "estimate of training": training_work(experiment) / speed,
    }


def share_of_the_suite(directory: Path) -> None:
    """One of the processes that torchrun starts."""
    with join_processes("cpu") as process:
        of = target(20, 5)
        wanted = [cell for cell in shortened() if cell.attack is not None and cell.attack.name in ("PGD", "Square")]
        attack_all(of, wanted[:1])  # warm
        process.wait()
        begun, before = time.perf_counter(), cpu_seconds()
        attack_all(of, wanted, Session(directory, process))
        line = f"{time.perf_counter() - begun} {cpu_seconds() - before}\n"
        os.write(1, line.encode())  # in one piece: the other process writes here too


def run(contestant: str, quick: bool) -> None:
    torch.set_num_threads(1)
    keep_memory()
    who, _, option = contestant.partition(", ")
    of, hundred = target(50, 50), target(100, 100)
    k, m = (6, 5) if quick else (10, 10)
    match who:
        case "suite":
            measure(lambda: attack_all(of, shortened()), score=passes, warm_up=lambda: attack_all(of, shortened()[:3]))
        case "floor" | "pgd floor":
            x, y, _ = (hundred if who == "pgd floor" else of).examples(slice(0, 100))
            F = cast(GaussianNetwork, of.F)
            measure(lambda: plain_passes(F, x, y, int(option)), warm_up=lambda: plain_passes(F, x, y, 1))
        case "pgd":
            cell = Cell(PGD(m=10), "eot", N, EPSILON, 0)
            measure(lambda: attack_all(hundred, [cell]), warm_up=lambda: attack_all(hundred.take(slice(0, 10)), [cell]))
        case "transfer":
            measure(lambda: IN_MEMORY.run([transfer_job(of, epsilon=EPSILON, k=k, m=m)]), warm_up=lambda: None)
        case "naive transfer":
            measure(lambda: naive_transfer(of, k, m, once=option == "attack once"), warm_up=lambda: None)
        case "concentration":
            measure(lambda: IN_MEMORY.run([concentration_job(of, n=int(option))]), warm_up=lambda: None)
        case "audited":
            measure(lambda: audited(quick), warm_up=lambda: attack_all(of, shortened()[:3]), score=lambda found: found)
        case "total only":
            measure(lambda: compare(0.4, 5 if quick else 10), warm_up=lambda: None, score=lambda found: found)
        case "estimate":
            measure(lambda: estimates(quick), warm_up=lambda: None, score=lambda found: found)
        case "networks":
            measure(times_of_networks, warm_up=lambda: None, score=lambda found: found)
        case "share":
            share_of_the_suite(Path(option))


def seconds_with(processes: int) -> tuple[float, float]:
    """Wall time of a part of the suite, shared by so many processes of one thread, and the busiest one's CPU time."""
    with tempfile.TemporaryDirectory() as directory:
        worker = ["-m", "benchmarks.evaluation", "--contestant", f"share, {directory}"]
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
    turns = 1 if options.quick else 3

    def run_all(*contestants: str, rounds: int = turns) -> dict[str, Measurement]:
        return compete("benchmarks.evaluation", contestants, options.quick, rounds)

    found = run_all("suite")
    spent = found["suite"]
    # a forward pass alone is half of a plain pass
    floor = f"floor, {round((spent['forwards'] + spent['backwards']) / 2)}"
    pgd_floor, sizes = f"pgd floor, {10 * N}", ("concentration, 10", "concentration, 100")
    found |= run_all(floor, "pgd", pgd_floor, "transfer", "naive transfer, attack once", "naive transfer", *sizes)
    found |= run_all("audited", "estimate", "networks")
    total = run_all("total only", rounds=1)["total only"]  # counts passes, so one turn says it all
    rounds = [[seconds_with(processes) for processes in (1, 2)] for _ in range(turns)]
    one, two = ([min(times) for times in zip(*of, strict=True)] for of in zip(*rounds, strict=True))

    def seconds(a: str, b: str) -> float:
        return found[a]["seconds"] / found[b]["seconds"]

    audit, estimated, (own, *others) = found["audited"], found["estimate"], NETWORKS
    attacks = [attack.name for attack in suite("quick")]
    floor_of_audit = sum(audit[f"floor of {name}"] for name in attacks)
    report(
        {
            "paper_suite_forward_equivalents_per_example/one forward": spent["whole suite"],
            "shortened_suite_forward_equivalents/one forward": spent["forwards"] + spent["backwards"],
            "shortened_suite_time/floor": seconds("suite", floor),
            "shortened_suite_megabytes/1": spent["megabytes"],
            "eot_pgd_cell/floor": seconds("pgd", pgd_floor),
            "evaluate_100/floor": sum(audit[name] for name in attacks) / floor_of_audit,
            **{f"evaluate_100, {name}/floor": audit[name] / audit[f"floor of {name}"] for name in attacks},
            "two_processes_speed/one process": one[0] / two[0],
            "two_processes_speed, by the busiest's CPU time/one process": one[1] / two[1],
            "transfer_time/naive double loop": seconds("transfer", "naive transfer"),
            "transfer_time/naive, attack once": seconds("transfer", "naive transfer, attack once"),
            "total_only/full": total["total_only/full"],
            "papers_total_only/full": total["papers_total_only/full"],
            "estimate/actual, attack": estimated["estimate of attack"] / estimated["attack"],
            "estimate/actual, training": estimated["estimate of training"] / estimated["training"],
            **{f"speed of {other}/{own}": found["networks"][own] / found["networks"][other] for other in others},
            "concentration_memory n=100/n=10": found[sizes[1]]["megabytes"] / max(found[sizes[0]]["megabytes"], 1.0),
            "slowest turn/fastest": spread(found),
        },
        options.json,
    )


if __name__ == "__main__":
    main()
