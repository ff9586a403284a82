"""The paper's own values, typed in as data: they stand beside ours and are never asserted."""

import csv
import math
from functools import cache
from importlib.resources import files
from typing import NamedTuple

TABLE1_DATA, TABLE1_EPSILON = "cifar10", 8 / 255
"""What the paper's Table 1 is of."""

STANDS_FOR = {"mnist-mini": "mnist"}
"""Data sets the paper does not know, and the one of its own that is nearest to them."""


class Value(NamedTuple):
    """An accuracy of the paper's, in percent."""

    mean: float
    std: float | None = None
    """Over its runs; where it gives none, None."""

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ± {self.std:.2f}" if self.std is not None else "")


class PublishedCell(NamedTuple):
    """Where a value stands in the supplement's tables."""

    data: str
    attack: str
    n: int | None
    """None: the paper names no n, as the network is deterministic or the attack is EOT-FGSM."""
    method: str
    epsilon: float


@cache
def table1() -> dict[tuple[str, str], Value]:
    """Table 1 by (attack, method): CIFAR-10, epsilon 8/255."""
    return {
        (row["attack"], row["method"]): Value(float(row["mean"]), float(row["std"]) if row["std"] else None)
        for row in _rows("table1")
    }


@cache
def supplement() -> dict[PublishedCell, Value]:
    """The supplement's tables: accuracy against EOT-FGSM and EOT-PGD for many epsilons on three data sets."""
    return {
        PublishedCell(
            row["data"], row["attack"], int(row["n"]) if row["n"] else None, row["method"], float(row["epsilon"])
        ): Value(float(row["accuracy"]))
        for row in _rows("supplement")
    }


def value(data: str, method: str, attack: str, epsilon: float, n: int | None = None) -> Value | None:
    """What the paper gives for an attack (or "clean") on a method: in its Table 1, or else in its supplement.

    n matters where the supplement tells n apart.
    """
    if data == TABLE1_DATA and (attack == "clean" or math.isclose(epsilon, TABLE1_EPSILON)):
        found = table1().get((attack, method))
        if found is not None:
            return found
    epsilon = 0.0 if attack == "clean" else epsilon
    return next((v for e, v in _supplement(data, method, attack, n) if math.isclose(e, epsilon)), None)


def epsilons(data: str) -> list[float]:
    """The perturbation bounds of the supplement's table of a data set; none if it has no table."""
    data = STANDS_FOR.get(data, data)
    return sorted({cell.epsilon for cell in supplement() if cell.data == data and cell.attack != "clean"})


def curve(data: str, method: str, attack: str, n: int | None) -> list[tuple[float, float]]:
    """(epsilon, accuracy) of the supplement, from the clean accuracy on; empty if the paper has no such row."""
    found = _supplement(data, method, attack, n)
    return [(epsilon, v.mean) for epsilon, v in (*_supplement(data, method, "clean", n), *found)] if found else []


def _supplement(data: str, method: str, attack: str, n: int | None) -> list[tuple[float, Value]]:
    """A row of the supplement's tables."""
    wanted = (STANDS_FOR.get(data, data), method, attack)
    return [
        (cell.epsilon, v)
        for cell, v in supplement().items()
        if (cell.data, cell.method, cell.attack) == wanted and cell.n in (None, n)
    ]


def _rows(name: str) -> list[dict[str, str]]:
    text = files(__name__).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
