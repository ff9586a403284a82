"""Records: what one evaluation found, example by example, and the statistics of tables made of them.

NumPy only: a record is read, and a table made, without torch and without the network.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from graddiv import store
from graddiv.errors import GradDivError

PAPER_ROWS = tuple(
    f"{prefix}{attack}"
    for attack in ("FGSM", "PGD", "APGD-CE", "APGD-DLR", "FAB", "B&B")
    for prefix in ("", "EOT^1-", "EOT-")
    if not (prefix == "EOT-" and attack in ("FAB", "B&B"))
)
"""The 16 attacks over which the paper's Total is taken."""

PAPERS_TOTAL = "Total (paper's rows)"
ALL_TOTAL = "Total (all attacks)"


@dataclass(frozen=True)
class Record:
    """One cell: the description says what was run, the arrays what was found for each example.

    An attack's arrays: `correct` (the ensemble's verdict), `margin` (of the ensemble: log-odds against the label, up
    to its sign), both again on a second ensemble as `correct_again` and `margin_again`, `right` (b x n_ensemble: each
    sample model's verdict), `distance` (of x_adv from x), `cost_forwards`, `cost_backwards` and `cost_draws` (what the
    attack spent on the example), `ids`, `labels`, and `images` of the first few examples.  Other kinds of records have
    other arrays, told by the functions that make them.
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
    def kind(self) -> str:
        """What was evaluated: an attack (clean images among them), concentration, transfer, ..."""
        return str(self.description.get("kind", "attack"))

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
    paths = sorted(path for path in directory.rglob("*.record") if not path.name.startswith("."))
    found = [Record.load(path) for path in paths]
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
    attacks: int = 1
    """How many attacks a Total is taken over."""


def table(records: Sequence[Record]) -> list[Row]:
    """Clean accuracy, one row for each attack, and the Totals: of the paper's rows, of all, and cross-fitted.

    A Total is of one setting of each attack, and of attacks that were repeated as often as most: a sweep beside the
    suite changes nothing.
    """
    sets = sorted({(r.examples, r.data["sha256"][:8]) for r in records})
    if len(sets) > 1:
        raise GradDivError(f"the records are of {len(sets)} different sets of examples, {sets}: expected those of one")
    groups = _by_row(records)
    rows = [
        Row(name, summary([r["correct"] for r in group]), float(np.mean([r.accuracy_per_draw for r in group])))
        for name, group in groups.items()
    ]
    attacks = {name: group for name, group in groups.items() if group[0].label != "clean"}
    if len(attacks) > 1:
        of_paper = {name: group for name, group in attacks.items() if group[0].label in PAPER_ROWS}
        for name, how, among in (
            (PAPERS_TOTAL, total, of_paper),
            (ALL_TOTAL, total, attacks),
            ("Total, cross-fitted", cross_fitted_total, attacks),
        ):
            if among:
                members = _members(among)
                rows.append(Row(name, summary(_per_repeat(how, members)), None, len(members)))
    return rows


def _by_row(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each row, one for each repeat; attacks of one label are told apart by what differs."""
    by_label: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        key = json.dumps(_settings(record))
        group = by_label.setdefault(record.label, {}).setdefault(key, [])
        if _draws(record) not in map(_draws, group):  # the same once more, from another directory, is no repeat
            group.append(record)
    rows = {}
    for label, variants in by_label.items():
        all_settings = [_settings(group[0]) for group in variants.values()]
        differ = [key for key in all_settings[0] if any(s.get(key) != all_settings[0][key] for s in all_settings)]
        for settings, group in zip(all_settings, variants.values(), strict=True):
            rows[", ".join([label, *(f"{key} {settings.get(key)}" for key in differ)])] = group
    return rows


def _settings(record: Record) -> dict[str, Any]:
    """What makes an attack another one than its namesakes; repeats differ in nothing but seeds."""
    attack = record.description["attack"] or {}
    return {"epsilon": record.epsilon, "n": record.n} | {key: v for key, v in attack.items() if key != "seed"}


