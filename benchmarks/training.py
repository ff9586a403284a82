"""A training step of Adv-BNN + GradDiv (PGD-10 inside) on the paper's mnist_cnn, against the naive step.

naive: as one would write it from the paper: n graphs of cross-entropy with create_graph, weights through exp each time
they are drawn, default memory format and malloc.
two processes: the same batch shared by two processes of one thread each, wall-clock time against one such process;
two threads: one process with two.  Ratios of speed, images per second: above 1 is faster.
passes: the convolutions and matrix products of our step alone, each timed by itself; naive over these is the speed that
no arrangement of the same arithmetic exceeds.
probe: the concentration of gradients that is measured after each epoch, as a share of the epoch.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy, normalize

from benchmarks.harness import Measurement, arguments, compete, measure, naive_weights, report, side_by_side, spread
from benchmarks.passes import print_passes
from graddiv.data import Dataset, augmented
from graddiv.distributed import ALONE, Process
from graddiv.experiment import Experiment
from graddiv.networks import GaussianNetwork
from graddiv.performance import channels_last, keep_memory
from graddiv.recipes import recipe
from graddiv.seeding import generator
from graddiv.training import objective_of
from graddiv.training.probe import PROBE, concentration
from graddiv.training.stages import stages_of

BATCH = 128
EXAMPLES = 55000
SECTIONS = ("PGD", "loss", "regularizer", "sampling", "optimizer", "data")


def experiment(quick: bool) -> Experiment:
    """The paper's recipe at full lambda; --quick is narrower."""
    width = "network.width=0.25" if quick else "network.width=1"
    return recipe("mnist/adv-bnn+graddiv", "paper", [width, "graddiv.warmup=0", "graddiv.rampup=0"])


def digits(count: int = BATCH) -> Dataset:
    g = generator(0)
    images = torch.randint(256, (count, 1, 28, 28), generator=g, dtype=torch.uint8)
    labels = torch.randint(10, (count,), generator=g)
    return Dataset("mnist", "train", images, labels, torch.arange(count), tuple("0123456789"))


class Naive:
    def __init__(self, settings: Experiment) -> None:
        self.data = digits()
        F = settings.build(self.data)
        assert isinstance(F, GaussianNetwork)
        self.F = F
        self.optimizer = torch.optim.Adam(F.parameters(), lr=1e-3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(self.F.module, naive_weights(self.F), (x,)), y)

    def step(self, size: int = BATCH) -> None:
        x, y = self.data.batch(slice(0, size))
        x_adv, epsilon, n = x, 0.3, 3
        for _ in range(10):
            x_adv = x_adv.detach().requires_grad_()
            (g,) = torch.autograd.grad(self.loss(x_adv, y), x_adv)
            x_adv = (x_adv.detach() + 0.25 * epsilon * g.sign()).clamp(x - epsilon, x + epsilon).clamp(0, 1)
        x = x.clone().requires_grad_()
        gradients = [torch.autograd.grad(self.loss(x, y), x, create_graph=True)[0] for _ in range(n)]
        rho = torch.stack([normalize(g.flatten(1), dim=1) for g in gradients]).mean(0).norm(dim=1)
        p = x[0].numel()
        kappa = rho * (p - rho) / (1 - rho**2)
        self.optimizer.zero_grad()
        (self.loss(x_adv, y) + 0.02 / EXAMPLES * self.F.kl() + (kappa / p).mean()).backward()
        self.optimizer.step()


