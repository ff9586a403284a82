"""The measurements of gradients, of what an adversary gains, and of sample models' answers.  See docs/equations.md."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, UInt8
from torch import Tensor

from graddiv.attacks import EOT, PGD, Fixed, Given, RotatedPGD, StochasticPGD
from graddiv.attacks.spgd import PILOT, gradient_noise, measured_cosine
from graddiv.diversity import concentration as vmf
from graddiv.diversity.concentration import loss_increase, moments, moments_of, theorem1
from graddiv.diversity.gradients import directions, input_gradient
from graddiv.diversity.regularizers import cosines
from graddiv.errors import GradDivError
from graddiv.evaluation.measurements import measurement
from graddiv.evaluation.run import Advance, Job, reporting
from graddiv.evaluation.target import Target
from graddiv.geometry import LINF, NORMS, Geometry, Linf, per_example
from graddiv.networks import GaussianSmoothing, RandomizedNetwork, SampleModel, running_statistics
from graddiv.networks.prediction import count_models, logits_from, models_of, predict, score
from graddiv.records import PathRecord, kinds
from graddiv.seeding import fold, uniform

GRADIENTS = 100  #: Gradients, one for each sample model, from which the paper estimates concentration.
#: The angles, in degrees, by which gradients are rotated in the paper's cosine figure.
ANGLES = tuple(float(angle) for angle in range(0, 91, 10))
SHARES = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)  #: Distances from the example, as shares of epsilon.
STEPS = (0, 1, 2, 3, 5, 10, 20)  #: Steps of EOT-PGD after which gradients are compared; 0 is the clean image.
REACH = 3.0  #: How far the plane of decision regions extends from the image, in lengths of the perturbation.
ABSTAIN = -1  #: The label of an example for which no class is sure enough to win the vote.
DRAWS = 1000  #: Draws behind a certificate; 100,000 in Cohen et al., which here would take hours.
CHOOSING = 100  #: Draws that choose the class, apart from those that bound its share.
ALPHA = 0.001  #: The probability that a certificate is wrong because of unlucky draws.


@measurement("concentration", kinds.ConcentrationRecord, lambda budget: {"n": budget.gradients})
def concentration_job(target: Target, *, n: int = GRADIENTS) -> Job[kinds.ConcentrationRecord]:
    """Measure how much the gradients of n sample models point the same way, by kappa^ and others, for every example."""
    _check_two(n)
    p = target.pixels

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        with running_statistics(target.F):
            found = moments(reporting(_models(target, n), n, advance), x, y)
        rho, c = found.rho(), found.mean_cosine()
        rhos = {"rho": rho, "rho_1": found.rho(1.0), "rho_debiased": c.clamp_min(0).sqrt(), "mean_cosine": c}
        exact = torch.where(found.usable, vmf.kappa_mle(rho.nan_to_num(0.0), p), torch.nan)
        kappas = {"kappa": vmf.kappa_approximate(rho, p), "kappa_mle": exact}
        return {**rhos, **kappas, "norm_ratio": found.norm_ratio(), "usable": found.usable}

    return target.job(kinds.ConcentrationRecord, {"n": n, "p": p}, measure, work=2.0 * n)


@measurement("gradients", kinds.GradientsRecord, lambda budget: {"n": budget.gradients})
def gradients_job(target: Target, *, n: int = GRADIENTS, examples: int = 4) -> Job[kinds.GradientsRecord]:
    """Store n unit gradients of the first examples, their cosines and the images, for scatter plots and matrices."""
    _check_two(n)
    target = target.take(slice(0, examples))

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        with running_statistics(target.F):
            models = reporting(_models(target, n), n, advance)
            v = directions(torch.stack([input_gradient(f, x, y)[1] for f in models])).v
        return {"gradients": v.transpose(0, 1).to(torch.float16), "cosines": cosines(v), "images": x}

    return target.job(kinds.GradientsRecord, {"n": n, "p": target.pixels}, measure, work=2.0 * n)


@measurement(
    "gradient-noise", kinds.GradientNoiseRecord, lambda budget: {"n": max(budget.curve_n)}, of_random_networks_only=True
)
def gradient_noise_job(
    target: Target, *, epsilon: float, n: int = 20, geometry: Geometry = LINF
) -> Job[kinds.GradientNoiseRecord]:
    """Measure |mu|, tr Cov, q and rho of n gradients at x0 and where a short attack leads."""
    _check_two(n)

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        view, path = (EOT(target.F, of, fold(target.seed, "gradient noise")) for of in (n, n // 2))
        found: list[dict[str, Tensor]] = []
        points = (x, StochasticPGD(geometry, m=10)(path, x, y, epsilon))
        for point in reporting(points, len(points), advance):
            noise = gradient_noise(view, PILOT, point, y)
            cosines_of_two = {"predicted": noise.cosine_of_two(n), "measured": measured_cosine(view, PILOT, point, y)}
            found.append({**noise._asdict(), "q": noise.q, **cosines_of_two})
        return _columns(found)

    norm = {} if isinstance(geometry, Linf) else {"norm": geometry.name}  # as in records from before it was named
    return target.job(kinds.GradientNoiseRecord, {"n": n, **norm, "epsilon": epsilon}, measure, work=12.0 * n)


@measurement("nearby", kinds.NearbyRecord, lambda budget: {"n": max(budget.curve_n)}, of_random_networks_only=True)
def nearby_job(
    target: Target, *, epsilon: float, n: int = 20, shares: Sequence[float] = SHARES
) -> Job[kinds.NearbyRecord]:
    """Measure the mean cosine and length of n gradients at x + d (2u - 1), u uniform, for shares d of epsilon."""
    _check_two(n)
    distances = [share * epsilon for share in shares]

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        u = uniform(fold(target.seed, "nearby", "direction"), ids, target.pixels).reshape(x.shape)
        points = (displaced(x, u, distance) for distance in reporting(distances, len(distances), advance))
        found = _gradients_at(target, n, points, y)
        return {name: found[name] for name in ("mean_cosine", "length")}

    settings = {"n": n, "epsilon": epsilon, "distances": distances}
    return target.job(kinds.NearbyRecord, settings, measure, work=2.0 * n * len(distances))


@measurement("path", PathRecord, lambda budget: {"n": max(budget.curve_n)}, of_random_networks_only=True)
def path_job(target: Target, *, epsilon: float, n: int = 20) -> Job[PathRecord]:
    """Measure mean cosine and length of n gradients, and the soft margin, at steps of EOT-PGD.

    The models that measure are the same at every step and were never seen by the attack.
    """
    view = EOT(target.F, n, fold(target.seed, "path", "view"))

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        # views are pure in the step, so that the first m steps are the same in every PGD without a random start
        steps = reporting(STEPS, len(STEPS), advance)
        points = (PGD(m=m, alpha=0.25)(view, x, y, epsilon, ids=ids) if m else x for m in steps)
        return _gradients_at(target, n, points, y)

    settings = {"n": n, "epsilon": epsilon, "steps": list(STEPS)}
    return target.job(PathRecord, settings, measure, work=2.0 * n * (sum(STEPS) + len(STEPS)))


def _gradients_at(target: Target, n: int, points: Iterable[Tensor], y: Tensor) -> dict[str, Tensor]:
    """A column for each point: mean cosine and length of n gradients, and the mean soft margin."""
    found = []
    for point in points:
        with running_statistics(target.F):
            pairs = [input_gradient(f, point, y) for f in _models(target, n)]
        length = torch.stack([g.flatten(1).norm(dim=1) for _, g in pairs]).mean(0)
        margin = torch.stack([s for s, _ in pairs]).mean(0)
        found.append({"mean_cosine": moments_of(pairs).mean_cosine(), "length": length, "margin": margin})
    return _columns(found)


def _columns(found: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([at[name] for at in found], 1) for name in found[0]}


def displaced(x: Float[Tensor, "b ..."], u: Float64[Tensor, "b ..."], distance: float) -> Float[Tensor, "b ..."]:
    """x + distance (2u - 1), reflected at 0 and 1: clipped, the half of all black pixels that u darkens would stay."""
    moved = (x + distance * (2 * u - 1).to(x.dtype)).abs()
    return torch.where(moved > 1, 2 - moved, moved)


@measurement(
    "increase",
    kinds.LossIncreaseRecord,
    lambda budget: {"n": max(budget.curve_n), "m": budget.m, "gradients": budget.gradients},
)
def loss_increase_job(
    target: Target, *, epsilon: float, n: int = 20, m: int = 20, fresh: int = 20, gradients: int = GRADIENTS
) -> Job[kinds.LossIncreaseRecord]:
    """Measure Delta, the increase of the loss of `fresh` models under EOT-PGD, beside Theorem 1's bound."""
    _check_two(gradients)
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
    return target.job(kinds.LossIncreaseRecord, settings, measure, work=2.0 * passes)


