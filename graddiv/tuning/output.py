"""The results of all trials as a table and as a figure."""

import csv
import io
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from graddiv import store
from graddiv.registries import REGULARIZERS
from graddiv.tuning.search import Judge, Result


def write_table(results: Sequence[Result], path: Path) -> None:
    """Write the results as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Result._fields)
    writer.writerows(results)
    store.write(path, text.getvalue().encode())


LOOKS = (("#0072B2", "o"), ("#E69F00", "s"), ("#009E73", "^"), ("#D55E00", "D"), ("#CC79A7", "v"))
"""Colours (Okabe and Ito's, which the colour-blind tell apart) and markers, in the order of the regularizers."""


def plot(results: Sequence[Result], judge: Judge, stem: Path) -> None:
    """Draw accuracy against lambda as stem.svg and stem.png: solid lines attacked, dotted ones clean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 3.4), layout="constrained")
    axes = figure.add_subplot()
    tried = {r.regularizer for r in results}
    for name, (colour, marker) in zip([*REGULARIZERS, *sorted(tried - REGULARIZERS.keys())], cycle(LOOKS)):
        if name not in tried:
            continue
        found = sorted((r.lam, r.robust, r.clean) for r in results if r.regularizer == name and r.robust is not None)
        lam, robust, clean = zip(*found, strict=True) if found else ((), (), ())
        style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4}
        axes.plot(lam, robust, label=f"R_{name}", **style)
        axes.plot(lam, clean, linestyle=":", **style)
    axes.set_xscale("log")
    axes.set_xlabel("$\\lambda$")
    axes.set_ylabel("accuracy on validation data")
    axes.set_title(
        f"EOT-PGD, n = {judge.n}, m = {judge.m}, $\\epsilon$ = {judge.epsilon:.3g} (dotted: clean)", fontsize=9
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    for kind in ("svg", "png"):
        content = io.BytesIO()
        figure.savefig(content, format=kind, dpi=150)
        store.write(stem.with_suffix(f".{kind}"), content.getvalue())