class Ours:
    """What the training loop does at each step."""

    def __init__(self, settings: Experiment, process: Process = ALONE) -> None:
        keep_memory()
        self.data, self.process = digits(), process
        F = channels_last(settings.build(self.data)).train()
        self.objective = objective_of(F, settings, EXAMPLES)
        self.wrapped = process.wrap(self.objective)
        self.optimizer = torch.optim.Adam(F.parameters(), lr=1e-3)

    def batch(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = self.process.local_rows(torch.arange(size))
        x, y = self.data.batch(rows)
        return channels_last(augmented("mnist", x, self.data.ids[rows], 0, 0)), y, self.data.ids[rows]

    def step(self, size: int = BATCH) -> None:
        x, y, ids = self.batch(size)
        self.optimizer.zero_grad(set_to_none=True)
        self.wrapped(x, y, step=0, ids=ids).backward()
        self.optimizer.step()


class Shares(Ours):
    """The same step in pieces, each with its CPU time; drawing and binding weights counts as sampling, wherever."""

    def __init__(self, settings: Experiment) -> None:
        super().__init__(settings)
        self.spent = dict.fromkeys(SECTIONS, 0.0)
        self.inside: list[str] = []
        self.since = time.process_time()
        F = self.objective.F
        for name in ("draw", "bind", "theta"):
            setattr(F, name, self.counted(getattr(F, name)))

    def counted(self, call: Callable[..., object]) -> Callable[..., object]:
        def sampling(*values: object) -> object:
            with self.section("sampling"):
                return call(*values)

        return sampling

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Time until the end, but for the sections inside, is this one's."""
        self.switch()
        self.inside.append(name)
        yield
        self.switch()
        self.inside.pop()

    def switch(self) -> None:
        now = time.process_time()
        if self.inside:
            self.spent[self.inside[-1]] += now - self.since
        self.since = now

    def step(self, size: int = BATCH) -> None:
        o = self.objective
        assert o.adversary is not None
        assert o.diversity is not None
        assert isinstance(o.F, GaussianNetwork)
        with self.section("data"):
            x, y, ids = self.batch(size)
        with self.section("PGD"):
            x_adv = o.attacked(o.adversary, x, y, ids, 0)
        with self.section("loss"):
            (o.task_loss(x, x_adv, y, ids, 0) + o.rules.penalties(o.F, o.examples)["kl"]).backward()
        with self.section("regularizer"):
            o.diversity(o.F, x, y, step=0, ids=ids).backward()
        with self.section("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def found(self) -> dict[str, float]:
        total = sum(self.spent.values())
        return {name: value / total for name, value in self.spent.items()}


def timed(contestant: Naive | Ours) -> None:
    """Measure CPU time, and wall-clock time beside it."""
    walls: list[float] = []

    def step() -> None:
        before = time.perf_counter()
        contestant.step()
        walls.append(time.perf_counter() - before)

    # the warm-up is as large as the step: malloc and the library's kernels are chosen by size
    measure(step, 2, score=lambda _: {"wall": min(walls)})


def print_probe(scale: str) -> None:
    """Print the probe's share of an epoch of the first stage, which has the cheaper steps: GradDiv is in the second."""
    settings = recipe("mnist/adv-bnn+graddiv", scale)
    ours, data = Ours(settings), digits(PROBE)
    steps = stages_of(settings, settings.data.examples or EXAMPLES)[0].steps_per_epoch
    in_steps = side_by_side(
        lambda: concentration(ours.objective.F, data, 0), lambda: ours.step(settings.training.batch), turns=3
    )["seconds"]
    print(json.dumps({"seconds": in_steps / (steps + in_steps)}))


def one_of_two(rank: int, port: int, quick: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    ours = Ours(experiment(quick), Process(rank, 2, torch.device("cpu")))
    if rank:
        for _ in range(3):
            ours.step()
    else:
        timed(ours)
    dist.destroy_process_group()


def run(contestant: str, quick: bool) -> None:
    """Names end in 'small' for width 1/4."""
    torch.set_num_threads(1)
    who, small, _ = contestant.partition(" small")
    quick = quick or bool(small)
    match who:
        case "two threads":
            torch.set_num_threads(2)
            timed(Ours(experiment(quick)))
        case "naive":
            timed(Naive(experiment(quick)))
        case "ours":
            timed(Ours(experiment(quick)))
        case "shares":
            ours = Shares(experiment(quick))
            measure(ours.step, 1, score=lambda _: ours.found())
        case "passes":
            ours = Ours(experiment(quick))
            print_passes(ours.objective.F.module, ours.batch(BATCH)[0], m=10, n=3)
        case "probe quick" | "probe demo":
            print_probe(who.removeprefix("probe "))
        case "two processes":
            os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # of DDP: that it found no unused parameters
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            torch.multiprocessing.spawn(one_of_two, (port, quick), nprocs=2)


def main() -> None:
    options = arguments(__doc__ or "")
    if options.contestant:
        run(options.contestant, options.quick)
        return
    print(
        f"Adv-BNN + GradDiv step, mnist_cnn, batch {BATCH}, widths 1 and 1/4" + (", 1/4 alone" if options.quick else "")
    )
    sizes = (" small",) if options.quick else ("", " small")
    who = ("naive", "ours", "two processes", "two threads", "passes")
    rounds = 1 if options.quick else 3
    found = compete("benchmarks.training", [one + size for size in sizes for one in who], options.quick, rounds)
    once = compete("benchmarks.training", ["shares", "probe quick", "probe demo"], options.quick, rounds=1)
    ratios: dict[str, float] = {}
    for suffix, size in (("", sizes[0]), ("_small", sizes[-1])):
        ratios |= compared({one: found[one + size] for one in who}, suffix)
    ratios |= {f"share of {name}/step": once["shares"][name] for name in SECTIONS}
    ratios |= {"probe/epoch": once["probe quick"]["seconds"], "probe_demo/epoch": once["probe demo"]["seconds"]}
    report(ratios | {"slowest turn/fastest": spread(found)}, options.json)


def compared(found: dict[str, Measurement], suffix: str) -> dict[str, float]:
    naive, ours, passes = found["naive"], found["ours"], found["passes"]
    forward, into, weight = passes["forward"], passes["input"], passes["weight"]
    return {
        f"training_step{suffix}/naive": naive["seconds"] / ours["seconds"],
        f"training_step{suffix}_memory/naive": ours["megabytes"] / naive["megabytes"],
        f"two_processes{suffix}/one": ours["wall"] / found["two processes"]["wall"],
        f"two_threads{suffix}/one": ours["wall"] / found["two threads"]["wall"],
        f"pass{suffix} input gradient/forward": into / forward,
        f"pass{suffix} weight gradient/forward": weight / forward,
        f"pass{suffix} two weight gradients merged/apart": passes["two weights"] / (2 * weight),
        f"pass{suffix} double backward/six forwards": (forward + into + weight) / (3 * forward),
        f"pass{suffix} all passes/step": passes["seconds"] / ours["seconds"],
        f"pass{suffix} all passes/naive": naive["seconds"] / passes["seconds"],
    }


if __name__ == "__main__":
    main()