@measurement("rotation", kinds.RotationRecord, lambda budget: {"m": budget.m}, in_both_norms=True)
def rotation_job(
    target: Target, *, epsilon: float, geometry: Geometry = LINF, m: int = 20, angles: Sequence[float] = ANGLES
) -> Job[kinds.RotationRecord]:
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
        clean = {"loss": loss, "right_clean": view.logits(0, x).argmax(1) == y}
        return {"increase": torch.stack(losses, 1) - loss[:, None], "right": torch.stack(right, 1), **clean}

    return target.job(kinds.RotationRecord, settings, measure, work=2.0 * m * len(angles))


def _models(target: Target, n: int) -> Iterator[SampleModel]:
    """Yield the n sample models whose gradients are measured: the same ones in all measurements of a target."""
    return models_of(target.F, n, fold(target.seed, "gradients"))


def _check_two(n: int) -> None:
    if n < 2:
        raise GradDivError(f"n is {n}, expected at least 2 gradients to compare")


@measurement("boundary", kinds.BoundaryRecord, lambda budget: {"grid": budget.grid})
def boundary_job(
    target: Target, *, epsilon: float, examples: int = 4, models: int = 10, grid: int = 41, n: int = 10, m: int = 20
) -> Job[kinds.BoundaryRecord]:
    """The class that each sample model, and last the ensemble, predicts at x + c_i axis_1 + c_j axis_2, clipped.

    The axes are perturbations of two runs of EOT-PGD, the second made orthogonal to the first and as long.
    """
    target = target.take(slice(0, examples))
    models = min(models, count_models(target.F, max(models, target.n_ensemble)))
    attack = PGD(m=m, random_start=True)
    low, high = attack.geometry.bounds
    coordinates = torch.linspace(-REACH, REACH, grid, dtype=torch.float64)
    settings = {"epsilon": epsilon, "n": n, "m": m, "models": models, "coordinates": coordinates.tolist()}

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        found = []
        for run in reporting(range(2), 2, advance, end=0.5):
            seed = fold(target.seed, "boundary", run)
            found.append(replace(attack, seed=seed)(EOT(target.F, n, seed), x, y, epsilon, ids=ids) - x)
        axes = torch.stack([found[0], _second_axis(found[0], found[1], ids)], 1)
        c, regions = coordinates.to(x), []
        for image, (along, across) in reporting(zip(x, axes, strict=True), len(x), advance, start=0.5):
            plane = image + torch.einsum("i,...->i...", c, along)[:, None]
            points = (plane + torch.einsum("j,...->j...", c, across)[None]).flatten(0, 1).clamp(low, high)
            regions.append(_predicted_classes(target, points, models).reshape(models + 1, grid, grid))
        return {"regions": torch.stack(regions), "axes": axes, "images": x}

    work = 4.0 * n * m + grid**2 / target.batch * examples * target.n_ensemble
    return target.job(kinds.BoundaryRecord, settings, measure, work=work)


