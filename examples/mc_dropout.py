"""GradDiv on a foreign network: your own module with MC dropout, in your own loop.

python examples/mc_dropout.py
"""

import argparse

import torch
from torch import nn

from graddiv import GradDiv, randomize
from graddiv.data import load
from graddiv.seeding import generator, isolated

parser = argparse.ArgumentParser(description="GradDiv on a foreign network: your own module with MC dropout.")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=128)
options = parser.parse_args()

with isolated(0):  # only so that this script prints the same numbers each time
    module = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Dropout2d(0.3)),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten()),
        *(nn.Dropout(0.5), nn.Linear(32 * 7 * 7, 10)),
    )
F = randomize(module)  # its noise is a seed; dropout stays active
diversity = GradDiv("mean", lam=0.5, n=3, warmup=options.steps // 4, rampup=options.steps // 4)
optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)

data, g = load("mnist-mini"), generator(0)
for step in range(options.steps + 1):
    x, y = data.batch(torch.randint(len(data), (options.batch,), generator=g))
    task_loss = nn.functional.cross_entropy(F.bind(F.draw(step))(x), y)
    loss = task_loss + diversity(F, x, y, step=step)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % max(1, options.steps // 4) == 0:
        print(
            step, f"loss {task_loss.item():.3f}", *(f"{k} {v:.3f}" for k, v in diversity.parts._asdict().items() if v)
        )
