"""Attacks on the paper's Bayesian mnist_cnn, briefly trained: against other libraries, and against the floor.

Each attack gets as many passes as its peer: a pass is a forward or an input backward over one batch.  Peers run on the
network as one would write it: weights drawn from the global random state at each call, default format and malloc.
floor: n m plain forwards + input backwards of the same architecture, in the best format.
Robust accuracy is that of the mean softmax of 20 models no attack has seen; for B&B, which attacks one sample model
since its peer refuses random ones, of that model.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from benchmarks.harness import (
    Measurement,
    arguments,
    compete,
    in_turns,
    measure,
    naive_weights,
    passes_of,
    plain_passes,
    report,
    side_by_side,
    spread,
)
from graddiv import bayesian
from graddiv.attacks import APGD, BB, EOT, FAB, FGSM, PGD, Attack, Fixed, Given, Square, View
from graddiv.attacks.attack import Problem
from graddiv.attacks.peers import FoolboxPGD, PeerAttack, PyautoattackAPGD, TorchattacksPGD
from graddiv.data import load
from graddiv.diversity.gradients import mean_gradient
from graddiv.networks import GaussianNetwork, SampleModel, mnist_cnn
from graddiv.performance import channels_last, keep_memory
from graddiv.seeding import fold, generator

PAIRS = (
    ("eot_pgd", "torchattacks"),
    ("eot_pgd", "torchattacks tuned"),
    ("eot_apgd", "pyautoattack"),
    ("fab", "pyautoattack"),
    ("square", "pyautoattack"),
    ("bb", "foolbox"),
)


class Size(NamedTuple):
    """How much work: `m` of each attack and, for the same number of passes, of its peer."""

    width: float
    train_steps: int
    batch: int
    bb_batch: int
    n: int
    pgd: int
    apgd: tuple[int, int]
    fab: tuple[int, int]
    square: tuple[int, int]
    bb: int
    epsilon: float = 0.2


FULL = Size(1.0, 80, 64, 8, 5, 4, (4, 6), (4, 9), (41, 80), 200)
QUICK = Size(0.25, 80, 64, 8, 3, 10, (10, 12), (10, 15), (51, 100), 20)


def train(size: Size) -> GaussianNetwork:
    """A short adversarial training on the shipped digits, with the fast gradient sign method."""
    keep_memory()
    F, data = channels_last(bayesian(mnist_cnn(size.width), 0.05, init_sigma=0.02)), load("mnist-mini")
    optimizer = torch.optim.Adam(F.parameters(), lr=2e-3)
    for step in range(size.train_steps):
        x, y = data.batch(torch.randint(len(data), (64,), generator=generator(fold(0, "batch", step))))
        radius = size.epsilon * min(1.0, step / (size.train_steps / 2))
        x = FGSM(random_start=True)(EOT(F, seed=step), channels_last(x), y, radius)
        optimizer.zero_grad()
        cross_entropy(F.bind(F.draw(fold(0, "train", step)))(x), y).backward()
        optimizer.step()
    return F


class Counting(nn.Module):
    """A model that counts the rows it is asked about, forward and backward."""

    def __init__(self, f: SampleModel, module: nn.Module) -> None:
        super().__init__()
        self.f, self.module, self.rows = f, module, 0

    def forward(self, x: Tensor) -> Tensor:
        return self.f(_Count.apply(x, self))  # type: ignore[no-untyped-call]


class _Count(torch.autograd.Function):
    @staticmethod
    def forward(ctx: "_Count", x: Tensor, counter: Counting) -> Tensor:
        ctx.counter = counter  # type: ignore[attr-defined]
        counter.rows += len(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: "_Count", g: Tensor) -> tuple[Tensor, None]:
        ctx.counter.rows += len(g)  # type: ignore[attr-defined]
        return g, None


def random_network(F: GaussianNetwork) -> Counting:
    return Counting(lambda x: functional_call(F.module, naive_weights(F), (x,)), F.module)


def accuracy(models: Sequence[SampleModel], x: Tensor, y: Tensor) -> float:
    return (torch.stack([f(x).softmax(1) for f in models]).mean(0).argmax(1) == y).double().mean().item()


def distance(f: SampleModel, x_adv: Tensor, x: Tensor, y: Tensor) -> float:
    """The mean l_inf distance to the points that fool the model; 1, the farthest there is, where one does not."""
    lengths = (x_adv - x).abs().flatten(1).amax(1)
    return float(torch.where(f(x_adv).argmax(1) != y, lengths, 1.0).mean())


class Contest(NamedTuple):
    """An attack with its number of iterations left open, so that a single one can warm up."""

    m: int
    attack: Callable[[int], Tensor]
    passes: Callable[[], float]
    """The passes spent so far."""


def ours(work: str, F: GaussianNetwork, x: Tensor, y: Tensor, size: Size) -> Contest:
    def contest(view: View, m: int, attack: Callable[[int], Attack]) -> Contest:
        return Contest(
            m, lambda m: attack(m)(view, x, y, size.epsilon), lambda: view.cost.forwards + view.cost.backwards
        )

    match work:
        case "eot_pgd":
            return contest(EOT(F, size.n), size.pgd, lambda m: PGD(m=m))
        case "eot_apgd":
            return contest(EOT(F, size.n), size.apgd[0], lambda m: APGD(m=m))
        case "fab":
            return contest(EOT(F), size.fab[0], lambda m: FAB(m=m))
        case "square":
            return contest(EOT(F), size.square[0], lambda m: Square(m=m))
        case _:
            view = Fixed(F)
            return Contest(
                size.bb, lambda m: BB(m=m).nearest(view, x, y), lambda: view.cost.forwards + view.cost.backwards
            )


def theirs(work: str, model: Counting, x: Tensor, y: Tensor, size: Size) -> Contest:
    """The peer as its documentation calls it; imported here, since importing costs memory too."""

    def contest(m: int, attack: Callable[[int], Tensor]) -> Contest:
        return Contest(m, attack, lambda: model.rows / len(x))

    def peer(m: int, attack: Callable[[int], PeerAttack]) -> Contest:
        view = Given([model] * size.n)  # tells how often the model is called; the model itself draws at each call
        problem = Problem(view, x, y, torch.tensor([]), torch.arange(len(x)), 0, lambda: None)
        attack(m).imported()
        return contest(m, lambda m: attack(m).perturb(model, problem, size.epsilon))

    match work:
        case "eot_pgd":
            return peer(size.pgd, lambda m: TorchattacksPGD(m=m))
        case "eot_apgd":
            return peer(size.apgd[1], lambda m: PyautoattackAPGD(m=m))
        case "fab":
            from pyautoattack.fab_pt import FABAttack_PT

            return contest(size.fab[1], lambda m: FABAttack_PT(model, n_iter=m, eps=size.epsilon).perturb(x, y))
        case "square":
            from pyautoattack.square import SquareAttack

            return contest(size.square[1], lambda m: SquareAttack(model, n_queries=m, eps=size.epsilon).perturb(x, y))
        case _:
            foolbox = FoolboxPGD().imported()
            seen, start = foolbox.PyTorchModel(model, bounds=(0, 1)), of_other_classes(model, x, y)
            return contest(
                size.bb,
                lambda m: foolbox.attacks.LinfinityBrendelBethgeAttack(steps=m)(
                    seen, x, y, epsilons=size.epsilon, starting_points=start
                )[0],
            )


def of_other_classes(f: SampleModel, x: Tensor, y: Tensor) -> Tensor:
    """For each image another one that the model does not take for its class, for B&B to start from."""
    with torch.no_grad():
        return x[(f(x).argmax(1) != y[:, None]).long().argmax(1)]


def floor(F: GaussianNetwork, x: Tensor, y: Tensor, size: Size) -> Contest:
    return Contest(size.pgd, lambda m: plain_passes(F, x, y, size.n * m), lambda: 0)


def small() -> None:
    """EOT-PGD beside its floor on a network as the demo and the study have it: width 1/4, batch 64, n 10.

    Then what EOT-PGD does besides its passes, each part by itself, as a share of the floor.
    """
    torch.set_num_threads(1)
    keep_memory()
    F = channels_last(bayesian(mnist_cnn(0.25), 0.05, init_sigma=0.02).eval())
    x, y = load("mnist-mini", "test").batch(range(64))
    x, view, n, m = channels_last(x), EOT(F, 10), 10, 5
    whole = side_by_side(lambda: PGD(m=m)(view, x, y, 0.2), lambda: plain_passes(F, x, y, n * m))
    found = {name: min(times) for name, times in in_turns(parts_of(F, x, y, n), turns=15).items()}
    parts = {
        "normal numbers": found["normals"],
        "the rest of drawing": found["draw"] - found["normals"],
        "binding": found["bind"],
        "passes with other weights each time": found["other weights"] - found["passes"],
        "margins and their mean": found["mean"] - found["other weights"],
        "all together in a view": found["view"] - found["mean"] - found["draw"] - found["bind"],
        "steps": found["step"] - found["view"],
    }
    shares = {f"eot_pgd_small, {name}/floor": seconds / found["passes"] for name, seconds in parts.items()}
    print(json.dumps(whole | shares))


def parts_of(F: GaussianNetwork, x: Tensor, y: Tensor, n: int) -> dict[str, Callable[[], object]]:
    """What EOT-PGD consists of, each for one step on n models; later ones contain earlier ones."""
    with torch.no_grad():
        theta, noises, bound = F.theta(), [F.draw(i) for i in range(n)], F.sample(n, 0)
    numbers, g, view = sum(each.numel() for each in noises[0].values()), generator(0), EOT(F, n)

    def bind() -> None:
        with torch.no_grad():
            for noise in noises:
                F.bind(noise, theta)

    return {
        "passes": lambda: plain_passes(F, x, y, n),
        "normals": lambda: [torch.empty(numbers).normal_(generator=g) for _ in range(n)],
        "draw": lambda: [F.draw(i) for i in range(n)],
        "bind": bind,
        "other weights": lambda: [passes_of(f, x, y, 1) for f in bound],
        "mean": lambda: mean_gradient(bound, x, y),
        "view": lambda: view.gradient(0, x, y),
        "step": lambda: PGD(m=1)(view, x, y, 0.2),
    }


def run(contestant: str, size: Size, path: Path) -> None:
    """Names are 'training', 'small' and '<work>, <who>[, n=<n>]'."""
    if contestant == "small":
        return small()
    if contestant == "training":  # in a process of its own, or its peak memory would be inherited by all others
        return measure(lambda: torch.save(train(size).state_dict(), path), warm_up=lambda: None)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    work, who, *options = contestant.split(", ")
    if options:
        size = size._replace(n=int(options[0][2:]), pgd=1)
    F = bayesian(mnist_cnn(size.width), 0.05).eval()
    F.load_state_dict(torch.load(path))
    x, y = load("mnist-mini", "test").batch(range(size.bb_batch if work == "bb" else size.batch))
    if who in ("ours", "floor", "torchattacks tuned"):
        keep_memory()
        F, x = channels_last(F), channels_last(x)
    fixed = next(Fixed(F)(0))
    match who:
        case "ours":
            contest = ours(work, F, x, y, size)
        case "floor":
            contest = floor(F, x, y, size)
        case _:
            model = Counting(fixed, F.module) if work == "bb" else random_network(F)
            contest = theirs(work, model.eval(), x, y, size)

    def score(x_adv: Tensor) -> Measurement:
        with torch.no_grad():
            if work != "bb":
                return {"accuracy": accuracy(F.sample(20, fold(0, "judges")), x_adv, y)}
            inside = x + (x_adv - x).clamp(-size.epsilon, size.epsilon)
            return {"accuracy": accuracy([fixed], inside, y), "distance": distance(fixed, x_adv, x, y)}

    measure(lambda: contest.attack(contest.m), warm_up=lambda: contest.attack(1), passes=contest.passes, score=score)


def ratios_of(found: dict[str, Measurement]) -> dict[str, float]:
    def per_pass(who: str) -> float:
        return found[who]["seconds"] / found[who]["passes"]

    def of(key: str, one: str, other: str) -> float:
        return found[one][key] / found[other][key]

    ratios = {f"{work}/{who}": per_pass(f"{work}, ours") / per_pass(f"{work}, {who}") for work, who in PAIRS}
    ratios["eot_pgd/floor"] = of("seconds", "eot_pgd, ours", "eot_pgd, floor")
    ratios["bb_image/foolbox"] = of("seconds", "bb, ours", "bb, foolbox")
    ratios["bb_distance/foolbox"] = of("distance", "bb, ours", "bb, foolbox")
    # a narrow network's graph may fit into what importing had taken: then nothing was added, 0 MB
    many, few = (max(found[f"eot_pgd, ours, n={n}"]["megabytes"], 1.0) for n in (20, 5))
    ratios["eot_pgd_memory n=20/n=5"] = many / few
    return ratios | {f"accuracy, {name}": it["accuracy"] for name, it in found.items() if "n=" not in name}


def main() -> None:
    options = arguments(__doc__ or "")
    size = QUICK if options.quick else FULL
    if options.contestant:
        run(options.contestant, size, options.network)
        return
    print(
        f"Bayesian mnist_cnn, width {size.width}, batch {size.batch}, n = {size.n}, epsilon {size.epsilon}, one thread"
    )
    contestants = list(dict.fromkeys(f"{work}, {one}" for work, who in PAIRS for one in ("ours", who)))
    contestants += ["eot_pgd, floor", *(f"eot_pgd, ours, n={n}" for n in (5, 20))]
    with tempfile.TemporaryDirectory() as folder:
        network = ["--network", str(Path(folder) / "network.pt")]
        compete("benchmarks.attacks", ["training"], options.quick, 1, network)
        rounds = 1 if options.quick else 3
        small = compete("benchmarks.attacks", ["small"], options.quick, rounds, network)["small"]
        found = compete("benchmarks.attacks", contestants, options.quick, rounds, network)
    ratios = {"eot_pgd_small/floor": small["seconds"], "eot_pgd_small, slowest turn/floor": small["slowest"]}
    ratios |= {key: share for key, share in small.items() if "/" in key}
    report(ratios | ratios_of(found) | {"slowest turn/fastest": spread(found)}, options.json)


if __name__ == "__main__":
    main()
