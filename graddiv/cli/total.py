"""How `graddiv attack --total-only` shows what it found."""

from typing import TYPE_CHECKING

from graddiv.cli.common import INTERVAL, interval_of, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graddiv.records import Record, TotalRecord


def print_totals(records: "list[TotalRecord]") -> None:
    """One table for each network, epsilon and list of attacks: who ended how many images, for how many passes."""
    from rich.console import Console

    groups: dict[object, list[TotalRecord]] = {}
    for record in records:
        attacks = tuple(record.labels_of_attacks)
        network = record.target, record.parameters
        groups.setdefault((network, record.data.sha256, record.epsilon, attacks), []).append(record)
    for group in groups.values():
        Console().print(*_table_and_lines(name_of(group[0], records), group), sep="\n")


def name_of(record: "Record", among: "Sequence[Record]") -> str:
    """The name of the record's network; where others among the records have it too, with the hash that tells them."""
    namesakes = {other.parameters for other in among if other.target == record.target}
    return record.target if len(namesakes) == 1 else f"{record.target} ({record.parameters[:8]})"


def _table_and_lines(name: str, group: "list[TotalRecord]") -> list[object]:
    import numpy as np
    from rich.table import Table

    from graddiv.records import summary

    first = group[0]
    shown = Table(
        "attack", "images left", "fooled beyond doubt", "passes per image",
        title=f"{name}: epsilon {first.epsilon:.4g}, {first.examples} {first.data.split} examples",
        title_justify="left",
    )  # fmt: skip
    for number, label in enumerate(first.labels_of_attacks):
        left = np.mean([r.seen[:, number].sum() for r in group])
        ended = np.mean([(r.ended & (r.chosen == number)).sum() for r in group])
        passes = np.mean([r.passes[:, number].mean() for r in group])
        shown.add_row(label, f"{left:.4g}", f"{ended:.4g}", f"{passes:.1f}")
    a = summary([verdict for r in group for verdict in r.verdicts], len(group))
    total = f"Total {percent(a)} % by ensembles of {first.n_ensemble} that had no part in it"
    spent = f"{np.mean([r.passes.sum(1).mean() for r in group]):.0f} passes per image"
    share = float(np.mean([r.share_of_passes for r in group]))
    return [
        shown,
        f"{total} ({INTERVAL}: {interval_of(a)})",
        spent if np.isnan(share) else f"{spent}, {share:.0%} of those of all rows",
    ]
