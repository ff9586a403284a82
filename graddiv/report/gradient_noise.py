"""How noisy the gradients are that an adversary sees, and how many draws that takes."""

import math

import numpy as np

from graddiv.errors import GradDivError
from graddiv.records import GradientNoiseRecord
from graddiv.report.comparison import Comparison
from graddiv.report.output import Table

ENOUGH = 0.9
"""A cosine to the true gradient that an adversary may be content with."""


def gradient_noise_table(comparison: Comparison) -> Table:
    """How noisy the gradients are that an adversary sees, at x0 and where it is going, and what that predicts."""
    rows = []
    for run in comparison.runs:
        found = run.measured(GradientNoiseRecord)
        if found is None:
            continue
        for i, place in enumerate(("clean x", "attacked x")):
            medians = [
                float(np.median(values[:, i])) for values in (found.rho, found.mean_length, found.trace, found.q)
            ]
            cosines = [float(np.mean(values[:, i])) for values in (found.predicted, found.measured)]
            numbers = [f"{value:.2f}" for value in (medians[0], *medians[1:], *cosines)]
            draws = math.ceil(ENOUGH**2 / (1 - ENOUGH**2) / max(medians[3], 1e-9))
            rows.append((run.title, place, *numbers, str(draws)))
    if not rows:
        raise GradDivError(
            "no run has a record of the noise of its gradients: 'graddiv measure RUN --what gradient-noise' makes it"
        )
    return Table(
        name="gradient-noise",
        title=f"What an adversary sees of the gradient, {comparison.data_title}",
        columns=("method", "where", "ρ", "|μ|", "tr Cov", "q", "cosine predicted", "cosine measured", "draws for 0.9"),
        rows=tuple(rows),
        caption="Gradients g of the margin over sample models, medians over examples, at the clean x and where ten "
        "steps of an attack lead. ρ is the debiased mean resultant length of g/|g|, μ = E g, q = |μ|²/tr Cov g. The "
        "cosine is that of two independent means of 20 gradients, as 1/(1 + 1/(20 q)) predicts it and as it is. Last: "
        f"draws whose mean has a cosine of 0.9 to μ. Ours: recipe scale {comparison.scale}, {comparison.data}.",
    )
