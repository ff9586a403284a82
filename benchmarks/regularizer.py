"""A GradDiv step on the paper's Bayesian mnist_cnn: against the naive step, and against the arithmetic floor.

naive: n graphs of cross-entropy with create_graph, weights through exp each time, default memory format and malloc.
floor: n x 3 x (one plain forward + input backward) of the same architecture, in the best format: the six
forward-equivalents of a double backward, were each of them as cheap as a forward.
"""

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from benchmarks.harness import arguments, compete, measure, naive_weights, plain_passes, report, spread
from graddiv import GradDiv, bayesian
from graddiv.diversity import gradients
from graddiv.networks import GaussianNetwork, mnist_cnn
from graddiv.performance import channels_last, keep_memory
from graddiv.seeding import generator

N = 3
MORE = 10
"""The other n at which time and memory are looked at."""
LEVERS = {
    "channels_last": "default format",
    "malloc": "default malloc",
    "double_backward": "torch's double backward",
    "sigma once": "sigma each time",
    "all four": "default format, default malloc, torch's double backward, sigma each time",
}


def batch(size: int) -> tuple[Tensor, Tensor]:
    g = generator(0)
    return torch.rand(size, 1, 28, 28, generator=g), torch.randint(10, (size,), generator=g)


def naive_step(F: GaussianNetwork, x: Tensor, y: Tensor, n: int) -> None:
    x = x.clone().requires_grad_()
    v = []
    for _ in range(n):
        loss = functional.cross_entropy(functional_call(F.module, naive_weights(F), (x,)), y)
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
        v.append(functional.normalize(g.flatten(1), dim=1))
    stacked = torch.stack(v, dim=1)
    F.zero_grad()
    (-torch.logdet(stacked @ stacked.mT)).mean().backward()


def our_step(F: GaussianNetwork, x: Tensor, y: Tensor, diversity: GradDiv) -> None:
    F.zero_grad()
    diversity(F, x, y, step=0).backward()


def one_graph(F: GaussianNetwork, x: Tensor, y: Tensor) -> None:
    """A double backward of a single model, which no memory mode can do without."""
    F.zero_grad()
    _, g = gradients.input_gradient(F.bind(F.draw(0)), x, y, create_graph=True)
    g.square().sum().backward()


def run(contestant: str, quick: bool) -> None:
    """Names are '<who>[, <lever left out>]...[, n=<n>]'."""
    torch.set_num_threads(1)
    who, *options = contestant.split(", ")
    n = next((int(option[2:]) for option in options if option.startswith("n=")), N)
    tuned = who != "naive"
    if tuned and "default malloc" not in options:
        keep_memory()
    if "torch's double backward" in options:
        gradients.efficient_double_backward = gradients.inputs_only = nullcontext  # type: ignore[assignment, misc]
    F = bayesian(mnist_cnn(0.25 if quick else 1.0), 0.05)
    if "sigma each time" in options:
        F.bind = lambda noise, theta=None: GaussianNetwork.bind(F, noise)  # type: ignore[method-assign]
    x, y = batch(32 if quick else 128)
    if tuned and "default format" not in options:
        F, x = channels_last(F), channels_last(x)
    repeats = 1 if n > N else 2
    match who:
        case "naive":
            measure(lambda: naive_step(F, x, y, n), repeats)
        case "floor":
            measure(lambda: plain_passes(F, x, y, 3 * n), repeats)
        case "one graph":
            measure(lambda: one_graph(F, x, y), repeats)
        case "ours" | "low memory":
            diversity = GradDiv("dpp", n=n, low_memory=who == "low memory")
            measure(lambda: our_step(F, x, y, diversity), repeats)


def main() -> None:
    options = arguments(__doc__ or "")
    if options.contestant:
        run(options.contestant, options.quick)
        return
    print("GradDiv step, Bayesian mnist_cnn, batch 128, n = 3, one thread" if not options.quick else "quick: width 1/4")
    contestants = ["naive", "floor", "ours", "low memory", "one graph"]
    contestants += [f"ours, {without}" for without in LEVERS.values()]
    contestants += [f"{who}, n={MORE}" for who in ("ours", "low memory")]
    found = compete("benchmarks.regularizer", contestants, options.quick, rounds=3)

    def seconds(a: str, b: str) -> float:
        return found[a]["seconds"] / found[b]["seconds"]

    ratios = {
        "graddiv_step/naive": seconds("ours", "naive"),
        "graddiv_step/floor": seconds("ours", "floor"),
        "graddiv_memory/naive": found["ours"]["megabytes"] / found["naive"]["megabytes"],
        "low_memory_step/naive": seconds("low memory", "naive"),
        "low_memory_memory/naive": found["low memory"]["megabytes"] / found["naive"]["megabytes"],
        "one_graph_memory/naive": found["one graph"]["megabytes"] / found["naive"]["megabytes"],
    }
    ratios |= {f"without {lever}/with": seconds(f"ours, {without}", "ours") for lever, without in LEVERS.items()}
    for who, base in (("ours", "graddiv"), ("low memory", "low_memory")):
        more = found[f"{who}, n={MORE}"]
        ratios[f"{base}_time n={MORE}/n={N}"] = more["seconds"] / found[who]["seconds"]
        ratios[f"{base}_memory n={MORE}/n={N}"] = more["megabytes"] / found[who]["megabytes"]
    report(ratios | {"slowest turn/fastest": spread(found)}, options.json)


if __name__ == "__main__":
    main()