def _predicted_classes(target: Target, points: Float[Tensor, "g ..."], models: int) -> UInt8[Tensor, "k g"]:
    """Return the class at each point: for each of the first `models` members of the ensemble, then for the ensemble."""
    predict(target.F, points[:2], n=1)  # lets a foreign network find out whether its models are pointwise
    n, seed = max(models, target.n_ensemble), fold(target.seed, "boundary", "models")
    parts = torch.split(points, target.batch if target.F.pointwise else 1)
    said = [predict(target.F, part, n=n, seed=seed) for part in parts]
    answers, label = torch.cat([each.answers for each in said], 1), torch.cat([each.label for each in said])
    return torch.stack([*answers[:models], label]).to(torch.uint8)


def _second_axis(first: Float[Tensor, "b ..."], second: Float[Tensor, "b ..."], ids: Tensor) -> Float[Tensor, "b ..."]:
    """Return the part of `second` orthogonal to `first`, or a random direction where none is left, as long as it."""
    noise = (uniform(0, ids, first[0].numel()) - 0.5).to(first.dtype).reshape(first.shape)
    length = NORMS["l2"].norm
    unit = first / per_example(length(first).clamp_min(1e-30), first)
    rest, other = (v - per_example((v * unit).flatten(1).sum(1), unit) * unit for v in (second, noise))
    rest = torch.where(per_example(length(rest) > 1e-3 * length(second), rest), rest, other)
    return rest * per_example(length(first) / length(rest).clamp_min(1e-30), rest)


