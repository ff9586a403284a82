"""Measurements of gradients: how concentrated they are, what an adversary gains by it, and what Theorem 1 allows."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from graddiv.attacks import EOT, PGD, Fixed, RotatedPGD
from graddiv.directions import vmf
from graddiv.directions.bounds import first_order_bound, loss_increase
from graddiv.directions.gradients import directions, input_gradient
from graddiv.directions.moments import moments
from graddiv.directions.regularizers import cosines
from graddiv.errors import GradDivError
from graddiv.evaluation.batches import Advance, Job
from graddiv.evaluation.prediction import models_of
from graddiv.evaluation.target import Target
from graddiv.geometry import Geometry, Linf
from graddiv.networks import SampleModel, running_statistics
from graddiv.records import ConcentrationRecord, GradientsRecord, LossIncreaseRecord, RotationRecord
from graddiv.seeding import fold

GRADIENTS = 100
"""The number of gradients, one for each sample model, from which the paper estimates concentration."""

GRADIENT_EXAMPLES = 4
"""How many examples, the first ones, have their gradients stored in full."""

ANGLES = tuple(float(angle) for angle in range(0, 91, 10))
"""The angles, in degrees, by which gradients are rotated in the paper's cosine figure."""


def concentration_job(target: Target, directory: Path | None = None, *, n: int = GRADIENTS) -> Job[ConcentrationRecord]:
    """Measure how much the gradients of n sample models point the same way: kappa^ and the like, for every example.

    Arrays: rho, rho_1 (in the l_1 norm), rho_debiased, mean_cosine, kappa (the paper's estimate), kappa_mle (the exact
    one), norm_ratio (|E g| / E |g|), and usable: whether all gradients have a direction; NaN where not.
    """
    p = _gradient_dimension(target, n)

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        with running_statistics(target.F):
            found = moments(_reporting(_models(target, n), n, advance), x, y)
        rho, c = found.rho(), found.mean_cosine()
        return {
            "rho": rho,
            "rho_1": found.rho(1.0),
            "rho_debiased": c.clamp_min(0).sqrt(),
            "mean_cosine": c,
            "kappa": vmf.kappa_approximate(rho, p),
            "kappa_mle": torch.where(found.usable, vmf.kappa_mle(rho.nan_to_num(0.0), p), torch.nan),
            "norm_ratio": found.norm_ratio(),
            "usable": found.usable,
        }

    return target.job(ConcentrationRecord, {"n": n, "p": p}, directory, measure, work=2.0 * n)


def gradients_job(
    target: Target, directory: Path | None = None, *, n: int = GRADIENTS, examples: int = GRADIENT_EXAMPLES
) -> Job[GradientsRecord]:
    """Store the unit gradients of the first examples, their cosines and the images, for scatter plots and matrices.

    n: how many gradients, of one sample model each; at least 2.
    examples: how many examples.

    Arrays: gradients (k x n x p, float16), cosines (k x n x n), images.
    """
    p, target = _gradient_dimension(target, n), target.first(examples)

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        with running_statistics(target.F):
            models = _reporting(_models(target, n), n, advance)
            v = directions(torch.stack([input_gradient(f, x, y)[1] for f in models])).v
        return {"gradients": v.transpose(0, 1).to(torch.float16), "cosines": cosines(v), "images": x}

    return target.job(GradientsRecord, {"n": n, "p": p}, directory, measure, work=2.0 * n)


