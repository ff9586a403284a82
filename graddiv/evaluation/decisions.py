"""Measurements of what sample models decide: regions, votes and their certificates, ensembles, transfer."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, UInt8
from torch import Tensor

from graddiv.attacks import EOT, PGD, Given
from graddiv.errors import GradDivError
from graddiv.evaluation.measurements import measurement
from graddiv.evaluation.run import Advance, Job, reporting
from graddiv.evaluation.target import Target
from graddiv.geometry import NORMS, per_example
from graddiv.networks import GaussianSmoothing, RandomizedNetwork, running_statistics
from graddiv.networks.prediction import count_models, logits_from, models_of, predict, score
from graddiv.records import BoundaryRecord, CertificateRecord, EnsembleSizeRecord, TransferRecord
from graddiv.seeding import fold, uniform

REACH = 3.0  #: How far the plane of decision regions extends from the image, in lengths of the perturbation.
ABSTAIN = -1  #: The label of an example for which no class is sure enough to win the vote.
DRAWS = 1000  #: Draws behind a certificate; 100,000 in Cohen et al., which here would take hours.
CHOOSING = 100  #: Draws that choose the class, apart from those that bound its share.
ALPHA = 0.001  #: How often a certificate may be wrong by bad luck of the draws.


@measurement("boundary", BoundaryRecord, lambda budget: {"grid": budget.grid})
def boundary_job(
    target: Target, *, epsilon: float, examples: int = 4, models: int = 10, grid: int = 41, n: int = 10, m: int = 20
) -> Job[BoundaryRecord]:
    """The class that each sample model, and last the ensemble, names at x + c_i axis_1 + c_j axis_2, cut to the box.

    The axes are perturbations of two runs of EOT-PGD, the second made orthogonal to the first and as long.
    """
    target = target.first(examples)
    models = min(models, count_models(target.F, max(models, target.n_ensemble)))
    attack = PGD(m=m, random_start=True)
    low, high = attack.geometry.bounds
    coordinates = torch.linspace(-REACH, REACH, grid, dtype=torch.float64)
    settings = {"epsilon": epsilon, "n": n, "m": m, "models": models, "coordinates": coordinates.tolist()}

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        found = []
        for run in reporting(range(2), 2, advance, end=0.5):
            seed = fold(target.seed, "boundary", run)
            x_adv = replace(attack, seed=seed)(EOT(target.F, n, seed), x, y, epsilon, ids=ids)
            found.append(x_adv - x)
        axes = torch.stack([found[0], _second_axis(found[0], found[1], ids)], 1)
        c = coordinates.to(x)
        regions = []
        for number in reporting(range(len(x)), len(x), advance, start=0.5):
            plane = x[number] + torch.einsum("i,...->i...", c, axes[number, 0])[:, None]
            points = (plane + torch.einsum("j,...->j...", c, axes[number, 1])[None]).flatten(0, 1).clamp(low, high)
            regions.append(_predicted_classes(target, points, models).reshape(models + 1, grid, grid))
        return {"regions": torch.stack(regions), "axes": axes, "images": x}

    work = 4.0 * n * m + grid**2 / target.batch * examples * target.n_ensemble
    return target.job(BoundaryRecord, settings, measure, work=work)


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


@measurement("ensemble", EnsembleSizeRecord, lambda budget: {"n": budget.gradients})
def ensemble_size_job(target: Target, *, n: int = 100) -> Job[EnsembleSizeRecord]:
    """right[., i] = whether the ensemble of the first i + 1 of the models that judge attacks is right on the image."""

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        total, right = torch.zeros((), dtype=torch.float64, device=x.device), []
        with torch.no_grad(), running_statistics(target.F):
            for f in models_of(target.F, n, fold(target.seed, "ensemble", 0, 0)):
                total = total + score(logits_from(f, x), "softmax")
                right.append(total.argmax(1) == y)
        return {"right": torch.stack(right, 1)}

    return target.job(EnsembleSizeRecord, {"n": n}, measure, work=float(n))


@measurement(
    "transfer", TransferRecord, lambda budget: {"k": budget.models, "m": budget.m}, of_random_networks_only=True
)
def transfer_job(target: Target, *, epsilon: float, k: int = 50, m: int = 20) -> Job[TransferRecord]:
    """right[., i, j] = whether f_j is right on the image that PGD made to fool f_i; one model in memory at a time."""
    if not target.random or k < 2:
        raise GradDivError(
            f"a transfer matrix of {k if target.random else 1} models has nothing off its diagonal: "
            "expected a randomized network and k of 2 or more"
        )
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
    return target.job(TransferRecord, settings, measure, work=work)


class Certificate(NamedTuple):
    """What the vote is sure of, for each example."""

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

    if n < 1 or choosing < 1 or not 0 < alpha < 1:
        raise GradDivError(
            f"n is {n}, choosing {choosing} and alpha {alpha}, "
            "expected at least one draw of each and a probability between 0 and 1"
        )
    winner = votes(F, x, choosing, fold(seed, "choosing")).argmax(1)
    counts = votes(F, x, n, fold(seed, "counting")).gather(1, winner[:, None]).squeeze(1).cpu().numpy()
    share = torch.from_numpy(np.where(counts > 0, beta.ppf(alpha, np.maximum(counts, 1), n - counts + 1), 0.0))
    share = share.to(x.device)
    sure = share > 0.5
    sigma = F.sigma if isinstance(F, GaussianSmoothing) else 0.0
    radius = torch.where(sure, sigma * torch.special.ndtri(share.clamp(0.5, 1 - 1e-15)), 0.0)
    return Certificate(torch.where(sure, winner, ABSTAIN), share, radius)


def votes(F: RandomizedNetwork, x: Tensor, n: int, seed: int) -> Int64[Tensor, "b c"]:
    """How many of n sample models vote for each class; the models are independent, though few may be possible."""
    counts = torch.zeros((), dtype=torch.int64, device=x.device)
    with torch.no_grad(), running_statistics(F):
        theta = F.theta()
        for i in range(n):
            z = F.bind(F.draw(fold(seed, "model", i)), theta)(x)
            counts = counts + torch.nn.functional.one_hot(z.argmax(1), z.shape[1])
    return counts


@measurement("certificate", CertificateRecord, lambda budget: {"draws": budget.draws}, of_random_networks_only=True)
def certificate_job(target: Target, *, draws: int = DRAWS, choosing: int = CHOOSING) -> Job[CertificateRecord]:
    """Certify every example; the arrays are those of a `Certificate`, and whether the winner is the true class."""
    sigma = target.F.sigma if isinstance(target.F, GaussianSmoothing) else 0.0
    settings = {"draws": draws, "choosing": choosing, "alpha": ALPHA, "sigma": sigma}
    seed = fold(target.seed, "certificate")

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        found = certify(target.F, x, n=draws, choosing=choosing, seed=seed)
        return {**found._asdict(), "correct": found.label == y}

    return target.job(CertificateRecord, settings, measure, work=float(draws + choosing))
