"""Three numbers, never one: accuracy per draw, of the ensemble, and in the worst of k draws.

Images are chosen on the draws that attacks were judged by, and scored on draws that had no part in that choice.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from graddiv.evaluation.batches import Advance, Job
from graddiv.evaluation.prediction import predict
from graddiv.evaluation.target import Target
from graddiv.networks import running_statistics
from graddiv.records import AttackRecord, JudgementRecord, summary, wilson
from graddiv.seeding import fold

WORST_OF = (1, 2, 5, 10, 20, 50, 100)
"""How often a persistent attacker may try."""

MOST_OUTCOMES = 64
"""Up to so many values of the noise are gone through one by one."""


class Estimate(NamedTuple):
    """An accuracy, and how far other images or other draws might move it."""

    mean: float
    low: float
    high: float
    """A 95 % interval over images (Wilson)."""
    spread: float = 0.0
    """Standard deviation over ensembles."""

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f})"


class ThreeNumbers(NamedTuple):
    """What the same images mean for three ways to use a randomized network."""

    per_draw: Estimate
    """One draw answers."""
    ensemble: Estimate
    """The mean softmax of n_ensemble draws answers."""
    worst: Mapping[int, Estimate]
    """k draws answer one after the other, and one wrong answer is enough: the attacker who tries again."""
    exact: bool
    """Whether the first and the last are exact, because the noise has finitely many values."""


def judgement_job(
    target: Target, of: str, directory: Path | None = None, *, ensembles: int = 10
) -> Job[JudgementRecord]:
    """Judge images by `ensembles` times n_ensemble draws: each alone, and each n_ensemble of them together."""
    F, T = target.F, target.n_ensemble
    seed = fold(target.seed, "judgement")
    support = F.support() if F.random else None
    known = support if support is not None and len(support.noises) <= MOST_OUTCOMES else None

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        right, correct = [], []
        for number in range(ensembles if F.random else 1):
            said = predict(F, x, n=T, seed=fold(seed, number))
            right.append(said.answers == y)
            correct.append(said.label == y)
            advance((number + 1) / ensembles)
        found = torch.cat(right)
        share = found.double().mean(0)
        if known is not None:
            with torch.no_grad(), running_statistics(F):
                answers = torch.stack([F.bind(noise)(x).argmax(1) == y for noise in known.noises])
            share = (known.probabilities.to(x.device)[:, None] * answers).sum(0)
        return {"right": found.T, "correct": torch.stack(correct, 1), "share": share}

    outcomes = len(known.noises) if known is not None else 0
    settings = {"of": of, "images": images_hash(target.data.batch(slice(None))[0]), "outcomes": outcomes}
    return target.job(JudgementRecord, settings, directory, measure, work=float(ensembles * T))


def three_numbers(of_ensemble: JudgementRecord, record: JudgementRecord) -> ThreeNumbers:
    """What two records of judgement say, with intervals: one of images for the ensemble, one for single draws."""
    b = record.examples
    per_draw, ensemble = record.share.mean(), summary(list(of_ensemble.correct.T))
    spread = 0.0 if np.isnan(ensemble.std) else ensemble.std
    draws = record.right.shape[1]
    exact = record.outcomes > 0 or draws == 1
    sizes = [k for k in WORST_OF if exact or k <= draws]
    worst = {k: float(worst_of(record, k).mean()) for k in sizes}
    return ThreeNumbers(
        _estimate(float(per_draw), b),
        Estimate(ensemble.mean, *ensemble.interval, spread),
        {k: _estimate(mean, b) for k, mean in worst.items()},
        exact,
    )


def worst_of(record: JudgementRecord, k: int) -> Float[np.ndarray, " b"]:
    """C(N - e, k) / C(N, k) for e errors among N draws: unbiased for the probability that k draws are all right.

    share^k where the share is exact; the same of an estimated share would be too high.
    """
    draws = record.right.shape[1]
    if record.outcomes > 0 or draws == 1:
        return record.share.astype(np.float64) ** k
    rights = record.right.sum(1)[:, None] - np.arange(k)
    chances: np.ndarray = np.prod(np.maximum(rights, 0) / (draws - np.arange(k)), axis=1)
    return chances


def _estimate(mean: float, examples: int) -> Estimate:
    """With Wilson's interval, which is too wide rather than too narrow where images are right on some draws only."""
    return Estimate(mean, *wilson(mean * examples, examples))


class Worst(NamedTuple):
    """For every image the attack that did worst to it, and what that attack made of it."""

    images: Float[np.ndarray, "b ..."]
    """For the ensemble: chosen by its margin, over both ensembles that judged."""
    attack: Int64[np.ndarray, " b"]
    """The number of the attack among the records that made each of them."""
    images_per_draw: Float[np.ndarray, "b ..."]
    """For single draws: chosen by how many of them are right, and where that is equal by the margin."""


def worst_images(records: Sequence[AttackRecord]) -> Worst:
    """Choose for each image the attack that did worst to it; of equal ones the first."""
    margins = np.nan_to_num(np.stack([(r.margin + r.margin_again) / 2 for r in records]), nan=-np.inf)
    wrong = np.stack([(~r.right).mean(1) for r in records])
    by_draws = wrong + 1e-6 * np.tanh(margins)  # a draw among the 20 that judge counts for far more
    chosen, chosen_per_draw = margins.argmax(0), by_draws.argmax(0)

    def images(numbers: np.ndarray) -> np.ndarray:
        return np.stack([records[number].images[place] for place, number in enumerate(numbers)])

    return Worst(images(chosen), chosen, images(chosen_per_draw))


def images_hash(x: Tensor | np.ndarray) -> str:
    """sha256 of the shape and of the pixels in float32: names a set of images."""
    pixels = np.ascontiguousarray(x.detach().cpu().numpy() if isinstance(x, Tensor) else x, dtype=np.float32)
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()


def gain_bound(before: Sequence[np.ndarray], after: Sequence[np.ndarray], level: float) -> tuple[float, float]:
    """Return the gain of a longer attack and its upper bound at a level, from verdicts on the same images.

    before, after: whether each ensemble is right on each image, for the shorter and the longer attack.

    d_i = mean over ensembles of before - after; the bound is Agresti and Min's for paired shares, mean d + z sd with a
    pseudo-count of 1/2 to each side, but never below 1 - level^(1/N), what N images without any change leave open.
    """
    from scipy.stats import norm

    d = np.mean([a.astype(float) - b.astype(float) for a, b in zip(before, after, strict=True)], axis=0)
    count = len(d)
    mean = d.sum() / (count + 2)
    variance = (np.square(d).sum() + 1 - d.sum() ** 2 / (count + 2)) / (count + 2) ** 2
    bound = mean + float(norm.isf(level)) * float(np.sqrt(max(variance, 0.0)))
    return float(d.mean()), max(float(bound), 1 - level ** (1 / count))
