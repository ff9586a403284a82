"""What several tests of attacks share: views of a network, and linear networks whose distances are known."""

import numpy as np
import torch
from scipy.optimize import brentq, linprog
from torch import Tensor, nn

from graddiv.attacks import EOT, Fixed, Given
from graddiv.geometry import L1, L2, Geometry, Linf
from graddiv.losses import margin
from graddiv.seeding import generator
from tests.helpers import images, network

GEOMETRIES = [Linf(), L2()]


def views(kind: str) -> list[object]:
    F = network(kind)
    return [Fixed(F, seed=1), EOT(F, 1, seed=1), EOT(F, 3, seed=1), Given(F.sample(2, 1))]


def linear(b: int, geometry: Geometry, inside: bool, seed: int = 0) -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    """A linear two-class network, points it gets right, and their l_p distance to the boundary (box inactive)."""
    module = nn.Linear(6, 2).double()
    with torch.no_grad():
        g = torch.Generator().manual_seed(seed)
        module.weight.copy_(torch.randn(2, 6, generator=g, dtype=torch.float64))
        module.bias.zero_()
        x = 0.5 + 0.1 * torch.randn(b, 6, generator=g, dtype=torch.float64) * (1 if inside else 0)
        module.bias[0] = (module.weight[1] - module.weight[0]) @ x.mean(0)
        y = module(x).argmax(1)
        w = (module.weight[1] - module.weight[0]).norm(p=geometry.q)
        distance = -margin(module(x), y) / w
    return module, x, y, distance


def oracle(geometry: Geometry, x: Tensor, w: Tensor, b: Tensor) -> float:
    """The least |d|_p with <w, x + d> = b in the box: a linear program, or the root of the dual; inf if none is."""
    low, high = (bound - x.numpy() for bound in geometry.bounds)
    a, gap = w.numpy(), float(b - w @ x)
    if not np.minimum(a * low, a * high).sum() <= gap <= np.maximum(a * low, a * high).sum():
        return np.inf
    if isinstance(geometry, L1):  # d = up - down, both at least 0
        room = [(0, bound) for bound in (*high, *-low)]
        return float(linprog(np.ones(2 * len(a)), A_eq=[[*a, *-a]], b_eq=[gap], bounds=room).fun)
    if isinstance(geometry, Linf):
        n, eye = len(a), np.eye(len(a))
        below = np.block([[eye, -np.ones((n, 1))], [-eye, -np.ones((n, 1))]])
        box = [*zip(low, high, strict=True), (0, None)]
        found = linprog(np.eye(n + 1)[n], below, np.zeros(2 * n), [[*a, 0.0]], [gap], box)
        return float(found.fun)
    along = lambda t: np.clip(t * a, low, high)  # noqa: E731
    return float(np.linalg.norm(along(brentq(lambda t: a @ along(t) - gap, -1e6, 1e6, xtol=1e-14))))


def with_distances(geometry: Geometry, near_the_box: bool, classes: int) -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    """A linear network, points, its predictions there and their true distance to the nearest boundary."""
    module = nn.Linear(8, classes).double().requires_grad_(False)
    module.weight.copy_(torch.randn(classes, 8, generator=generator(2), dtype=torch.float64))
    x = images(10, shape=(8,))
    low, high = geometry.bounds
    x = low + (high - low) * (x.round() * 0.96 + 0.02 if near_the_box else 0.4 + 0.2 * x)
    module.bias.copy_(-module.weight @ x.mean(0))
    y = module(x).argmax(1)
    truth = [
        min(
            oracle(geometry, point, module.weight[j] - module.weight[i], module.bias[i] - module.bias[j])
            for j in range(classes)
            if j != i
        )
        for point, i in zip(x, y, strict=True)
    ]
    return module, x, y, torch.tensor(truth, dtype=torch.float64)