@measurement("ensemble", kinds.EnsembleSizeRecord, lambda budget: {"n": budget.gradients})
def ensemble_size_job(target: Target, *, n: int = 100) -> Job[kinds.EnsembleSizeRecord]:
    """right[., i] = whether the ensemble of the first i + 1 of the models that judge attacks is right on the image."""

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        return {"right": right_by_size(target.F, x, y, n, fold(target.seed, "ensemble", 0, 0))}

    return target.job(kinds.EnsembleSizeRecord, {"n": n}, measure, work=float(n))


@measurement(
    "ensemble-size-attacked", kinds.AttackedEnsembleRecord, lambda budget: {"n": budget.gradients, "m": budget.m}
)
def attacked_ensemble_job(
    target: Target, *, epsilon: float, n: int = 100, m: int = 20, models: int = 20
) -> Job[kinds.AttackedEnsembleRecord]:
    """Measure whether ensembles of 1, 2, .. n models are right on the images of EOT-PGD, which saw none of them."""
    view = EOT(target.F, models, fold(target.seed, "ensemble size", "view"))

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        x_adv = PGD(m=m)(view, x, y, epsilon, ids=ids, progress=lambda done, of: advance(done / of))
        return {"right": right_by_size(target.F, x_adv, y, n, fold(target.seed, "ensemble size"))}

    settings = {"n": n, "m": m, "models": models, "epsilon": epsilon}
    return target.job(kinds.AttackedEnsembleRecord, settings, measure, work=2.0 * models * m + n)


def right_by_size(F: RandomizedNetwork, x: Tensor, y: Tensor, n: int, seed: int) -> Bool[Tensor, "b n"]:
    """Whether the ensembles of the first 1, 2, .. n sample models are right."""
    with torch.no_grad(), running_statistics(F):
        totals = accumulate(score(logits_from(f, x), "softmax") for f in models_of(F, n, seed))
        return torch.stack([total.argmax(1) == y for total in totals], 1)


@measurement(
    "transfer", kinds.TransferRecord, lambda budget: {"k": budget.models, "m": budget.m}, of_random_networks_only=True
)
def transfer_job(target: Target, *, epsilon: float, k: int = 50, m: int = 20) -> Job[kinds.TransferRecord]:
    """right[., i, j] = whether f_j is right on the image that PGD made to fool f_i; one model in memory at a time."""
    if (given := k if target.random else 1) < 2:
        said = f"a transfer matrix of {given} models has nothing off its diagonal"
        raise GradDivError(f"{said}: expected a randomized network and k of 2 or more")
    attack, seed = PGD(m=m), fold(target.seed, "transfer")
    settings = {"k": k, "epsilon": epsilon, "m": m, "alpha": attack.alpha}

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        sources, right = [], []
        with running_statistics(target.F), torch.no_grad():
            for f in reporting(models_of(target.F, k, seed), models, advance, end=share):
                sources.append(attack(Given([f]), x, y, epsilon, ids=ids))
            for f in reporting(models_of(target.F, k, seed), models, advance, start=share):
                # in the batches in which they were attacked: a foreign sample model may depend on the batch
                right.append(torch.stack([f(x_adv).argmax(1) == y for x_adv in sources], 1))
        return {"right": torch.stack(right, 2)}

    models = count_models(target.F, k)
    work = 2.0 * models * m + models * models
    share = 2.0 * models * m / work
    return target.job(kinds.TransferRecord, settings, measure, work=work)