def _draws(record: Record) -> tuple[int, int, str]:
    """What tells repeats apart."""
    return record.repeat, record.description.get("seed", 0), record.description.get("parameters", "")


def _members(attacks: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """One setting of each label, that of most repeats and attacks; without those repeated less often than most are."""
    n = Counter(group[0].n for group in attacks.values())
    how = Counter(_how(group[0]) for group in attacks.values())

    def usual(item: tuple[str, list[Record]]) -> tuple[int, ...]:
        record = item[1][0]
        return len(item[1]), how[_how(record)], n[record.n], record.n, record.m

    by_label: dict[str, list[tuple[str, list[Record]]]] = {}
    for item in attacks.items():
        by_label.setdefault(item[1][0].label, []).append(item)
    chosen = dict(max(variants, key=usual) for variants in by_label.values())
    times = Counter(len(group) for group in chosen.values())
    most = max(times, key=lambda repeats: (times[repeats], repeats))
    return {name: group for name, group in chosen.items() if len(group) >= most}


def _how(record: Record) -> str:
    """An attack's settings, whatever it sees of the network."""
    return json.dumps({key: v for key, v in _settings(record).items() if key != "n"})


def _per_repeat(how: Any, members: dict[str, list[Record]]) -> list[Bool[np.ndarray, " b"]]:
    """A Total for each repeat that every member has."""
    repeats = sorted(set.intersection(*({_draws(r) for r in group} for group in members.values())))
    if not repeats:
        raise GradDivError(f"the attacks {', '.join(members)} have no repeat in common: there is no Total of them")
    return [how([r for group in members.values() for r in group if _draws(r) == repeat]) for repeat in repeats]


def by_value(records: Iterable[Record], key: str) -> dict[Any, list[Record]]:
    """Records grouped by a value of their description, in its order."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(record.description.get(key), []).append(record)
    return dict(sorted(groups.items()))


def curve(records: Iterable[Record], key: str) -> list[tuple[Any, Summary]]:
    """Accuracy against a value of the description: epsilon, n, m, restarts."""
    return [(value, summary([r["correct"] for r in group])) for value, group in by_value(records, key).items()]


class TransferSummary(NamedTuple):
    """How attacks on one sample model fare on others."""

    matrix: Float[np.ndarray, "k k"]
    """Accuracy of the target (column) on the adversarial images of the source (row)."""
    mean: float
    low: float
    high: float
    """Mean, least and greatest accuracy off the diagonal: where the target is not the source."""
    own: float
    """Mean of the diagonal: each sample model's accuracy under an attack on itself."""


def transfer_summary(record: Record) -> TransferSummary:
    """The matrix of a transfer record, and what it says off the diagonal."""
    matrix = record["right"].mean(0)
    others = matrix[~np.eye(len(matrix), dtype=bool)]
    return TransferSummary(
        matrix, float(others.mean()), float(others.min()), float(others.max()), float(matrix.diagonal().mean())
    )


def as_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """One flat dict for each record, for CSV: the description, and the means of what was found."""
    rows = []
    for record in records:
        flat: dict[str, Any] = {"kind": record.kind}
        for key, value in record.description.items():
            if isinstance(value, dict):
                flat |= {f"{key}.{k}": v for k, v in value.items()}
            else:
                flat[key] = value
        if record.kind == "attack":
            interval = wilson(float(record["correct"].sum()), len(record["correct"]))
            flat |= {
                "accuracy": record.accuracy,
                "accuracy_low": interval.low,
                "accuracy_high": interval.high,
                "accuracy_per_draw": record.accuracy_per_draw,
            }
        numbers = {name: array for name, array in record.arrays.items() if array.ndim == 1 and array.dtype.kind == "f"}
        flat |= {f"mean_{name}": _mean(array) for name, array in numbers.items()}
        flat |= {name: int(array.sum()) for name, array in record.arrays.items() if name.startswith("cost_")}
        rows.append(flat)
    return rows


def _mean(values: np.ndarray) -> float:
    """Of those that are numbers: an example without gradients has no direction."""
    there = values[~np.isnan(values)].astype(np.float64)
    return float(there.mean()) if len(there) else float("nan")
