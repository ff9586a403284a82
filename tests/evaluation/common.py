"""What the tests of the evaluation share: a linear network whose every number is known, and forked processes."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from graddiv.attacks import FGSM, PGD
from graddiv.evaluation import Cell, Target
from graddiv.networks import GaussianNetwork, bayesian
from graddiv.records import Record
from graddiv.seeding import generator
from tests.helpers import images, labels, network

SHAPE = (1, 4, 4)
SIGMA = 0.1


def linear(sigma: float = SIGMA, seed: int = 0) -> tuple[GaussianNetwork, Tensor]:
    """z = W x for two classes, W ~ N(mu, sigma^2): the network, and mu_1 - mu_0."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False)).double()
    sizes = torch.rand(16, generator=generator(seed), dtype=torch.float64) * 0.5 + 0.5
    mu = sizes * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(8)
    with torch.no_grad():
        module[1].weight.copy_(torch.stack([-mu / 2, mu / 2]))
    return bayesian(module, sigma), mu


def examples(b: int, mu: Tensor, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Images far from the edges of the box, their labels by mu, and their margins m = +-mu.x > 0."""
    x = 0.35 + 0.3 * torch.rand(b, *SHAPE, generator=generator(seed), dtype=torch.float64)
    m = x.flatten(1) @ mu
    return x, (m > 0).long(), m.abs()


def small_target(kind: str = "bayesian", b: int = 10, **settings: int) -> Target:
    return Target.of(network(kind), images(b), labels(b), **{"n_ensemble": 3, "batch": 3, **settings})


def small_cells() -> list[Cell]:
    attacks = [None, FGSM(), PGD(m=2)]
    return [Cell(a, "eot" if a else "fixed", 2, 0.1 if a else 0.0, repeat) for repeat in range(2) for a in attacks]


def forked(work: Callable[[], None]) -> int:
    """Do some work in a child process; returns its id."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
    return child


def wait_or_kill(child: int, seconds: float = 60.0) -> bool:
    """Whether the child ended by itself, and well, within so many seconds; killed if not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0, f"the child failed with status {status}"
            return True
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def contents(directory: Path) -> dict[str, bytes]:
    """Every file of a directory but its lock."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def assert_same(first: Sequence[Record], second: Sequence[Record]) -> None:
    for a, b in zip(first, second, strict=True):
        assert a.description == b.description
        assert a.arrays.keys() == b.arrays.keys()
        for name, array in a.arrays.items():
            np.testing.assert_array_equal(array, b.arrays[name])
