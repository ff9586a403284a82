"""Every defense in a row: what it is worth to adversaries that know more and more of its randomness."""

from collections.abc import Sequence

import numpy as np

from graddiv.experiment.cost import work_of_steps
from graddiv.records import ALL_TOTAL, PAPERS_TOTAL, CertificateRecord, ConcentrationRecord, Row, TransferRecord
from graddiv.report.comparison import Comparison, ReportRun
from graddiv.report.output import NOT_APPLICABLE, NOT_RUN, Table, bound, caption, draws
from graddiv.report.tables import pooled_rows, the_only

CERTIFIED_AT = 0.25  #: the l_2 radius, in pixel units, at which certified accuracy is shown
PROXY = "*"  #: behind an accuracy that was attacked with the gradient of a stand-in
STRONG = ("SPGD", "ARC")  #: attacks for diverse gradients, of which the one that does best is shown

#: Columns of accuracies: what the adversary of PGD knows -> the row of the table of attacks.
ADVERSARIES = {
    "clean": "clean",
    "fixed draw": "PGD",
    "fresh draws": "EOT^1-PGD",
    "mean of draws": "EOT-PGD",
    "paper's Total": PAPERS_TOTAL,
    "all attacks": ALL_TOTAL,
    "strong": "",
}


@draws("zoo-table", by="reproduce zoo")
def zoo_table(comparison: Comparison) -> Table | None:
    """Accuracy by what the adversary knows, concentration, what randomness buys, certificates and training cost."""
    attacked, groups = comparison.attacks, comparison.groups
    if not attacked:
        return None
    epsilon = the_only("epsilon", (r.epsilon for r in attacked))
    cheapest = min(work_of_steps(run.experiment) for run in comparison.runs)
    rows = [pooled_rows(group) for group in groups]
    body, numbers = [], []
    for group, found in zip(groups, rows, strict=True):
        title, values = group[0].title, _values(group, found, cheapest)
        body.append((title, *(_text(group, name, value) for name, value in values.items())))
        numbers += [(title, name, "" if value is None else value) for name, value in values.items()]
    totals = {
        group[0].title: r[ALL_TOTAL].accuracy.interval for group, r in zip(groups, rows, strict=True) if ALL_TOTAL in r
    }
    first = next(iter(totals), "") if len(totals) > 1 else ""  # which gains over it survive an adversary that knows
    words = {
        "examples": {r.examples for run in comparison.runs for r in run.attacks},
        "repeats": {len({r.repeat for r in run.attacks}) for run in comparison.runs},
        "first": first,
        "above": [title for title, interval in totals.items() if first and interval.low > totals[first].high],
        "radii": sorted({record.epsilon for _, record in comparison.with_measurement(TransferRecord)}),
        "certified_at": CERTIFIED_AT,
        "proxy": PROXY if any(r.proxy_gradient for r in attacked) else "",
    }
    return Table(
        name="zoo",
        title=f"Defenses of the literature, {comparison.data_title}, ε = {bound(epsilon)}",
        columns=("defense", *values),
        rows=tuple(body),
        caption=caption("zoo-table", comparison, **words),
        number_columns=("defense", "what", "value"),
        numbers=tuple(numbers),
    )


def _values(group: Sequence[ReportRun], rows: dict[str, Row], cheapest: float) -> dict[str, float | None]:
    """The numbers of one row; None where there is no record of it, or it makes no sense."""
    accuracies = {label: 100 * row.accuracy.mean for label, row in rows.items()}
    strong = [value for label, value in accuracies.items() if label.removeprefix("EOT-").startswith(STRONG)]
    found = {column: accuracies.get(label) for column, label in ADVERSARIES.items()}
    concentration = [c for run in group if (c := run.measured(ConcentrationRecord)) is not None]
    transfer = [t.accuracies for run in group if (t := run.measured(TransferRecord)) is not None]
    proofs = [p for run in group if (p := run.measured(CertificateRecord)) is not None and p.sigma > 0]
    return {
        **found,
        "strong": min(strong, default=None),
        "ρ": _mean([float(np.nanmedian(c.rho_debiased)) for c in concentration]),
        "own model": _mean([100 * t.own for t in transfer]),
        "other models": _mean([100 * t.mean for t in transfer]),
        "certified": _mean([100 * p.accuracy(CERTIFIED_AT) for p in proofs]),
        "training": float(np.mean([work_of_steps(run.experiment) for run in group])) / cheapest,
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _text(group: Sequence[ReportRun], name: str, value: float | None) -> str:
    if value is None:
        of_random_ones = name in ("fresh draws", "mean of draws", "own model", "other models")
        missing = name != "certified" and (group[0].random or not of_random_ones)
        return NOT_RUN if missing else NOT_APPLICABLE
    proxy = name in ADVERSARIES and name != "clean" and any(r.proxy_gradient for run in group for r in run.attacks)
    return f"{value:.2f}" if name == "ρ" else f"{value:.1f}{PROXY if proxy else '×' if name == 'training' else ''}"
