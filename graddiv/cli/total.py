"""How `graddiv attack --total-only` shows what it found."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graddiv.records import TotalRecord


def print_totals(records: "list[TotalRecord]") -> None:
    """One table for each network, epsilon and list of attacks: who ended how many images, for how many passes."""
    from rich.console import Console

    groups: dict[object, list[TotalRecord]] = {}
    for record in records:
        attacks = tuple(record.labels_of_attacks)
        groups.setdefault((record.target, record.data.sha256, record.epsilon, attacks), []).append(record)
    for group in groups.values():
        Console().print(*_table_and_lines(group), sep="\n")


def _table_and_lines(group: "list[TotalRecord]") -> list[object]:
    import numpy as np
    from rich.table import Table

    from graddiv.records import summary

    first = group[0]
    shown = Table(
        "attack", "images left", "fooled beyond doubt", "passes per image",
        title=f"{first.target}: epsilon {first.epsilon:.4g}, {first.examples} {first.data.split} examples",
        title_justify="left",
    )  # fmt: skip
    for number, label in enumerate(first.labels_of_attacks):
        left = np.mean([r.seen[:, number].sum() for r in group])
        ended = np.mean([(r.ended & (r.chosen == number)).sum() for r in group])
        passes = np.mean([r.passes[:, number].mean() for r in group])
        shown.add_row(label, f"{left:.4g}", f"{ended:.4g}", f"{passes:.1f}")
    a = summary([verdict for r in group for verdict in r.verdicts], len(group))
    spread = f" ± {100 * a.std:.2f}" if a.repeats > 1 else ""
    total = f"Total {100 * a.mean:.2f}{spread} % by ensembles of {first.n_ensemble} that had no part in it"
    interval = f"test set, 95 %: {100 * a.interval.low:.1f} to {100 * a.interval.high:.1f}"
    spent = f"{np.mean([r.passes.sum(1).mean() for r in group]):.0f} passes per image"
    share = float(np.mean([r.share_of_passes for r in group]))
    return [shown, f"{total} ({interval})", spent if np.isnan(share) else f"{spent}, {share:.0%} of those of all rows"]
