"""Measurements of gradients: how concentrated they are, what an adversary gains by it, and what Theorem 1 allows."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from graddiv.attacks import EOT, PGD, Fixed, RotatedPGD
from graddiv.attacks.spgd import PILOT, along_the_attack, gradient_noise, measured_cosine
from graddiv.diversity import concentration as vmf
from graddiv.diversity.concentration import loss_increase, moments, moments_of, theorem1
from graddiv.diversity.gradients import directions, input_gradient
from graddiv.diversity.regularizers import cosines
from graddiv.errors import GradDivError
from graddiv.evaluation.measurements import measurement
from graddiv.evaluation.run import Advance, Job, reporting
from graddiv.evaluation.target import Target
from graddiv.geometry import LINF, Geometry, Linf
from graddiv.networks import SampleModel, running_statistics
from graddiv.networks.prediction import models_of
from graddiv.records import (
    ConcentrationRecord,
    GradientNoiseRecord,
    GradientsRecord,
    LossIncreaseRecord,
    NearbyRecord,
    RotationRecord,
)
from graddiv.seeding import fold, uniform

GRADIENTS = 100  #: How many gradients, one for each sample model, the paper estimates concentration from.
GRADIENT_EXAMPLES = 4  #: How many examples, the first ones, have their gradients stored in full.
PILOT_GRADIENTS = 20  #: Gradients at each example from which the pilot of the strong suite learns.
ANGLES = tuple(float(angle) for angle in range(0, 91, 10))
"""The angles, in degrees, by which gradients are rotated in the paper's cosine figure."""
SHARES = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Distances from the example, as shares of epsilon."""


@measurement("concentration", ConcentrationRecord, lambda budget: {"n": budget.gradients})
def concentration_job(target: Target, *, n: int = GRADIENTS) -> Job[ConcentrationRecord]:
    """Measure how much the gradients of n sample models point the same way: kappa^ and the like, for every example."""
    p = target.pixels

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        with running_statistics(target.F):
            found = moments(reporting(_models(target, n), n, advance), x, y)
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

    return target.job(ConcentrationRecord, {"n": n, "p": p}, measure, work=2.0 * n)


@measurement("gradients", GradientsRecord, lambda budget: {"n": budget.gradients})
def gradients_job(target: Target, *, n: int = GRADIENTS, examples: int = GRADIENT_EXAMPLES) -> Job[GradientsRecord]:
    """Store n unit gradients of the first examples, their cosines and the images, for scatter plots and matrices."""
    target = target.first(examples)

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        with running_statistics(target.F):
            models = reporting(_models(target, n), n, advance)
            v = directions(torch.stack([input_gradient(f, x, y)[1] for f in models])).v
        return {"gradients": v.transpose(0, 1).to(torch.float16), "cosines": cosines(v), "images": x}

    return target.job(GradientsRecord, {"n": n, "p": target.pixels}, measure, work=2.0 * n)


@measurement(
    "gradient-noise", GradientNoiseRecord, lambda budget: {"n": max(budget.curve_n)}, of_random_networks_only=True
)
def gradient_noise_job(
    target: Target, *, epsilon: float, n: int = PILOT_GRADIENTS, geometry: Geometry = LINF
) -> Job[GradientNoiseRecord]:
    """Measure |mu|, tr Cov, q and rho of n gradients at x0 and where a short attack leads."""

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        view, path = (EOT(target.F, of, fold(target.seed, "gradient noise")) for of in (n, n // 2))
        found: list[dict[str, Tensor]] = []
        points = (x, along_the_attack(path, x, y, epsilon, geometry))
        for point in reporting(points, len(points), advance):
            _, rho, mean_length, trace = noise = gradient_noise(view, PILOT, point, y)
            measured = measured_cosine(view, PILOT, point, y)
            values = {"rho": rho, "mean_length": mean_length, "trace": trace, "q": noise.q}
            found.append({**values, "predicted": noise.cosine_of_two(n), "measured": measured})
        return {name: torch.stack([at[name] for at in found], 1) for name in found[0]}

    norm = {} if isinstance(geometry, Linf) else {"norm": geometry.name}  # as in records from before it was named
    return target.job(GradientNoiseRecord, {"n": n, **norm, "epsilon": epsilon}, measure, work=12.0 * n)


@measurement("nearby", NearbyRecord, lambda budget: {"n": max(budget.curve_n)}, of_random_networks_only=True)
def nearby_job(target: Target, *, epsilon: float, n: int = 20, shares: Sequence[float] = SHARES) -> Job[NearbyRecord]:
    """Measure the mean cosine and length of n gradients at x + d (2u - 1), u uniform, for shares d of epsilon."""
    distances = [share * epsilon for share in shares]

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        u = uniform(fold(target.seed, "nearby", "direction"), ids, target.pixels).reshape(x.shape)
        agreement, lengths = [], []
        for distance in reporting(distances, len(distances), advance):
            point = displaced(x, u, distance)
            with running_statistics(target.F):
                pairs = [input_gradient(f, point, y) for f in _models(target, n)]
            agreement.append(moments_of(pairs).mean_cosine())
            lengths.append(torch.stack([g.flatten(1).norm(dim=1) for _, g in pairs]).mean(0))
        return {"mean_cosine": torch.stack(agreement, 1), "length": torch.stack(lengths, 1)}

    settings = {"n": n, "epsilon": epsilon, "distances": distances}
    return target.job(NearbyRecord, settings, measure, work=2.0 * n * len(distances))


def displaced(x: Float[Tensor, "b ..."], u: Float64[Tensor, "b ..."], distance: float) -> Float[Tensor, "b ..."]:
    """x + distance (2u - 1), reflected at 0 and 1: clipped, the half of all black pixels that u darkens would stay."""
    moved = (x + distance * (2 * u - 1).to(x.dtype)).abs()
    return torch.where(moved > 1, 2 - moved, moved)


@measurement(
    "increase",
    LossIncreaseRecord,
    lambda budget: {"n": max(budget.curve_n), "m": budget.m, "gradients": budget.gradients},
)
def loss_increase_job(
    target: Target, *, epsilon: float, n: int = 20, m: int = 20, fresh: int = 20, gradients: int = GRADIENTS
) -> Job[LossIncreaseRecord]:
    """Measure Delta, the increase of the expected loss under EOT-PGD in l_inf, beside Theorem 1's bound on it.

    fresh: models, which the attack has not seen, that the increase is averaged over.
    gradients: gradients that the expectations of Theorem 1 are taken over.
    """
    attack = PGD(m=m, seed=fold(target.seed, "increase", "attack"))
    settings = {"epsilon": epsilon, "n": n, "m": m, "alpha": attack.alpha, "fresh": fresh, "gradients": gradients}

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        view = EOT(target.F, n, fold(target.seed, "increase", "view"))
        x_adv = attack(view, x, y, epsilon, ids=ids, progress=lambda done, of: advance(n * m / passes * done / of))
        with running_statistics(target.F):
            fresh_models = models_of(target.F, fresh, fold(target.seed, "increase", "fresh"))
            increase = loss_increase(fresh_models, x, y, x_adv - x)
            bound = theorem1(_models(target, gradients), x, y, epsilon, attack.geometry.p)
        return {"increase": increase, **vars(bound)}

    passes = n * m + fresh + gradients
    return target.job(LossIncreaseRecord, settings, measure, work=2.0 * passes)


@measurement("rotation", RotationRecord, lambda budget: {"m": budget.m}, in_both_norms=True)
def rotation_job(
    target: Target, *, epsilon: float, geometry: Geometry = LINF, m: int = 20, angles: Sequence[float] = ANGLES
) -> Job[RotationRecord]:
    """Measure what PGD on one sample model achieves when its gradients are turned by angles of 0 to 180 degrees."""
    attack = RotatedPGD(geometry=geometry, m=m, seed=fold(target.seed, "rotation", "attack"))
    settings = {"norm": geometry.name, "epsilon": epsilon, "m": m, "alpha": attack.alpha, "angles": list(angles)}

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        view = Fixed(target.F, fold(target.seed, "rotation", "model"))
        loss, losses, right = view.loss(0, x, y), [], []
        for angle in reporting(angles, len(angles), advance):
            x_adv = replace(attack, angle=angle)(view, x, y, epsilon, ids=ids)
            losses.append(view.loss(0, x_adv, y))
            right.append(view.logits(0, x_adv).argmax(1) == y)
        return {
            "increase": torch.stack(losses, 1) - loss[:, None],
            "right": torch.stack(right, 1),
            "loss": loss,
            "right_clean": view.logits(0, x).argmax(1) == y,
        }

    return target.job(RotationRecord, settings, measure, work=2.0 * m * len(angles))


def _models(target: Target, n: int) -> Iterator[SampleModel]:
    """Yield the n sample models whose gradients are measured: the same ones in all measurements of a target."""
    if n < 2:
        raise GradDivError(f"n is {n}, expected at least 2 gradients to compare")
    return models_of(target.F, n, fold(target.seed, "gradients"))
