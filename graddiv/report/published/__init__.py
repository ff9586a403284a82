"""The paper's own values, typed in as data: they stand beside ours and are never asserted.

Networks trained at another radius than the paper's are compared at the same ratio to it: 0.38 of the paper, which
trained at 0.3, stands beside 0.2533 of a network that was trained at 0.2, and beside nothing else.
"""

import csv
import math
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

TABLE1_DATA, TABLE1_EPSILON, TABLE1_N = "cifar10", 8 / 255, 10  #: what the paper's Table 1 is of; n of its EOT rows
TRAINED_AT = {"mnist": 0.3, "cifar10": 8 / 255, "stl10": 0.03}  #: the radius of the paper's adversarial training
STANDS_FOR = {"mnist-mini": "mnist"}  #: data sets the paper does not know, and the nearest of its own
CLOSE = 1e-4  #: relative tolerance of radii: file names keep six digits
NUMBERS = {"mean": float, "std": float, "accuracy": float, "epsilon": float, "value": float, "n": int}


@cache
def rows(name: str) -> tuple[dict[str, Any], ...]:
    """The rows of a file here, None where a cell is empty: the paper names no n, or gives no std.

    table1: attack, method, mean, std (CIFAR-10, epsilon 8/255), commented: "yes" where the paper's source has the row
    as a comment, so that it was never printed.  supplement: data, attack, n, method, epsilon,
    accuracy.  text, numbers that stand in no table: figure (of ours), data, method, epsilon, quantity, value.
    """
    lines = files(__name__).joinpath(f"{name}.csv").read_text(encoding="utf-8").splitlines()
    return tuple(
        {key: NUMBERS.get(key, str)(text) if text else None for key, text in row.items()}
        for row in csv.DictReader(lines)
    )


class PublishedValue(NamedTuple):
    """A published accuracy, in percent."""

    mean: float
    std: float | None = None  #: over its runs; where none is given, None
    commented: bool = False  #: whether it stands in the source of the publication alone, as a comment

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ± {self.std:.2f}" if self.std is not None else "") + "†" * self.commented


class PaperValues:
    """The paper's values for one data set, at the radii that correspond to ours; none if it does not know it."""

    def __init__(self, data: str, training_epsilon: float) -> None:
        """`training_epsilon` is the radius of our adversarial training; 0 where there was none."""
        self.data = STANDS_FOR.get(data, data)
        self.is_other_data = self.data != data
        own = TRAINED_AT.get(self.data, 0.0)
        self.ratio = training_epsilon / own if own and training_epsilon else 1.0  #: ours over the paper's

    def value(self, method: str, attack: str, epsilon: float, n: int | None = None) -> PublishedValue | None:
        """The paper's value for an attack (or "clean") on a method: from its Table 1, or else from its supplement.

        The two differ in clean accuracy: a table at the radius of Table 1 has Table 1's, any other the supplement's.
        n matters where the supplement tells n apart, and in the EOT rows of Table 1, which have one n; None: any.
        """
        theirs = epsilon / self.ratio
        if self.data == TABLE1_DATA and math.isclose(theirs, TABLE1_EPSILON, rel_tol=CLOSE):
            found = next((row for row in rows("table1") if (row["attack"], row["method"]) == (attack, method)), None)
            if found is not None and (n in (None, TABLE1_N) or not attack.startswith("EOT-")):
                return PublishedValue(found["mean"], found["std"], commented=found["commented"] is not None)
        theirs = 0.0 if attack == "clean" else theirs
        of_supplement = self._supplement(method, attack, n)
        return next((PublishedValue(v) for e, v in of_supplement if math.isclose(e, theirs, rel_tol=CLOSE)), None)

    def epsilons(self) -> list[float]:
        """The perturbation bounds of the supplement's table of the data set, as ours; none if it has no table."""
        of_data = [row for row in rows("supplement") if row["data"] == self.data and row["attack"] != "clean"]
        return sorted({self._ours(row["epsilon"]) for row in of_data})

    def curve(self, method: str, attack: str, n: int | None) -> list[tuple[float, float]]:
        """(our epsilon, accuracy) of the supplement, from the clean accuracy on; empty if it has no such row."""
        found = self._supplement(method, attack, n)
        points = [*self._supplement(method, "clean", n), *found] if found else []
        return [(self._ours(epsilon), accuracy) for epsilon, accuracy in points]

    def said(self, figure: str, epsilon: float) -> str:
        """The paper's text on a figure: " The paper: sample MRL 0.64 (adv-bnn), 0.15 (adv-bnn+graddiv)."."""
        quantities: dict[str, list[str]] = {}
        for row in rows("text"):
            at_this_ratio = math.isclose(row["epsilon"], epsilon / self.ratio, rel_tol=CLOSE)
            if (row["figure"], row["data"]) == (figure, self.data) and at_this_ratio:
                quantities.setdefault(row["quantity"], []).append(f"{row['value']:g} ({row['method']})")
        parts = [f"{quantity} {', '.join(values)}" for quantity, values in quantities.items()]
        return f" The paper: {'; '.join(parts)}." if parts else ""

    def origin(self) -> str:
        """The data and radius of its values, if they are not ours: "at the same multiple of ..."."""
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

    def _supplement(self, method: str, attack: str, n: int | None) -> list[tuple[float, float]]:
        """A row of the supplement's tables: (the paper's epsilon, accuracy)."""
        wanted = (self.data, method, attack)
        of_row = [row for row in rows("supplement") if (row["data"], row["method"], row["attack"]) == wanted]
        return [(row["epsilon"], row["accuracy"]) for row in of_row if row["n"] in (None, n)]
