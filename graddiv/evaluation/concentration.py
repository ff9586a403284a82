"""How concentrated the gradients are, how much an adversary gains by it, and what Theorem 1 allows."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid

from graddiv.attacks import EOT, PGD, Fixed, RotatedPGD
from graddiv.directions import vmf
from graddiv.directions.bounds import loss_increase
from graddiv.directions.gradients import directions, input_gradient
from graddiv.directions.regularizers import cosines
from graddiv.errors import GradDivError
from graddiv.evaluation.batches import Advance, Job
from graddiv.evaluation.prediction import models_of
from graddiv.evaluation.target import Target
from graddiv.geometry import Geometry, Linf, per_example
from graddiv.networks import SampleModel, running_statistics
from graddiv.records import ConcentrationRecord, GradientsRecord, LossIncreaseRecord, RotationRecord
from graddiv.seeding import fold

GRADIENTS = 100
"""Gradients from which the paper estimates concentration."""

SHOWN = 4
"""Of so many first examples the gradients themselves are kept."""

ANGLES = tuple(float(angle) for angle in range(0, 91, 10))
"""Degrees by which gradients are rotated."""


class Moments(NamedTuple):
    """Means over the gradients g_i = w_i grad s_i of n sample models, per example, and over their directions v_i.

    Lengths are divided by exp(log_scale), the greatest weight, as weights may underflow.
    """

    n: int
    resultant: Float64[Tensor, "b p"]
    """1/n sum_i v_i."""
    gradient: Float64[Tensor, "b p"]
    """1/n sum_i g_i."""
    length: Float64[Tensor, " b"]
    """1/n sum_i |g_i|."""
    longest: Float64[Tensor, " b"]
    """max_i |g_i|."""
    log_scale: Float64[Tensor, " b"]
    usable: Bool[Tensor, " b"]
    """Whether all n gradients have a direction."""

    def rho(self, q: float = 2.0) -> Float64[Tensor, " b"]:
        """|1/n sum_i v_i|_q; NaN where not all gradients have a direction."""
        return self._if_usable(vmf.mrl(self.resultant[None], q))

    def mean_cosine(self) -> Float64[Tensor, " b"]:
        """c = (n rho^2 - 1) / (n - 1), the mean over pairs; 1 for the only gradient of a deterministic network."""
        if self.n == 1:
            return self._if_usable(torch.ones_like(self.length))
        return (self.n * self.rho() ** 2 - 1) / (self.n - 1)

    def norm_ratio(self) -> Float64[Tensor, " b"]:
        """|E g| / E |g|."""
        ratio: Tensor = torch.linalg.vector_norm(self.gradient, dim=1) / self.length
        return ratio

    def _if_usable(self, values: Tensor) -> Tensor:
        return torch.where(self.usable, values, torch.nan)


def moments(models: Iterable[SampleModel], x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"]) -> Moments:
    """Running sums over the models, one gradient at a time: memory does not grow with their number."""
    zeros = torch.zeros(len(x), x[0].numel(), dtype=torch.float64, device=x.device)
    resultant, gradient = zeros, zeros
    length, longest = zeros[:, 0], zeros[:, 0]
    top, usable, n = torch.full_like(length, -torch.inf), torch.ones_like(length, dtype=torch.bool), 0
    for f in models:
        s, g = input_gradient(f, x, y)
        found = directions(g[None])
        resultant, usable, n = resultant + found.v[0], usable & found.usable, n + 1
        log_w = logsigmoid(s.double())
        new_top = torch.maximum(top, log_w)
        before, weight, g = (top - new_top).exp(), (log_w - new_top).exp(), g.flatten(1).double()
        size = weight * torch.linalg.vector_norm(g, dim=1)
        gradient = gradient * per_example(before, g) + g * per_example(weight, g)
        length, longest, top = length * before + size, torch.maximum(longest * before, size), new_top
    return Moments(n, resultant / n, gradient / n, length / n, longest, top, usable)


def concentration_job(target: Target, directory: Path | None = None, *, n: int = GRADIENTS) -> Job[ConcentrationRecord]:
    """kappa^ and all that measures how much n gradients point the same way, for every example.

    Arrays: rho, rho_1 (in the l_1 norm), rho_debiased, mean_cosine, kappa (the paper's estimate), kappa_mle (the exact
    one), norm_ratio (|E g| / E |g|), and usable: whether all gradients have a direction; NaN where not.
    """
    p = _pixels(target, n)

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        with running_statistics(target.F):
            found = moments(_told(_models(target, n), n, advance), x, y)
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
    target: Target, directory: Path | None = None, *, n: int = GRADIENTS, examples: int = SHOWN
) -> Job[GradientsRecord]:
    """The first examples' unit gradients, their cosines and the images: scatter plots and matrices are made of these.

    Arrays: gradients (k x n x p, float16), cosines (k x n x n), images.
    """
    p, target = _pixels(target, n), target.first(examples)

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        with running_statistics(target.F):
            models = _told(_models(target, n), n, advance)
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
    """Delta under EOT-PGD, on fresh models; beside it Theorem 1's bound for a step of length epsilon, in l_inf.

    Arrays: increase (Delta), first_order = epsilon |E g|_1, theorem = epsilon M_X rho_1 with M_X = max_i |g_i|_2, the
    bound on it, tightness = first_order / theorem, holds = whether it is at most 1, excess = |E g|_1 / (E|g| rho_1).
    The bound is one on small steps: Delta itself may exceed it where the loss is not linear on the way.
    """
    _pixels(target, gradients)
    attack = PGD(m=m, seed=fold(target.seed, "increase", "attack"))
    settings = {"epsilon": epsilon, "n": n, "m": m, "alpha": attack.alpha, "fresh": fresh, "gradients": gradients}

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        view = EOT(target.F, n, fold(target.seed, "increase", "view"))
        x_adv = attack(view, x, y, epsilon, ids=ids, progress=lambda done, of: advance(n * m / passes * done / of))
        with running_statistics(target.F):
            judges = models_of(target.F, fresh, fold(target.seed, "increase", "fresh"))
            delta = loss_increase(judges, x, y, x_adv - x)
            found = moments(_models(target, gradients), x, y)
        scale, rho_1 = epsilon * found.log_scale.exp(), found.rho(1.0)
        attained: Tensor = torch.linalg.vector_norm(found.gradient, ord=1, dim=1)
        return {
            "increase": delta,
            "first_order": scale * attained,
            "theorem": scale * found.longest * rho_1,
            "tightness": attained / (found.longest * rho_1),
            "holds": attained <= found.longest * rho_1 * (1 + 1e-9),
            "excess": attained / (found.length * rho_1),
        }

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
    """What PGD on one sample model still achieves, on that model, when its gradients are turned by an angle.

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
    """The same n models for everything that is said about gradients."""
    return models_of(target.F, n, fold(target.seed, "gradients"))


def _told(models: Iterable[SampleModel], n: int, advance: Advance) -> Iterator[SampleModel]:
    for number, f in enumerate(models):
        yield f
        advance((number + 1) / n)


def _pixels(target: Target, n: int) -> int:
    """The dimension of a gradient, once n is enough of them."""
    if n < 2:
        raise GradDivError(f"n is {n}, expected at least 2 gradients to compare")
    return target.pixels
