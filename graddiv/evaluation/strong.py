"""The strong suite: adversaries that spend a budget of passes as the noise of the gradients asks for."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graddiv.attacks import EOT
from graddiv.attacks.pilot import PILOT, Plan, along_the_attack, choose, gradient_noise, measured_cosine
from graddiv.distributed import ALONE, Process
from graddiv.errors import GradDivError
from graddiv.evaluation.batches import Advance, Job, WorkListener, run, silent
from graddiv.evaluation.target import Target
from graddiv.geometry import Geometry, Linf
from graddiv.records import GradientNoiseRecord
from graddiv.records.record import PILOTS
from graddiv.seeding import fold

PILOT_GRADIENTS = 20
"""Gradients at each example from which the pilot learns."""

PILOT_EXAMPLES = 50
"""Examples, the first ones, on which the pilot of an attack is run."""

PASSES = 400
"""Forward and backward passes for each image: 20 iterations on 20 models, as in the paper's table."""


def gradient_noise_job(
    target: Target,
    directory: Path | None = None,
    *,
    epsilon: float,
    n: int = PILOT_GRADIENTS,
    geometry: Geometry = Linf(),  # noqa: B008 -- frozen
) -> Job[GradientNoiseRecord]:
    """Measure |mu|, tr Cov, q and rho of n gradients at x0 and where a short attack leads, and the cosine of two means.

    R at the clean x, for instance, disperses the gradients there and leaves those at attacked points together, so the
    draws that an adversary needs are told by the second alone.
    """
    if n < 2:
        raise GradDivError(f"n is {n}, expected at least 2 gradients to measure their noise")

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        view = EOT(target.F, n, fold(target.seed, "gradient noise"))
        found: dict[str, list[Tensor]] = {}
        for place, point in enumerate((x, along_the_attack(view.sized(n // 2), x, y, epsilon, geometry))):
            noise = gradient_noise(view, PILOT, point, y)
            values = {**noise._asdict(), "q": noise.q, "predicted": noise.cosine_of_two(n)}
            values["measured"] = measured_cosine(view, PILOT, point, y)
            for name in ("rho", "mean_length", "trace", "q", "predicted", "measured"):
                found.setdefault(name, []).append(values[name])
            advance((place + 1) / 2)
        return {name: torch.stack(columns, 1) for name, columns in found.items()}

    norm = {} if isinstance(geometry, Linf) else {"norm": geometry.name}  # as in records from before it was named
    settings = {"n": n, **norm, "epsilon": epsilon}
    return target.job(GradientNoiseRecord, settings, directory, measure, work=12.0 * n)


def strong_plan(
    target: Target,
    epsilon: float,
    passes: int = PASSES,
    *,
    geometry: Geometry = Linf(),  # noqa: B008 -- frozen
    directory: Path | None = None,
    process: Process = ALONE,
    progress: WorkListener = silent,
) -> Plan:
    """How many models an iteration should see, from a pilot on the first examples; its record goes below `directory`.

    Into a directory of its own: measured on all examples the same would be a file of the same name.
    """
    if passes < 1:
        raise GradDivError(f"passes is {passes}, expected at least 1")
    if not target.random:
        return Plan(1, passes)
    pilot = target.first(min(PILOT_EXAMPLES, len(target.data)))
    job = gradient_noise_job(pilot, directory and directory / PILOTS, epsilon=epsilon, geometry=geometry)
    [record] = run([job], process=process, progress=progress)
    return choose(float(np.median(record.q[:, 1])), passes)
