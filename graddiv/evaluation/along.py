"""Measurements along an attack: gradients and margins at its steps, and how many models answer where it ends."""

import torch
from torch import Tensor

from graddiv.attacks import EOT, PGD
from graddiv.diversity.concentration import moments_of
from graddiv.diversity.gradients import input_gradient
from graddiv.evaluation.jobs import right_by_size
from graddiv.evaluation.measurements import measurement
from graddiv.evaluation.run import Advance, Job, reporting
from graddiv.evaluation.target import Target
from graddiv.networks import running_statistics
from graddiv.networks.prediction import models_of
from graddiv.records import AttackedEnsembleRecord, PathRecord
from graddiv.seeding import fold

STEPS = (0, 1, 2, 3, 5, 10, 20)  #: Steps of EOT-PGD after which gradients are compared; 0 is the clean image.


@measurement("path", PathRecord, lambda budget: {"n": max(budget.curve_n)}, of_random_networks_only=True)
def path_job(target: Target, *, epsilon: float, n: int = 20) -> Job[PathRecord]:
    """Measure mean cosine and length of n gradients, and the soft margin, at steps of EOT-PGD.

    The models that measure are the same at every step and were never seen by the attack.
    """
    view = EOT(target.F, n, fold(target.seed, "path", "view"))

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {"mean_cosine": [], "length": [], "margin": []}
        for m in reporting(STEPS, len(STEPS), advance):
            # views are pure in the step, so that the first m steps are the same in every PGD without a random start
            point = PGD(m=m, alpha=0.25)(view, x, y, epsilon, ids=ids) if m else x
            with running_statistics(target.F):
                models = models_of(target.F, n, fold(target.seed, "gradients"))
                pairs = [input_gradient(f, point, y) for f in models]
            found["mean_cosine"].append(moments_of(pairs).mean_cosine())
            found["length"].append(torch.stack([g.flatten(1).norm(dim=1) for _, g in pairs]).mean(0))
            found["margin"].append(torch.stack([s for s, _ in pairs]).mean(0))
        return {name: torch.stack(columns, 1) for name, columns in found.items()}

    settings = {"n": n, "epsilon": epsilon, "steps": list(STEPS)}
    return target.job(PathRecord, settings, measure, work=2.0 * n * (sum(STEPS) + len(STEPS)))


@measurement("ensemble-size-attacked", AttackedEnsembleRecord, lambda budget: {"n": budget.gradients, "m": budget.m})
def attacked_ensemble_job(
    target: Target, *, epsilon: float, n: int = 100, m: int = 20, models: int = 20
) -> Job[AttackedEnsembleRecord]:
    """Measure whether ensembles of 1, 2, .. n models are right on the images of EOT-PGD, which saw none of them."""
    view = EOT(target.F, models, fold(target.seed, "ensemble size", "view"))

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        x_adv = PGD(m=m)(view, x, y, epsilon, ids=ids, progress=lambda done, of: advance(done / of))
        return {"right": right_by_size(target.F, x_adv, y, n, fold(target.seed, "ensemble size"))}

    settings = {"n": n, "m": m, "models": models, "epsilon": epsilon}
    return target.job(AttackedEnsembleRecord, settings, measure, work=2.0 * models * m + n)
