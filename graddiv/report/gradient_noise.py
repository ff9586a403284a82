"""How noisy the gradients are that an adversary sees, and how many draws that takes."""

import math

import numpy as np

from graddiv.errors import GradDivError
from graddiv.records import GradientNoiseRecord
from graddiv.report.comparison import Comparison, titles
from graddiv.report.output import Table

ENOUGH = 0.9
"""A cosine to the true gradient that an adversary may be content with."""


def gradient_noise_table(comparison: Comparison) -> Table:
    """How noisy the gradients are that an adversary sees, at x0 and where it is going, and what that predicts."""
    found = comparison.with_measurement(GradientNoiseRecord)
    if not found:
        raise GradDivError(
            "no run has a record of the noise of its gradients: 'graddiv measure RUN --what gradient-noise' makes it"
        )
    rows = []
    for name, (_, record) in zip(titles([run for run, _ in found]), found, strict=True):
        for i, place in enumerate(("clean x", "attacked x")):
            measures = (record.rho, record.mean_length, record.trace, record.q, record.predicted, record.measured)
            medians = [float(np.median(values[:, i])) for values in measures]
            draws = math.ceil(ENOUGH**2 / (1 - ENOUGH**2) / max(medians[3], 1e-9))
            rows.append((name, place, *(f"{value:.2f}" for value in medians), str(draws)))
    n = " or ".join(map(str, sorted({record.n for _, record in found})))
    return Table(
        name="gradient-noise",
        title=f"What an adversary sees of the gradient, {comparison.data_title}",
        columns=("method", "where", "ρ", "|μ|", "tr Cov", "q", "cosine predicted", "cosine measured", "draws for 0.9"),
        rows=tuple(rows),
        caption="Gradients g of the margin over sample models, medians over examples, at the clean x and where ten "
        "steps of an attack lead. ρ says how far the directions of gradients agree: it is the mean resultant length of "
        "g/|g|, debiased, 1 if all point one way and 0 if they point anywhere. |μ| is the length of the mean gradient "
        "μ = E g, which is what an adversary is after. tr Cov is the variance of g around μ, which is what is in its "
        "way. q = |μ|²/tr Cov says how much of a gradient is signal: the noise of a mean of n gradients is n times "
        f"smaller. Cosine measured is that of two independent means of {n} gradients, near 1 where so many suffice. "
        f"Cosine predicted is what q alone says of it, 1/(1 + 1/({n} q)). Draws for {ENOUGH} is the number of "
        f"gradients whose mean has a cosine of {ENOUGH} to μ, by the median q. "
        f"Ours: recipe scale {comparison.scale}, {comparison.data}.",
    )
