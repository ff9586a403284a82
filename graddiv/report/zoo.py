"""Every defense in a row: what it is worth to adversaries that know more and more of its randomness."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graddiv.experiment.cost import work_of_steps
from graddiv.records import ALL_TOTAL, PAPERS_TOTAL, CertificateRecord, ConcentrationRecord, Row, TransferRecord
from graddiv.report.comparison import Comparison, ReportRun
from graddiv.report.output import NOT_APPLICABLE, NOT_RUN, Table, bound, draws
from graddiv.report.tables import pooled_rows, scale_of_ours, the_only

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


class _Line(NamedTuple):
    title: str
    rows: dict[str, Row]
    runs: tuple[ReportRun, ...]


@draws("zoo-table", by="reproduce zoo")
def zoo_table(comparison: Comparison) -> Table | None:
    """Accuracy by what the adversary knows, concentration, what randomness buys, certificates and training cost."""
    lines = [_Line(group[0].title, pooled_rows(group), group) for group in comparison.groups]
    records = [r for run in comparison.runs for r in run.attacks]
    attacked = [r for r in records if not r.is_clean]
    if not attacked:
        return None
    epsilon = the_only("epsilon", (r.epsilon for r in attacked))
    cheapest = min(work_of_steps(run.experiment) for run in comparison.runs)
    body, numbers = [], []
    for line in lines:
        values = _values(line, cheapest)
        body.append((line.title, *(_text(line, name, value) for name, value in values.items())))
        numbers += [(line.title, name, "" if value is None else value) for name, value in values.items()]
    repeats = {len({r.repeat for r in run.attacks}) for run in comparison.runs}
    radii = sorted({record.epsilon for _, record in comparison.with_measurement(TransferRecord)})
    at = f", at ε = {', '.join(bound(radius) for radius in radii)}" if radii else ""
    return Table(
        name="zoo",
        title=f"Defenses of the literature, {comparison.data_title}, ε = {bound(epsilon)}",
        columns=("defense", *values),
        rows=tuple(body),
        caption=f"Ours: {scale_of_ours(comparison, {r.examples for r in records}, repeats)}.  {_finding(lines)}  "
        "Accuracies in %.  Fixed draw, fresh draws and mean of draws are PGD on one sample model, on a new one at each "
        "step (EOT^1) and on the mean of several (EOT); all are judged on models that the attack never saw.  Strong: "
        "the better of stochastic PGD and ARC, which goes from model to model.  ρ is debiased.  Own model and other "
        f"models: accuracy when the very model that answers was attacked, and when another was{at}; the difference is "
        f"what randomness buys.  Certified: proved by randomized smoothing within an l_2 radius of {CERTIFIED_AT:g}.  "
        "Training: in multiples of the cheapest here."
        + (f"  {PROXY}: the gradient is a proxy (BPDA)." if any(r.proxy_gradient for r in attacked) else ""),
        number_columns=("defense", "what", "value"),
        numbers=tuple(numbers),
    )


def _values(line: _Line, cheapest: float) -> dict[str, float | None]:
    """The numbers of one row; None where there is no record of it, or it makes no sense."""
    accuracies = {label: 100 * row.accuracy.mean for label, row in line.rows.items()}
    strong = [value for label, value in accuracies.items() if label.removeprefix("EOT-").startswith(STRONG)]
    found = {column: accuracies.get(label) for column, label in ADVERSARIES.items()}
    concentration = [c for run in line.runs if (c := run.measured(ConcentrationRecord)) is not None]
    transfer = [t.accuracies for run in line.runs if (t := run.measured(TransferRecord)) is not None]
    proofs = [p for run in line.runs if (p := run.measured(CertificateRecord)) is not None and p.sigma > 0]
    return {
        **found,
        "strong": min(strong, default=None),
        "ρ": _mean([float(np.nanmedian(c.rho_debiased)) for c in concentration]),
        "own model": _mean([100 * t.own for t in transfer]),
        "other models": _mean([100 * t.mean for t in transfer]),
        "certified": _mean([100 * p.accuracy(CERTIFIED_AT) for p in proofs]),
        "training": float(np.mean([work_of_steps(run.experiment) for run in line.runs])) / cheapest,
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _text(line: _Line, name: str, value: float | None) -> str:
    if value is None:
        of_random_ones = name in ("fresh draws", "mean of draws", "own model", "other models")
        missing = name != "certified" and (line.runs[0].random or not of_random_ones)
        return NOT_RUN if missing else NOT_APPLICABLE
    proxy = name in ADVERSARIES and name != "clean" and any(r.proxy_gradient for run in line.runs for r in run.attacks)
    return f"{value:.2f}" if name == "ρ" else f"{value:.1f}{PROXY if proxy else '×' if name == 'training' else ''}"


def _finding(lines: Sequence[_Line]) -> str:
    """Which gain over the first defense survives an adversary that knows: by the Totals and their intervals."""
    judged = [(line.title, line.rows[ALL_TOTAL].accuracy.interval) for line in lines if ALL_TOTAL in line.rows]
    if len(judged) < 2:
        return ""
    (first, (_, ceiling)), *others = judged
    above = ", ".join(title for title, interval in others if interval.low > ceiling) or "none"
    return f"Under all attacks together, more than {first}, by 95 % intervals that do not overlap: {above}."
