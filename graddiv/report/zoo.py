"""Every defense in a row: what it is worth to adversaries that know more and more of its randomness."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graddiv.errors import GradDivError
from graddiv.experiment.cost import work_of_steps
from graddiv.records import ALL_TOTAL, PAPERS_TOTAL, CertificateRecord, ConcentrationRecord, Row, TransferRecord
from graddiv.report.comparison import Comparison, ReportRun
from graddiv.report.output import NOT_APPLICABLE, NOT_RUN, Table
from graddiv.report.tables import pooled_rows, scale_of_ours, the_only
from graddiv.report.texts import bound

CERTIFIED_AT = 0.25
"""The l_2 radius, in pixel units, at which certified accuracy is shown."""

PROXY = "*"
"""Behind an accuracy that was attacked with the gradient of a stand-in."""

ADVERSARIES = {
    "clean": "clean",
    "fixed draw": "PGD",
    "fresh draws": "EOT^1-PGD",
    "mean of draws": "EOT-PGD",
    "paper's Total": PAPERS_TOTAL,
    "all attacks": ALL_TOTAL,
}
"""Columns of accuracies: what the adversary of PGD knows, and the row of the table of attacks."""


STRONG = ("SPGD", "ARC")
"""Attacks for diverse gradients, of which the one that does best is shown: stochastic PGD, and ARC."""


class _Line(NamedTuple):
    title: str
    rows: dict[str, Row]
    runs: tuple[ReportRun, ...]


def zoo_table(comparison: Comparison) -> Table:
    """Accuracy by what the adversary knows, concentration, what randomness buys, certificates and training cost."""
    lines = [_Line(group[0].title, pooled_rows(group), group) for group in comparison.groups]
    attacked = [r for run in comparison.runs for r in run.attacks if not r.is_clean]
    if not attacked:
        raise GradDivError("no run was attacked: 'graddiv reproduce zoo' does it")
    epsilon = the_only("epsilon", (r.epsilon for r in attacked))
    cheapest = min(work_of_steps(run.experiment) for run in comparison.runs)
    body, numbers = [], []
    for line in lines:
        values = _values(line, cheapest)
        body.append((line.title, *(_text(line, name, value) for name, value in values.items())))
        numbers += [(line.title, name, "" if value is None else value) for name, value in values.items()]
    records = [r for run in comparison.runs for r in run.attacks]
    repeats = {len({r.repeat for r in run.attacks}) for run in comparison.runs}
    return Table(
        name="zoo",
        title=f"Defenses of the literature, {comparison.data_title}, ε = {bound(epsilon)}",
        columns=("defense", *values),
        rows=tuple(body),
        caption=f"Ours: {scale_of_ours(comparison, {r.examples for r in records}, repeats)}.  {_finding(lines)}  "
        "Accuracies in %.  Fixed draw, fresh draws and mean of draws are PGD on one sample model, on a new one at each "
        "step (EOT^1) and on the mean of several (EOT); all are judged on models that the attack never saw.  Strong: "
        "the better of stochastic PGD and ARC, which goes from model to model.  ρ is "
        "debiased.  Own model and other models: accuracy when the very model that answers was attacked, and when "
        f"another was{_transfer_radius(comparison)}; the difference is what randomness buys.  Certified: proved by "
        f"randomized smoothing within an l_2 radius of {CERTIFIED_AT:g}.  Training: in multiples of the cheapest here."
        + (f"  {PROXY}: the gradient is a proxy (BPDA)." if any(r.proxy_gradient for r in attacked) else ""),
        number_columns=("defense", "what", "value"),
        numbers=tuple(numbers),
    )


def _values(line: _Line, cheapest: float) -> dict[str, float | None]:
    """The numbers of one row; None where there is no record of it, or it makes no sense."""
    found: dict[str, float | None] = {}
    for column, label in ADVERSARIES.items():
        row = line.rows.get(label)
        found[column] = None if row is None else 100 * row.accuracy.mean
    strong = [row.accuracy.mean for label, row in line.rows.items() if label.removeprefix("EOT-").startswith(STRONG)]
    found = {**found, "strong": 100 * min(strong) if strong else None, "all attacks": found.pop("all attacks")}
    concentration = [c for run in line.runs if (c := run.measured(ConcentrationRecord)) is not None]
    transfer = [t.accuracies for run in line.runs if (t := run.measured(TransferRecord)) is not None]
    proofs = [p for run in line.runs if (p := run.measured(CertificateRecord)) is not None and p.sigma > 0]
    found["ρ"] = _mean([float(np.nanmedian(c.rho_debiased)) for c in concentration])
    found["own model"] = _mean([100 * t.own for t in transfer])
    found["other models"] = _mean([100 * t.mean for t in transfer])
    found["certified"] = _mean([100 * p.accuracy(CERTIFIED_AT) for p in proofs])
    found["training"] = float(np.mean([work_of_steps(run.experiment) for run in line.runs])) / cheapest
    return found


def _text(line: _Line, name: str, value: float | None) -> str:
    if value is None:
        of_random_ones = name in ("fresh draws", "mean of draws", "own model", "other models")
        missing = name != "certified" and (line.runs[0].random or not of_random_ones)
        return NOT_RUN if missing else NOT_APPLICABLE
    if name in (*ADVERSARIES, "strong"):
        proxy = name != "clean" and any(r.proxy_gradient for run in line.runs for r in run.attacks)
        return f"{value:.1f}{PROXY if proxy else ''}"
    return f"{value:.2f}" if name == "ρ" else f"{value:.1f}" + ("×" if name == "training" else "")


def _finding(lines: Sequence[_Line]) -> str:
    """Which gain over the first defense survives an adversary that knows: by the Totals and their intervals."""
    judged = [line for line in lines if ALL_TOTAL in line.rows]
    if len(judged) < 2:
        return ""
    first, *others = judged
    ceiling = first.rows[ALL_TOTAL].accuracy.interval.high
    above = [line.title for line in others if line.rows[ALL_TOTAL].accuracy.interval.low > ceiling]
    which = ", ".join(above) if above else "none"
    return f"Under all attacks together, more than {first.title}, by 95 % intervals that do not overlap: {which}."


def _transfer_radius(comparison: Comparison) -> str:
    radii = sorted({record.epsilon for _, record in comparison.with_measurement(TransferRecord)})
    return f", at ε = {', '.join(bound(radius) for radius in radii)}" if radii else ""


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
