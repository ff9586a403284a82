"""Votes of sample models: their winner, or none, and the radii that randomized smoothing certifies."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from graddiv.errors import GradDivError
from graddiv.evaluation.batches import Advance, Job
from graddiv.evaluation.target import Target
from graddiv.networks import GaussianSmoothing, RandomizedNetwork, running_statistics
from graddiv.records import CertificateRecord
from graddiv.seeding import fold

ABSTAIN = -1
"""The label of an example for which no class is sure enough to win the vote."""

DRAWS = 1000
"""Draws behind a certificate; 100,000 in Cohen et al., which here would take hours."""

CHOOSING = 100
"""Draws that choose the class, apart from those that bound its share."""

ALPHA = 0.001
"""How often a certificate may be wrong by bad luck of the draws."""


class Certificate(NamedTuple):
    """What the vote is sure of, for each example."""

    label: Int64[Tensor, " b"]
    """The winner of the vote, or ABSTAIN."""
    share: Float64[Tensor, " b"]
    """A lower bound, at level 1 - alpha, on the probability that a sample model votes for the winner."""
    radius: Float64[Tensor, " b"]
    """No perturbation shorter than this in the l_2 norm changes the winner; 0 where the network certifies nothing."""


def certify(
    F: RandomizedNetwork, x: Tensor, *, n: int = DRAWS, choosing: int = CHOOSING, alpha: float = ALPHA, seed: int = 0
) -> Certificate:
    """radius = sigma Phi^-1(p), p the Clopper-Pearson lower bound on the share of the class that won another vote.

    F: the network.  Any may vote; a radius needs Gaussian noise, on the image or on a 1-Lipschitz first layer.
    x: the images.
    n: draws that bound the share.
    choosing: draws that choose the class; they must be others, or the bound would not hold.
    alpha: the probability with which the certificate of an example may be wrong.
    seed: addresses the draws.
    """
    from scipy.stats import beta

    _check(n, choosing, alpha)
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


def certificate_job(
    target: Target, directory: Path | None = None, *, draws: int = DRAWS, choosing: int = CHOOSING
) -> Job[CertificateRecord]:
    """Certify every example; the arrays are those of a `Certificate`, and whether the winner is the true class."""
    _check(draws, choosing, ALPHA)
    sigma = target.F.sigma if isinstance(target.F, GaussianSmoothing) else 0.0
    settings = {"draws": draws, "choosing": choosing, "alpha": ALPHA, "sigma": sigma}
    seed = fold(target.seed, "certificate")

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        found = certify(target.F, x, n=draws, choosing=choosing, seed=seed)
        return {"label": found.label, "share": found.share, "radius": found.radius, "correct": found.label == y}

    return target.job(CertificateRecord, settings, directory, measure, work=float(draws + choosing))


def _check(n: int, choosing: int, alpha: float) -> None:
    if n < 1 or choosing < 1 or not 0 < alpha < 1:
        raise GradDivError(
            f"n is {n}, choosing {choosing} and alpha {alpha}, "
            "expected at least one draw of each and a probability between 0 and 1"
        )
