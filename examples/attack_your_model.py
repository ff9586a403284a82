"""Attack a stochastic network of your own, in the paper's three modes.

    python examples/attack_your_model.py

The five lines that matter are marked; the rest makes a network to attack.
"""

import argparse

import torch
from torch import nn

from graddiv import randomize
from graddiv.attacks import EOT, PGD, Fixed
from graddiv.data import load
from graddiv.seeding import generator, isolated

parser = argparse.ArgumentParser(description="Attack a stochastic network of your own, in the paper's three modes.")
parser.add_argument("--steps", type=int, default=300, help="training steps of the network to attack")
parser.add_argument("--examples", type=int, default=200, help="test digits to attack")
parser.add_argument("--m", type=int, default=20, help="iterations of PGD")
options = parser.parse_args()

data, g = load("mnist-mini"), generator(0)
with isolated(0):  # your own network, with dropout at inference
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Dropout(0.5), nn.Linear(200, 10))
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)
    for _ in range(options.steps):
        x, y = data.batch(torch.randint(len(data), (128,), generator=g))
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
module.eval()
x, y = load("mnist-mini", "test").batch(range(options.examples))

F = randomize(module)  # 1: its noise is a seed; dropout stays active
attack = PGD(m=options.m)  # 2
for view in (Fixed(F), EOT(F, 1), EOT(F, 10)):  # 3: what the adversary sees
    x_adv = attack(view, x, y, epsilon=0.1)  # 4
    fresh = torch.stack([f(x_adv).softmax(1) for f in F.sample(20, seed=1)])  # 5: judged on models it never saw
    accuracy = (fresh.mean(0).argmax(1) == y).double().mean()
    print(f"{view.label('PGD'):<10} accuracy {accuracy:.1%}, {view.cost.forwards} forward passes")
