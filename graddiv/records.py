"""Records: what one evaluation found, example by example, and the statistics of tables made of them.

NumPy only: a record is read, and a table made, without torch and without the network.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from graddiv import store
from graddiv.errors import GradDivError

PAPER_ROWS = tuple(
    f"{prefix}{attack}"
    for attack in ("FGSM", "PGD", "APGD-CE", "APGD-DLR", "FAB", "B&B")
    for prefix in ("", "EOT^1-", "EOT-")
    if not (prefix == "EOT-" and attack in ("FAB", "B&B"))
)
"""The 16 attacks over which the paper's Total is taken."""


@dataclass(frozen=True)
class Record:
    """One cell: the description says what was run, the arrays what was found for each example.

    An attack's arrays: `correct` (the ensemble's verdict), `margin` (of the ensemble: log-odds against the label, up
    to its sign), both again on a second ensemble as `correct_again` and `margin_again`, `right` (b x n_ensemble: each
    sample model's verdict), `distance` (of x_adv from x), `ids`, `labels`, and `images` of the first few examples.
    """

    description: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def __getattr__(self, name: str) -> Any:
        """A value of the description, such as record.epsilon."""
        try:
            return self.__dict__["description"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    @property
    def label(self) -> str:
        """The row of the table: EOT-PGD."""
        return str(self.description["label"])

    @property
    def accuracy(self) -> float:
        """Share of examples the ensemble still gets right."""
        return float(self["correct"].mean())

    @property
    def accuracy_per_draw(self) -> float:
        """Share of (example, sample model) pairs that are right."""
        return float(self["right"].mean())

    def save(self, path: Path) -> None:
        """Write the record as one file."""
        store.write_arrays(path, self.arrays, self.description)

    @classmethod
    def load(cls, path: Path) -> "Record":
        """Read a record."""
        arrays, description = store.read_arrays(path)
        return cls(description, arrays)


def read_all(directory: Path) -> list[Record]:
    """Every finished record below a directory, in the order of their names."""
    found = [Record.load(path) for path in sorted(directory.rglob("*.record"))]
    if not found:
        raise GradDivError(f"there are no records below {directory}: 'graddiv attack RUN' makes them")
    return found


class Interval(NamedTuple):
    """Bounds of a 95 % confidence interval."""

    low: float
    high: float


def wilson(successes: float, trials: int, z: float = 1.959964) -> Interval:
    """(p + z^2/2N +- z sqrt(p(1-p)/N + z^2/4N^2)) / (1 + z^2/N): of a share p among N, never outside [0, 1]."""
    if trials == 0:
        return Interval(0.0, 1.0)
    p, w = successes / trials, z**2 / trials
    half = z * np.sqrt(p * (1 - p) / trials + w / (4 * trials))
    return Interval(max(0.0, float(p + w / 2 - half) / (1 + w)), min(1.0, float(p + w / 2 + half) / (1 + w)))


class Summary(NamedTuple):
    """A number of a table: over repeats with independent draws, and how far another test set might move it."""

    mean: float
    std: float
    """Over repeats (ddof 1); NaN with one repeat."""
    repeats: int
    interval: Interval
    """Of the mean, from the choice of test examples."""


def summary(per_repeat: Sequence[Bool[np.ndarray, " b"]]) -> Summary:
    """Mean and std over repeats of the share of True, and the interval from the number of examples."""
    values = np.array([float(flags.mean()) for flags in per_repeat])
    std = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    examples = len(per_repeat[0])
    return Summary(float(values.mean()), std, len(values), wilson(float(values.mean()) * examples, examples))


def total(records: Iterable[Record]) -> Bool[np.ndarray, " b"]:
    """AND over attacks: an example counts only if every one of them failed on it, within one repeat."""
    every: np.ndarray = np.logical_and.reduce([record["correct"] for record in records])
    return every


def cross_fitted_total(records: Iterable[Record]) -> Bool[np.ndarray, " b"]:
    """The verdict of one ensemble on the attack that did worst, example by example, on another; so no chance is mined.

    Total takes a minimum over noisy verdicts and is biased downward; choosing and scoring apart removes that.
    """
    chosen = list(records)
    worst = np.stack([record["margin"] for record in chosen]).argmax(0)
    verdicts: np.ndarray = np.stack([record["correct_again"] for record in chosen])[worst, np.arange(len(worst))]
    return verdicts


class Flips(NamedTuple):
    """Examples on which two evaluations disagree."""

    lost: int
    """Right in the first, wrong in the second."""
    won: int
    p: float
    """Two-sided sign test: chance alone giving flips at least as one-sided."""


def flips(first: Bool[np.ndarray, " b"], second: Bool[np.ndarray, " b"]) -> Flips:
    """Paired comparison on the same examples (McNemar's exact test), which overlapping intervals are not."""
    from scipy.stats import binomtest

    lost, won = int((first & ~second).sum()), int((~first & second).sum())
    return Flips(lost, won, float(binomtest(lost, lost + won).pvalue) if lost + won else 1.0)


class Row(NamedTuple):
    """One row of the paper's table."""

    label: str
    accuracy: Summary
    per_draw: float | None


def table(records: Sequence[Record]) -> list[Row]:
    """Clean accuracy, one row for each attack, and the Totals: of the paper's rows, of all, and cross-fitted."""
    labels = list(dict.fromkeys(record.label for record in records))
    by_label = {label: [record for record in records if record.label == label] for label in labels}
    rows = [
        Row(label, summary([r["correct"] for r in group]), float(np.mean([r.accuracy_per_draw for r in group])))
        for label, group in by_label.items()
    ]
    attacks = [label for label in labels if label != "clean"]
    if len(attacks) > 1:
        for name, members in (
            ("Total (paper's rows)", [a for a in attacks if a in PAPER_ROWS]),
            ("Total (all attacks)", attacks),
        ):
            if members:
                rows.append(Row(name, summary(_per_repeat(total, by_label, members)), None))
        rows.append(Row("Total, cross-fitted", summary(_per_repeat(cross_fitted_total, by_label, attacks)), None))
    return rows


def _per_repeat(how: Any, by_label: dict[str, list[Record]], members: Sequence[str]) -> list[Bool[np.ndarray, " b"]]:
    """A Total for each repeat that every member has."""
    repeats = sorted(set.intersection(*({r.repeat for r in by_label[m]} for m in members)))
    return [how([r for m in members for r in by_label[m] if r.repeat == repeat]) for repeat in repeats]


def by_value(records: Iterable[Record], key: str) -> dict[Any, list[Record]]:
    """Records grouped by a value of their description, in its order."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(record.description.get(key), []).append(record)
    return dict(sorted(groups.items()))


def curve(records: Iterable[Record], key: str) -> list[tuple[Any, Summary]]:
    """Accuracy against a value of the description: epsilon, n, m, restarts."""
    return [(value, summary([r["correct"] for r in group])) for value, group in by_value(records, key).items()]


def as_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """One flat dict for each record, for CSV: the description and the main numbers."""
    rows = []
    for record in records:
        flat: dict[str, Any] = {}
        for key, value in record.description.items():
            if isinstance(value, dict):
                flat |= {f"{key}.{k}": v for k, v in value.items()}
            else:
                flat[key] = value
        interval = wilson(record["correct"].sum(), len(record["correct"]))
        flat |= {
            "accuracy": record.accuracy,
            "accuracy_low": interval.low,
            "accuracy_high": interval.high,
            "accuracy_per_draw": record.accuracy_per_draw,
            "mean_distance": float(record["distance"].mean()),
        }
        rows.append(flat)
    return rows
