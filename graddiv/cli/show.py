"""Print records, verdicts and tables on the terminal; commands import this module once they have something to show."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from graddiv.records import AttackRecord, Record, Summary, TotalRecord, by_value, curve, summary, table
from graddiv.records.statistics import ALL_TOTAL, PAPER_ROWS, PAPERS_TOTAL

if TYPE_CHECKING:
    from graddiv.evaluation.inspection import Item
    from graddiv.evaluation.judgement import Estimate
    from graddiv.records import Interval
    from graddiv.report.output import Table as ReportTable

INTERVAL = "95 % interval"
SPREADS = "±: over draws. Interval: of other draws and other test examples."
COLORS = {"pass": "green", "warn": "yellow", "fail": "red", "not enough evidence": "dim"}


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a plain table; its first column is for copying, so it is not cut in a narrow terminal."""
    rows = list(rows)
    first = Column(columns[0], no_wrap=True, min_width=max((len(row[0]) for row in rows), default=0))
    others = (Column(each, overflow="ellipsis") for each in columns[1:])
    print_titled("", (first, *others), rows, box=None, pad_edge=False)


def print_titled(
    title: str, columns: Iterable[str | Column], rows: Iterable[Sequence[str | Text]], **looks: Any
) -> None:
    """Print a table with a frame and a title."""
    table = Table(*columns, title=title, title_justify="left", **looks)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def percent(a: Summary) -> str:
    """An accuracy with its spread over draws, if ensembles or repeats differ: 83.10 ± 1.20."""
    return f"{100 * a.mean:.2f}" + (f" ± {100 * a.std:.2f}" if a.std > 0 else "")


def interval_of(a: "Interval | Estimate") -> str:
    """The two ends of an interval, in percent."""
    return f"{100 * a.low:.1f} to {100 * a.high:.1f}"


def print_records(records: Sequence[Record]) -> None:
    """Print the tables of attacks, one for each network and epsilon, then those of Totals."""
    attacks: dict[object, list[AttackRecord]] = {}
    totals: dict[object, list[TotalRecord]] = {}
    for record in records:
        network = record.target, record.parameters, record.data.sha256
        if isinstance(record, AttackRecord):
            attacks.setdefault(network, []).append(record)
        elif isinstance(record, TotalRecord):
            totals.setdefault((network, record.epsilon, tuple(record.labels_of_attacks)), []).append(record)
    for together in attacks.values():
        clean = [record for record in together if record.is_clean]
        for group in by_value([record for record in together if not record.is_clean], "epsilon").values():
            title = f"{_title(group[0], records)}, ensemble of {group[0].n_ensemble}"
            _print_attacks([*clean, *group], title)
    if attacks:
        typer.echo(SPREADS)
    for of_total in totals.values():
        _print_total(of_total, records)


def _title(record: AttackRecord | TotalRecord, among: Sequence[Record]) -> str:
    """The network, with its hash if others have its name, the radius and the examples."""
    namesakes = {other.parameters for other in among if other.target == record.target}
    name = record.target if len(namesakes) == 1 else f"{record.target} ({record.parameters[:8]})"
    norm = isinstance(record, AttackRecord) and record.attack and record.attack.get("norm") == "L2"
    radius = f"epsilon {record.epsilon:.4g}{' in L2' if norm else ''}"
    return f"{name}: {radius}, {record.examples} {record.data.split} examples"


def _print_attacks(records: list[AttackRecord], title: str) -> None:
    """Print each attack with mean and std over draws, and the interval; mark a Total over a part of the rows."""
    rows, lines = table(records), []
    attacks = sum(row.per_draw is not None and row.label != "clean" for row in rows)
    for row in rows:
        a, label, per_draw = row.accuracy, row.label, "" if row.per_draw is None else f"{100 * row.per_draw:.2f}"
        if label == PAPERS_TOTAL and row.attacks < len(PAPER_ROWS):
            label = f"Total ({row.attacks} of the paper's {len(PAPER_ROWS)} rows)"
        if label == ALL_TOTAL and row.attacks < attacks:
            label = f"Total ({row.attacks} of all {attacks} rows)"
        lines.append((label, percent(a), interval_of(a.interval), per_draw))
    print_titled(title, ("attack", "accuracy %", INTERVAL, "per draw %"), lines)


def _print_total(group: list[TotalRecord], among: Sequence[Record]) -> None:
    """Print how many images each attack ended and at how many passes, then the Total."""
    first, lines = group[0], []
    for number, label in enumerate(first.labels_of_attacks):
        left = np.mean([r.seen[:, number].sum() for r in group])
        ended = np.mean([(r.ended & (r.chosen == number)).sum() for r in group])
        passes = np.mean([r.passes[:, number].mean() for r in group])
        lines.append((label, f"{left:.4g}", f"{ended:.4g}", f"{passes:.1f}"))
    print_titled(_title(first, among), ("attack", "images left", "fooled beyond doubt", "passes per image"), lines)
    a = summary([verdict for r in group for verdict in r.verdicts], len(group))
    total = f"Total {percent(a)} % by ensembles of {first.n_ensemble} that had no part in it"
    spent = f"{np.mean([r.passes.sum(1).mean() for r in group]):.0f} passes per image"
    share = float(np.mean([r.share_of_passes for r in group]))
    rest = "" if np.isnan(share) else f", {share:.0%} of those of all rows"
    Console().print(f"{total} ({INTERVAL}: {interval_of(a.interval)})", f"{spent}{rest}", sep="\n")


def print_curve(records: Sequence[AttackRecord], over: str) -> None:
    """Print accuracy against one setting, for each attack; against lam, each run is a point."""
    groups: dict[str, list[AttackRecord]] = {}
    for record in records:
        if not record.is_clean:
            label = record.label.replace("EOT^1-", "EOT-") if over == "n" else record.label
            groups.setdefault(label if over == "lam" else f"{record.target}: {label}", []).append(record)
    for label, group in groups.items():
        typer.echo(f"{label}: accuracy against {over}")
        for value, a in curve(group, over):
            typer.echo(f"  {value:<8.4g} {percent(a):>14} %   ({INTERVAL}: {interval_of(a.interval)})")


def print_verdicts(items: "Sequence[Item]", title: str, *, fold: bool = False) -> None:
    """Print checks with their verdict and evidence; folded, those that passed are counted instead."""
    shown = [item for item in items if item.verdict != "pass"] if fold else items
    title += f": {len(items) - len(shown)} of {len(items)} checks passed" if fold else ""
    rows = [(item.name, f"[{COLORS[item.verdict]}]{item.verdict}[/]", item.sentence) for item in shown]
    if not rows:
        return typer.echo(title)
    print_titled(title, ("", "verdict", "evidence"), rows, show_lines=True)


def print_table(made: "ReportTable") -> None:
    """Print a table of a report."""

    def look(i: int, j: int) -> str:
        return "bold" if (i, j) in made.highlighted else "italic" if made.is_published(i, j) else ""

    rows = [[Text(cell, style=look(i, j)) for j, cell in enumerate(row)] for i, row in enumerate(made.rows)]
    print_titled(made.title, made.columns, rows, caption=made.caption, caption_justify="left")