class Certificate(NamedTuple):
    """The certified result of the vote, for each example."""

    label: Int64[Tensor, " b"]  #: The winner of the vote, or ABSTAIN.
    share: Float64[Tensor, " b"]  #: Lower bound, at level 1 - alpha, on the probability of a vote for the winner.
    radius: Float64[Tensor, " b"]  #: No shorter perturbation in l_2 changes the winner; 0 where nothing is certified.


def certify(
    F: RandomizedNetwork, x: Tensor, *, n: int = DRAWS, choosing: int = CHOOSING, alpha: float = ALPHA, seed: int = 0
) -> Certificate:
    """radius = sigma Phi^-1(p), p the Clopper-Pearson lower bound on the share of the class that won another vote.

    Any network may vote; a radius needs Gaussian noise, on the image or on a 1-Lipschitz first layer.

    n, choosing: draws that bound the share, and other ones that choose the class.
    alpha: the probability with which the certificate of an example may be wrong.
    """
    from scipy.stats import beta

    _check_draws(n, choosing, alpha)
    winner = votes(F, x, choosing, fold(seed, "choosing")).argmax(1)
    counts = votes(F, x, n, fold(seed, "counting")).gather(1, winner[:, None]).squeeze(1).cpu().numpy()
    share = torch.from_numpy(np.where(counts > 0, beta.ppf(alpha, np.maximum(counts, 1), n - counts + 1), 0.0))
    share = share.to(x.device)
    sure = share > 0.5
    sigma = F.sigma if isinstance(F, GaussianSmoothing) else 0.0
    radius = torch.where(sure, sigma * torch.special.ndtri(share.clamp(0.5, 1 - 1e-15)), 0.0)
    return Certificate(torch.where(sure, winner, ABSTAIN), share, radius)


def votes(F: RandomizedNetwork, x: Tensor, n: int, seed: int) -> Int64[Tensor, "b c"]:
    """Count the votes of n sample models for each class; the models are independent, even if few are possible."""
    counts = torch.zeros((), dtype=torch.int64, device=x.device)
    with torch.no_grad(), running_statistics(F):
        theta = F.theta()
        for i in range(n):
            z = F.bind(F.draw(fold(seed, "model", i)), theta)(x)
            counts = counts + torch.nn.functional.one_hot(z.argmax(1), z.shape[1])
    return counts


@measurement(
    "certificate", kinds.CertificateRecord, lambda budget: {"draws": budget.draws}, of_random_networks_only=True,
    made_for=GaussianSmoothing,
)  # fmt: skip
def certificate_job(target: Target, *, draws: int = DRAWS, choosing: int = CHOOSING) -> Job[kinds.CertificateRecord]:
    """Certify every example; the arrays are those of a `Certificate`, and whether the winner is the true class."""
    _check_draws(draws, choosing, ALPHA)
    sigma = target.F.sigma if isinstance(target.F, GaussianSmoothing) else 0.0
    settings = {"draws": draws, "choosing": choosing, "alpha": ALPHA, "sigma": sigma}
    seed = fold(target.seed, "certificate")

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        found = certify(target.F, x, n=draws, choosing=choosing, seed=seed)
        return {**found._asdict(), "correct": found.label == y}

    return target.job(kinds.CertificateRecord, settings, measure, work=float(draws + choosing))


def _check_draws(n: int, choosing: int, alpha: float) -> None:
    if n < 1 or choosing < 1 or not 0 < alpha < 1:
        found = f"n is {n}, choosing {choosing} and alpha {alpha}"
        raise GradDivError(f"{found}, expected at least one draw of each and a probability between 0 and 1")
