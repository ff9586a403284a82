"""The drop-in inside a plain PyTorch loop, on real digits: train a Bayesian network twice, without and with GradDiv.

    python examples/graddiv_in_your_loop.py

About a minute on two cores, no download.
"""

import argparse

import torch
from torch.nn.functional import cross_entropy

from graddiv import GradDiv, bayesian
from graddiv.data import Dataset, load
from graddiv.diversity import directions, input_gradient
from graddiv.diversity.concentration import debiased_mrl, mrl
from graddiv.networks import RandomizedNetwork, mnist_cnn
from graddiv.performance import channels_last, keep_memory
from graddiv.seeding import fold, generator

BATCH, SEED = 128, 0


def train(data: Dataset, lam: float, epochs: int, width: float) -> RandomizedNetwork:
    F = channels_last(bayesian(mnist_cnn(width, seed=SEED), prior_sigma=0.05, init_sigma=0.02))
    steps = len(data) // BATCH
    diversity = GradDiv("dpp", lam=lam, n=3, warmup=steps, rampup=2 * steps)
    optimizer = torch.optim.Adam(F.parameters(), lr=2e-3)
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=generator(fold(SEED, "order", epoch)))
        for i, rows in enumerate(order.split(BATCH)[:steps]):
            step = epoch * steps + i
            x, y = data.batch(rows)
            x = channels_last(x)
            f = F.bind(F.draw(fold(SEED, "loss", step)))
            task_loss = cross_entropy(f(x), y) + 0.02 / len(data) * F.kl()
            loss = task_loss + diversity(F, x, y, step=step)  # the one new line
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        cosine = diversity.parts.cosine
        print(
            f"  epoch {epoch + 1}: loss {task_loss.item():.3f}, lambda {diversity.parts.lam:.2f}"
            + (f", mean cosine {cosine.item():.3f}" if cosine is not None else "")
        )
    return F


@torch.no_grad()
def look(F: RandomizedNetwork, data: Dataset, examples: int) -> tuple[float, float, float]:
    """Accuracy of the ensemble of 20, and how concentrated 20 gradients are: rho^ and its debiased form."""
    x, y = data.batch(range(examples))
    models = F.sample(20, seed=fold(SEED, "test"))
    accuracy = (torch.stack([f(x).softmax(1) for f in models]).mean(0).argmax(1) == y).double().mean()
    v, usable = directions(torch.stack([input_gradient(f, x, y)[1] for f in models]))
    return accuracy.item(), mrl(v[:, usable]).mean().item(), debiased_mrl(v[:, usable]).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a Bayesian network twice, without and with GradDiv.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--width", type=float, default=0.25, help="of the network, 1 being the paper's")
    parser.add_argument("--digits", type=int, default=4500, help="training digits")
    parser.add_argument("--examples", type=int, default=200, help="test digits looked at")
    options = parser.parse_args()
    keep_memory()
    train_set, test_set = load("mnist-mini", "train").take(slice(options.digits)), load("mnist-mini", "test")
    rows = []
    for name, lam in (("Bayesian network", 0.0), ("+ GradDiv-DPP, lambda 1", 1.0)):
        print(name)
        F = train(train_set, lam, options.epochs, options.width)
        rows.append((name, *look(F, test_set, options.examples)))
    print(f"\n{f'first {options.examples} test digits':<28}{'accuracy':>10}{'rho^ (n=20)':>14}{'debiased rho':>14}")
    for name, accuracy, rho, debiased in rows:
        print(f"{name:<28}{accuracy:>10.1%}{rho:>14.3f}{debiased:>14.3f}")
    print("rho: 1 when all gradients point the same way, 0 when they cancel; chance alone gives rho^ 0.22 at n = 20.")


if __name__ == "__main__":
    main()
