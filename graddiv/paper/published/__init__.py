"""The paper's own values, typed in as data: they stand beside ours and are never asserted.

Networks trained at another radius than the paper's are compared at the same ratio to it: 0.38 of the paper, which
trained at 0.3, stands beside 0.2533 of a network that was trained at 0.2, and beside nothing else.
"""

import csv
import math
from functools import cache
from importlib.resources import files
from typing import NamedTuple

TABLE1_DATA, TABLE1_EPSILON, TABLE1_N = "cifar10", 8 / 255, 10
"""What the paper's Table 1 is of; n is that of its EOT rows."""

TRAINED_AT = {"mnist": 0.3, "cifar10": 8 / 255, "stl10": 0.03}
"""The radius of the paper's adversarial training."""

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


class Statement(NamedTuple):
    """A number that stands in the paper's text, and in no table."""

    figure: str
    """The figure of ours that it belongs to."""
    data: str
    method: str
    epsilon: float
    """The radius of the attack that it is of; 0: of none."""
    quantity: str
    value: float


@cache
def text() -> tuple[Statement, ...]:
    """The numbers of the paper's text."""
    return tuple(
        Statement(
            row["figure"], row["data"], row["method"], float(row["epsilon"]), row["quantity"], float(row["value"])
        )
        for row in _rows("text")
    )


class PaperValues:
    """The paper's values for one data set, at the radii that correspond to ours."""

    def __init__(self, data: str, training_epsilon: float) -> None:
        """`training_epsilon` is the radius of our adversarial training; 0 where there was none."""
        self.data = STANDS_FOR.get(data, data)
        self.is_other_data = self.data != data
        own = TRAINED_AT.get(self.data, 0.0)
        self.ratio = training_epsilon / own if own and training_epsilon else 1.0
        """Ours over the paper's."""

    def value(self, method: str, attack: str, epsilon: float, n: int | None = None) -> Value | None:
        """What the paper gives for an attack (or "clean") on a method: in its Table 1, or else in its supplement.

        n matters where the supplement tells n apart, and in the EOT rows of Table 1, which have one n; None: any.
        """
        theirs = 0.0 if attack == "clean" else epsilon / self.ratio
        if self.data == TABLE1_DATA and (attack == "clean" or math.isclose(theirs, TABLE1_EPSILON, rel_tol=CLOSE)):
            found = table1().get((attack, method))
            if found is not None and (n in (None, TABLE1_N) or not attack.startswith("EOT-")):
                return found
        rows = _supplement(self.data, method, attack, n)
        return next((v for e, v in rows if math.isclose(e, theirs, rel_tol=CLOSE)), None)

    def epsilons(self) -> list[float]:
        """The perturbation bounds of the supplement's table of the data set, as ours; none if it has no table."""
        found = {cell.epsilon for cell in supplement() if cell.data == self.data and cell.attack != "clean"}
        return sorted(self._ours(epsilon) for epsilon in found)

    def curve(self, method: str, attack: str, n: int | None) -> list[tuple[float, float]]:
        """(our epsilon, accuracy) of the supplement, from the clean accuracy on; empty if it has no such row."""
        found = _supplement(self.data, method, attack, n)
        rows = (*_supplement(self.data, method, "clean", n), *found) if found else ()
        return [(self._ours(epsilon), v.mean) for epsilon, v in rows]

    def said(self, figure: str, epsilon: float) -> str:
        """What the paper's text says of a figure: " The paper: sample MRL 0.64 (adv-bnn), 0.15 (adv-bnn+graddiv)."."""
        quantities: dict[str, list[str]] = {}
        for statement in text():
            at_this_ratio = math.isclose(statement.epsilon, epsilon / self.ratio, rel_tol=CLOSE)
            if (statement.figure, statement.data) == (figure, self.data) and at_this_ratio:
                quantities.setdefault(statement.quantity, []).append(f"{statement.value:g} ({statement.method})")
        parts = [f"{quantity} {', '.join(values)}" for quantity, values in quantities.items()]
        return f" The paper: {'; '.join(parts)}." if parts else ""

    def origin(self) -> str:
        """Which data and radius its values are of, where they are not ours: "at the same multiple of ..."."""
        parts = [f"of the whole {self.data.upper()}, which ours is a part of"] if self.is_other_data else []
        if not math.isclose(self.ratio, 1.0, rel_tol=CLOSE):
            own = TRAINED_AT[self.data]
            parts.append(
                f"at the same multiple of the radius of training, which is {own:.4g} there and "
                f"{own * self.ratio:.4g} here"
            )
        return " and ".join(parts)

    def _ours(self, epsilon: float) -> float:
        return float(f"{epsilon * self.ratio:.6g}")


CLOSE = 1e-4
"""Radii are compared to so many digits: file names keep six."""


def _supplement(data: str, method: str, attack: str, n: int | None) -> list[tuple[float, Value]]:
    """A row of the supplement's tables."""
    wanted = (data, method, attack)
    return [
        (cell.epsilon, v)
        for cell, v in supplement().items()
        if (cell.data, cell.method, cell.attack) == wanted and cell.n in (None, n)
    ]


def _rows(name: str) -> list[dict[str, str]]:
    text = files(__name__).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
