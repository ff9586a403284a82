"""Statistics of records: shares with intervals, Totals, paired comparisons, tables.  See docs/equations.md."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from graddiv.errors import GradDivError
from graddiv.records.intervals import Interval, Summary, html_table, summary
from graddiv.records.kinds import AttackRecord
from graddiv.records.record import Record

#: The paper's attacks in its order, by the names that they have in `graddiv.attacks`, which needs torch.
PAPER_ATTACKS = ("FGSM", "PGD", "APGD-CE", "APGD-DLR", "B&B", "FAB", "Square")
MODE_PREFIXES = ("", "EOT^1-", "EOT-")  #: How a row's label says through which view the adversary looked.
#: The 16 attacks over which the paper's Total is taken.
PAPER_ROWS = tuple(
    f"{prefix}{attack}"
    for attack in PAPER_ATTACKS
    for prefix in MODE_PREFIXES
    if attack != "Square" and not (prefix == "EOT-" and attack in ("FAB", "B&B"))
)
PAPERS_TOTAL = "Total (paper's rows)"
ALL_TOTAL = "Total (all attacks)"
CROSS_FITTED_TOTAL = "Total, cross-fitted"


def accuracy(records: Sequence[AttackRecord]) -> Summary:
    """The share of examples left right by one attack, over its repeats, each judged by both ensembles."""
    return summary([flags for r in records for flags in r.verdicts], len(records))


def over_trainings(summaries: Sequence[Summary]) -> Summary:
    """Several trainings of one method as one number: the mean of their means, the spread of draws within them."""
    if len(summaries) == 1:
        return summaries[0]
    mean = float(np.mean([s.mean for s in summaries]))
    std = float(np.sqrt(np.mean([s.std**2 for s in summaries])))
    interval = Interval(*(float(bound) for bound in np.mean([s.interval for s in summaries], axis=0)))
    return Summary(mean, std, min(s.repeats for s in summaries), interval, tuple(s.mean for s in summaries))


def total(records: Iterable[AttackRecord]) -> list[Bool[np.ndarray, " b"]]:
    """AND over attacks: an example counts only if every one of them failed on it; for either ensemble of one repeat."""
    return [np.logical_and.reduce(either) for either in zip(*(r.verdicts for r in records), strict=True)]


def cross_fitted_total(records: Iterable[AttackRecord]) -> list[Bool[np.ndarray, " b"]]:
    """The verdict of one ensemble on the attack that did worst, example by example, on the other; and the reverse.

    Total takes a minimum over noisy verdicts and is biased downward; choosing and scoring apart removes that.
    """
    found = list(records)
    choosing = ([r.margin for r in found], [r.margin_again for r in found])
    scoring = ([r.correct_again for r in found], [r.correct for r in found])
    everyone = np.arange(found[0].examples)
    return [np.stack(right)[np.argmax(by, 0), everyone] for by, right in zip(choosing, scoring, strict=True)]


class Flips(NamedTuple):
    """Examples on which two evaluations disagree."""

    lost: int  #: Right in the first, wrong in the second.
    won: int
    p: float  #: Two-sided sign test: chance alone giving flips at least as one-sided.


def flips(first: Bool[np.ndarray, " b"], second: Bool[np.ndarray, " b"]) -> Flips:
    """Paired comparison on the same examples (McNemar's exact test), which overlapping intervals are not."""
    from scipy.stats import binomtest

    lost, won = int((first & ~second).sum()), int((~first & second).sum())
    return Flips(lost, won, float(binomtest(lost, lost + won).pvalue) if lost + won else 1.0)


def by_value(records: Iterable[AttackRecord], key: str) -> dict[Any, list[AttackRecord]]:
    """Records grouped by one of their settings, in its order."""
    ordered = sorted(records, key=lambda record: record.value(key))
    return {value: list(group) for value, group in groupby(ordered, key=lambda record: record.value(key))}


def curve(records: Iterable[AttackRecord], key: str) -> list[tuple[Any, Summary]]:
    """Accuracy against one of the settings: epsilon, n, m, restarts, lam."""
    return [(value, accuracy(group)) for value, group in by_value(records, key).items()]


class Row(NamedTuple):
    """One row of the table of attacks."""

    label: str
    accuracy: Summary
    per_draw: float | None  #: Share of (example, sample model) pairs that are right; None for Totals.
    attacks: int = 1  #: How many attacks a Total is taken over.
    epsilon: float = 0.0


class Rows(list[Row]):
    """The rows of a table, which notebooks show as one."""

    def _repr_html_(self) -> str:
        shown = [("attack", "accuracy %", "95 % interval", "per draw %")]
        for row in self:
            mean, low, high = (f"{100 * value:.1f}" for value in (row.accuracy.mean, *row.accuracy.interval))
            per_draw = "" if row.per_draw is None else f"{100 * row.per_draw:.1f}"
            shown.append((row.label, mean, f"{low} to {high}", per_draw))
        return html_table(shown)


COMPARED = ("model", "ε", "worst attack", "right %", "95 %", "one draw", "known draw", "passes")


class Compared(NamedTuple):
    """A model at a radius, under the worst of all attacks."""

    name: str
    epsilon: float
    attack: str  #: The strongest attack by itself.
    accuracy: Summary
    per_draw: float
    known: float | None  #: Accuracy of one draw that the adversary knows; None for a deterministic model.
    passes: float  #: Forward and backward passes of all attacks on an image.

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as texts, in the order of `COMPARED`."""
        shares = *self.accuracy.interval, self.accuracy.mean, self.per_draw
        low, high, mean, per_draw = (f"{100 * share:.1f}" for share in shares)
        known = "–" if self.known is None else f"{100 * self.known:.1f}"
        return (
            self.name,
            f"{self.epsilon:.4g}",
            self.attack,
            mean,
            f"{low}–{high}",
            per_draw,
            known,
            f"{self.passes:.0f}",
        )


def table(records: Sequence[AttackRecord]) -> Rows:
    """Clean accuracy, then at each epsilon a row for every attack and the Totals over all of them.

        for row in table(records):
            print(row.label, row.accuracy.mean, row.accuracy.interval)

    Returns rows with `label`, `accuracy` (`mean` as a share, `std` over repeats, the 95 % `interval` over examples),
    `per_draw`, `attacks` and `epsilon`.

    Attacks of one name with different settings are rows of their own, told apart by what differs; a Total counts them
    all.  It is taken within a repeat, so over the repeats that all its attacks have.  Where there are several epsilons
    every label says which one it is of.

    records: what `evaluate` returned, or `graddiv.records.read_all` read; of one network on one set of examples.
    """
    if len(sets := sorted({(r.examples, r.data.sha256[:8]) for r in records})) > 1:
        raise GradDivError(f"the records are of {len(sets)} different sets of examples, {sets}: expected those of one")
    networks = {r.parameters: f"{r.target} ({r.parameters[:8]})" for r in records}
    if len(networks) > 1:
        named = ", ".join(networks.values())
        raise GradDivError(f"the records are of {len(networks)} networks, {named}: make a table of each")
    attacked = by_value([r for r in records if not r.is_clean], "epsilon")
    rows = [_row(label, group) for label, group in _by_label([r for r in records if r.is_clean]).items()]
    for epsilon, group in attacked.items():
        at = f", epsilon {epsilon:.4g}" if len(attacked) > 1 else ""
        rows += [row._replace(label=f"{row.label}{at}", epsilon=epsilon) for row in _at_one_epsilon(group)]
    return Rows(rows)


def table_per_epsilon(records: Sequence[AttackRecord]) -> dict[float, list[Row]]:
    """The rows of `table` by epsilon, clean accuracy in all of them.

        for epsilon, rows in table_per_epsilon(records).items():
            print(epsilon, [(row.label, row.accuracy.mean) for row in rows])

    Returns the rows by epsilon.

    records: what `evaluate` returned, or `graddiv.records.read_all` read.
    """
    clean = [record for record in records if record.is_clean]
    attacked = by_value([record for record in records if not record.is_clean], "epsilon")
    return {epsilon: table([*clean, *group]) for epsilon, group in attacked.items()}


def _at_one_epsilon(records: Sequence[AttackRecord]) -> list[Row]:
    attacks = _by_label(records)
    rows = [_row(label, group) for label, group in attacks.items()]
    if len(attacks) > 1:
        if of_paper := {label: group for label, group in attacks.items() if group[0].label in PAPER_ROWS}:
            rows.append(_total_row(PAPERS_TOTAL, total, of_paper))
        rows += [_total_row(ALL_TOTAL, total, attacks), _total_row(CROSS_FITTED_TOTAL, cross_fitted_total, attacks)]
    return rows


def _row(label: str, group: Sequence[AttackRecord]) -> Row:
    return Row(label, accuracy(group), float(np.mean([r.accuracy_per_draw for r in group])))


def _by_label(records: Sequence[AttackRecord]) -> dict[str, list[AttackRecord]]:
    """The records of each row, one for each repeat; labels of attacks of one name list the settings that differ."""
    by_name: dict[str, list[list[AttackRecord]]] = {}
    for record in records:
        variants = by_name.setdefault(record.label, [])
        group = next((group for group in variants if group[0].settings == record.settings), None)
        if group is None:
            variants.append([record])
        elif record.draws not in [other.draws for other in group]:  # the same once more, from another directory
            group.append(record)
    groups = [group for variants in by_name.values() for group in variants]
    return dict(zip(told_apart([(group[0].label, group[0].settings) for group in groups]), groups, strict=True))


def told_apart(attacks: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Label attacks, given with their settings; those of one name list the settings that differ."""
    labels = []
    for label, own in attacks:
        namesakes = [settings for name, settings in attacks if name == label]
        known = dict.fromkeys(key for settings in namesakes for key in settings)  # older records may lack some
        odd = [key for key in known if key in own and any(key not in s or s[key] != own[key] for s in namesakes)]
        labels.append(", ".join([label, *(f"{key} {own[key]}" for key in odd)]))
    return labels


def _total_row(name: str, how: Callable[..., list[np.ndarray]], attacks: dict[str, list[AttackRecord]]) -> Row:
    """A Total, by either ensemble, over the repeats that every attack has."""
    repeats = sorted(set.intersection(*({r.draws for r in group} for group in attacks.values())))
    if not repeats:
        raise GradDivError(f"the attacks {', '.join(attacks)} have no repeat in common: there is no Total of them")
    everything = [record for group in attacks.values() for record in group]
    verdicts = [flags for repeat in repeats for flags in how([r for r in everything if r.draws == repeat])]
    return Row(name, summary(verdicts, len(repeats)), None, len(attacks))


def as_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """One flat dict for each record, for CSV: its settings, and the means of what was found."""
    rows = []
    for record in records:
        flat: dict[str, Any] = {"kind": record.kind}
        for key, value in record.description.items():
            flat |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
        if isinstance(record, AttackRecord):
            found = accuracy([record])
            flat |= {"accuracy": found.mean, "accuracy_std": found.std}
            flat |= {f"accuracy_{end}": bound for end, bound in found.interval._asdict().items()}
            flat["accuracy_per_draw"] = record.accuracy_per_draw
        numbers = {name: each for name, each in record.arrays.items() if each.ndim == 1 and each.dtype.kind == "f"}
        flat |= {f"mean_{name}": _mean(each) for name, each in numbers.items()}
        flat |= {name: int(each.sum()) for name, each in record.arrays.items() if name.startswith("cost_")}
        rows.append(flat)
    return rows


def _mean(values: np.ndarray) -> float:
    """The mean without NaN: an example without gradients has no direction."""
    there = values[~np.isnan(values)].astype(np.float64)
    return float(there.mean()) if len(there) else float("nan")