def loss_increase_job(
    target: Target,
    directory: Path | None = None,
    *,
    epsilon: float,
    n: int = 20,
    m: int = 20,
    fresh: int = 20,
    gradients: int = GRADIENTS,
) -> Job[LossIncreaseRecord]:
    """Measure Delta, the increase of the expected loss under EOT-PGD, beside Theorem 1's bound on it; both in l_inf.

    target: the network and its examples.
    directory: where the record is stored; None for nowhere.
    epsilon: the radius of the attack, and the length of the step that the bound is for.
    n: sample models in each iteration of the attack.
    m: iterations of the attack.
    fresh: how many models, which the attack has not seen, the increase is averaged over.
    gradients: how many gradients the expectations of Theorem 1 are taken over; at least 2.

    Arrays: increase (Delta), first_order = epsilon |E g|_1, theorem = epsilon M_X rho_1 with M_X = max_i |g_i|_2, the
    bound on it, tightness = first_order / theorem, holds = whether it is at most 1, excess = |E g|_1 / (E|g| rho_1).
    The bound is one on small steps: Delta itself may exceed it where the loss is not linear on the way.
    """
    _gradient_dimension(target, gradients)
    attack = PGD(m=m, seed=fold(target.seed, "increase", "attack"))
    q = attack.geometry.q
    settings = {"epsilon": epsilon, "n": n, "m": m, "alpha": attack.alpha, "fresh": fresh, "gradients": gradients}

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        view = EOT(target.F, n, fold(target.seed, "increase", "view"))
        x_adv = attack(view, x, y, epsilon, ids=ids, progress=lambda done, of: advance(n * m / passes * done / of))
        with running_statistics(target.F):
            fresh_models = models_of(target.F, fresh, fold(target.seed, "increase", "fresh"))
            increase = loss_increase(fresh_models, x, y, x_adv - x)
            found = moments(_models(target, gradients), x, y)
        return {"increase": increase, **vars(first_order_bound(found, found.rho(q), epsilon, q))}

    passes = n * m + fresh + gradients
    return target.job(LossIncreaseRecord, settings, directory, measure, work=2.0 * passes)


def rotation_job(
    target: Target,
    directory: Path | None = None,
    *,
    epsilon: float,
    geometry: Geometry = Linf(),  # noqa: B008 -- frozen, so safely shared
    m: int = 20,
    angles: Sequence[float] = ANGLES,
) -> Job[RotationRecord]:
    """Measure what PGD on one sample model still achieves, on that model, when its gradients are turned by an angle.

    target: the network and its examples.
    directory: where the record is stored; None for nowhere.
    epsilon: the radius, in the geometry's norm.
    geometry: the norm; Linf is the paper's setting, in L2 the gain is proportional to the cosine.
    m: iterations of PGD.
    angles: in degrees, 0 to 180.

    Arrays: increase (of the loss, b x angles), right (b x angles), and of the clean images loss and right_clean.
    """
    attack = RotatedPGD(geometry=geometry, m=m, seed=fold(target.seed, "rotation", "attack"))
    settings = {"norm": geometry.name, "epsilon": epsilon, "m": m, "alpha": attack.alpha, "angles": list(angles)}

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        view = Fixed(target.F, fold(target.seed, "rotation", "model"))
        loss, losses, right = view.loss(0, x, y), [], []
        for number, angle in enumerate(angles):
            x_adv = replace(attack, angle=angle)(view, x, y, epsilon, ids=ids)
            losses.append(view.loss(0, x_adv, y))
            right.append(view.logits(0, x_adv).argmax(1) == y)
            advance((number + 1) / len(angles))
        return {
            "increase": torch.stack(losses, 1) - loss[:, None],
            "right": torch.stack(right, 1),
            "loss": loss,
            "right_clean": view.logits(0, x).argmax(1) == y,
        }

    return target.job(RotationRecord, settings, directory, measure, work=2.0 * m * len(angles))


def l2_radius(epsilon: float, p: int) -> float:
    """epsilon sqrt(p) / 4: an l_2 ball about as easy as the l_inf ball, for images."""
    return epsilon * math.sqrt(p) / 4


def _models(target: Target, n: int) -> Iterator[SampleModel]:
    """Yield the n sample models whose gradients are measured: the same ones in all measurements of a target."""
    return models_of(target.F, n, fold(target.seed, "gradients"))


def _reporting(models: Iterable[SampleModel], n: int, advance: Advance) -> Iterator[SampleModel]:
    """Yield the models, and report the share of them that is done after each."""
    for number, f in enumerate(models):
        yield f
        advance((number + 1) / n)


def _gradient_dimension(target: Target, n: int) -> int:
    """Check that n gradients can be compared, and return p, the number of pixels and so the dimension of a gradient."""
    if n < 2:
        raise GradDivError(f"n is {n}, expected at least 2 gradients to compare")
    return target.pixels
