"""The page of a board: one table of all cards, on a page like that of a report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graddiv import store
from graddiv.report.output import Table, save
from graddiv.report.page import colours, fill, shown_table
from graddiv.report.style import BLACK
from graddiv.report.texts import bound, percent


def write_board(entries: Sequence[Mapping[str, Any]], directory: Path) -> Path:
    """Write board.html, and the table beside it, into a directory."""
    table = board_table(entries)
    save(table, directory)
    marks = {
        row: [{"run": 0, **{name: 100 * entry["robust"][name] for name in ("mean", "low", "high")}}]
        for row, entry in enumerate(entries)
    }
    path = directory / "board.html"
    html = fill(
        "board.html.jinja",
        entries=entries,
        shown={**shown_table(table), "marks": marks},
        titles=["accuracy under attack"],
        colours=[colours(BLACK)],
        square=[False],
        attacked=[0],
    )
    store.write(path, html.encode())
    return path


def board_table(entries: Sequence[Mapping[str, Any]]) -> Table:
    """Networks from the highest to the lowest lower bound."""
    rows = []
    for rank, entry in enumerate(entries, 1):
        card, robust = entry["card"], entry["robust"]
        lowered = card["external"] and robust != card["robust"]["A_T"]
        state = "unaudited" if not entry["audited"] else "complete" if card["complete"] else "evidence insufficient"
        rows.append(
            (
                card["name"],
                str(rank),
                f"{card['norm']} {bound(card['epsilon'])}",
                percent(robust["low"]),
                percent(robust["mean"]),
                percent(card["robust"]["A1"]["mean"]),
                percent(card["clean"]["A_T"]["mean"]),
                str(card["inference"]["T"]),
                str(card["examples"]),
                f"{state}; lowered by {_who(card)}" if lowered else state,
            )
        )
    return Table(
        name="board",
        title="Networks by the lower bound of their accuracy under attack",
        columns=(
            *("network", "rank", "norm and ε", "lower bound %", "ensemble %", "per draw %", "clean %", "draws T"),
            *("images", "state"),
        ),
        rows=tuple(rows),
        caption=(
            "Ranked by the lower end of the 95 % interval of the ensemble's accuracy, so that few images rank low. "
            "Compare rows of one norm, ε and data set only. Every accuracy is an upper bound on what a better attack "
            "leaves: 'graddiv rescore CARD --model ... --images BETTER.npz' lowers an entry."
        ),
    )


def _who(card: Mapping[str, Any]) -> str:
    least = min(card["external"], key=lambda found: found["A_T"]["low"])
    return str(least["who"] or least["attack"] or "others")
