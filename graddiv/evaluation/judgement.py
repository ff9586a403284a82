"""Three numbers, never one: accuracy per draw, of the ensemble, in the worst of k draws; and what an attack gains."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from graddiv.attacks import EOT, PGD, Given
from graddiv.attacks.attack import Problem
from graddiv.evaluation.budget import Budget
from graddiv.evaluation.robustness import Cell, attack_all
from graddiv.evaluation.run import Advance, Job, Session, reporting
from graddiv.evaluation.target import Target
from graddiv.geometry import Geometry
from graddiv.networks import RandomizedNetwork, running_statistics
from graddiv.networks.prediction import models_of, predict
from graddiv.records import AttackRecord, JudgementRecord, TrajectoryRecord, summary, wilson
from graddiv.seeding import fold
from graddiv.store import digest

WORST_OF = (1, 2, 5, 10, 20, 50, 100)  #: How often a persistent attacker may try.
MOST_OUTCOMES = 64  #: Noise with at most this many values is enumerated.
COMMON = 10  #: Draws on which the loss of a trajectory is followed.


class Estimate(NamedTuple):
    """An accuracy, and how far other images or other draws might move it."""

    mean: float
    low: float  #: A 95 % interval over images (Wilson), with `high`.
    high: float
    spread: float = 0.0  #: Standard deviation over ensembles.

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f})"


class ThreeNumbers(NamedTuple):
    """Accuracies on the same images for three ways to use a randomized network."""

    per_draw: Estimate  #: One draw answers.
    ensemble: Estimate  #: The mean softmax of n_ensemble draws answers.
    worst: Mapping[int, Estimate]  #: k draws answer, and one wrong answer is enough: the attacker who tries again.
    exact: bool  #: Whether the first and the last are exact, because the noise has finitely many values.


def judgement_job(target: Target, of: str, *, ensembles: int = 10) -> Job[JudgementRecord]:
    """Judge images by `ensembles` times n_ensemble draws: each alone, and each n_ensemble of them together."""
    F, T = target.F, target.n_ensemble
    seed = fold(target.seed, "judgement")
    support = F.support() if F.random else None
    known = support if support is not None and len(support.noises) <= MOST_OUTCOMES else None

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        numbers = reporting(range(ensembles if F.random else 1), ensembles, advance)
        said = [predict(F, x, n=T, seed=fold(seed, number)) for number in numbers]
        right, correct = torch.cat([each.answers for each in said]) == y, torch.stack([each.label for each in said], 1)
        share = right.double().mean(0)
        if known is not None:
            with torch.no_grad(), running_statistics(F):
                answers = torch.stack([F.bind(noise)(x).argmax(1) == y for noise in known.noises])
            share = (known.probabilities.to(x.device)[:, None] * answers).sum(0)
        return {"right": right.T, "correct": correct == y[:, None], "share": share}

    outcomes = len(known.noises) if known is not None else 0
    settings = {"of": of, "images": images_hash(target.data.batch(slice(None))[0]), "outcomes": outcomes}
    return target.job(JudgementRecord, settings, measure, work=float(ensembles * T))


def three_numbers(of_ensemble: JudgementRecord, record: JudgementRecord) -> ThreeNumbers:
    """Estimate accuracies from two records: of images that attack the ensemble, and of those that attack a draw."""
    ensemble, draws = summary(list(of_ensemble.correct.T)), record.right.shape[1]
    exact = record.outcomes > 0 or draws == 1

    def estimate(shares: np.ndarray) -> Estimate:
        """With Wilson's interval, which is too wide, not too narrow, where images are right on some draws only."""
        mean = float(shares.mean())
        return Estimate(mean, *wilson(mean * record.examples, record.examples))

    worst = {k: estimate(worst_of(record, k)) for k in WORST_OF if exact or k <= draws}
    of_ensembles = Estimate(ensemble.mean, *ensemble.interval, float(np.nan_to_num(ensemble.std)))
    return ThreeNumbers(estimate(record.share), of_ensembles, worst, exact)


def worst_of(record: JudgementRecord, k: int) -> Float[np.ndarray, " b"]:
    """C(N - e, k) / C(N, k) for e errors among N draws, unbiased; share^k where the share is exact."""
    draws = record.right.shape[1]
    if record.outcomes > 0 or draws == 1:
        return record.share.astype(np.float64) ** k
    rights = record.right.sum(1)[:, None] - np.arange(k)
    return np.asarray(np.prod(np.maximum(rights, 0) / (draws - np.arange(k)), axis=1))


class Worst(NamedTuple):
    """The worst attack on each image, and the adversarial image that it made."""

    images: Float[np.ndarray, "b ..."]  #: For the ensemble: chosen by its margin, over both ensembles that judged.
    attack: Int64[np.ndarray, " b"]  #: The index, among the records, of the attack that made each of them.
    images_per_draw: Float[np.ndarray, "b ..."]
    """For single draws: chosen by how many of them are wrong, ties by the margin."""

    def verdicts(self, records: Sequence[AttackRecord]) -> list[np.ndarray]:
        """Whether either ensemble is right on each of the images."""
        everyone = np.arange(len(self.attack))
        return [np.stack(each)[self.attack, everyone] for each in zip(*(r.verdicts for r in records), strict=True)]


def worst_images(records: Sequence[AttackRecord]) -> Worst:
    """Choose the worst attack on each image; the first of ties."""
    margins = np.nan_to_num(np.stack([(r.margin + r.margin_again) / 2 for r in records]), nan=-np.inf)
    wrong = np.stack([(~r.right).mean(1) for r in records])
    by_draws = wrong + 1e-6 * np.tanh(margins)  # a draw among the 20 that judge counts for far more
    chosen, chosen_per_draw = margins.argmax(0), by_draws.argmax(0)

    def images(numbers: np.ndarray) -> np.ndarray:
        return np.stack([records[number].images[place] for place, number in enumerate(numbers)])

    return Worst(images(chosen), chosen, images(chosen_per_draw))


def images_hash(x: Tensor | np.ndarray) -> str:
    """sha256 of the shape and of the pixels in float32: names a set of images."""
    return digest(repr(tuple(x.shape)), torch.as_tensor(x).float())


class Doubling(NamedTuple):
    """One setting of an attack doubled, the others unchanged."""

    look: int
    setting: str  #: n, m or restarts.
    before: int
    after: int
    accuracy_before: float
    accuracy_after: float
    gain: float
    bound: float  #: Upper bound of the gain, at the level of one look.


def double(
    cell: Cell, record: AttackRecord, target: Target, budget: Budget, session: Session
) -> tuple[list[Doubling], list[AttackRecord]]:
    """Double each setting by itself, keep the one that gains most, and repeat until all bounds are small enough."""
    settings = (*(("n",) if target.random else ()), "m", "restarts")
    found, made = list[Doubling](), [record]
    for look in range(1, budget.looks + 1):
        longer = {setting: _doubled(cell, setting) for setting in settings}
        records = dict(zip(longer, attack_all(target, list(longer.values()), session), strict=True))
        last = [_compared(look, setting, record, records[setting], budget.level) for setting in settings]
        found, made = [*found, *last], [*made, *records.values()]
        if all(d.bound <= budget.tolerance for d in last) or record.examples < budget.images_needed:
            break
        most = max(last, key=lambda d: d.gain).setting
        cell, record = longer[most], records[most]
    return found, made


def _doubled(cell: Cell, setting: str) -> Cell:
    if setting == "n":
        return replace(cell, n=2 * cell.n, mode="eot")
    assert cell.attack is not None
    return replace(cell, attack=replace(cell.attack, **{setting: 2 * getattr(cell.attack, setting)}))


def _compared(look: int, setting: str, shorter: AttackRecord, longer: AttackRecord, level: float) -> Doubling:
    values = int(shorter.value(setting)), int(longer.value(setting))
    before, after = shorter.verdicts, longer.verdicts
    shorter_left, longer_left = (float((a.mean() + b.mean()) / 2) for a, b in (before, after))
    return Doubling(look, setting, *values, shorter_left, longer_left, *gain_bound(before, after, level))


def gain_bound(before: Sequence[np.ndarray], after: Sequence[np.ndarray], level: float) -> tuple[float, float]:
    """Return the gain of a longer attack and its upper bound at a level, from verdicts of ensembles on the same images.

    d_i = mean over ensembles of before - after; the bound is Agresti and Min's for paired shares, mean d + z sd with a
    pseudo-count of 1/2 to each side, but never below 1 - level^(1/N), what N images without any change leave open.
    """
    from scipy.stats import norm

    d = np.mean([a.astype(float) - b.astype(float) for a, b in zip(before, after, strict=True)], axis=0)
    count, mean = len(d), d.sum() / (len(d) + 2)
    variance = (np.square(d).sum() + 1 - d.sum() ** 2 / (count + 2)) / (count + 2) ** 2
    bound = mean + float(norm.isf(level)) * float(np.sqrt(max(variance, 0.0)))
    return float(d.mean()), max(float(bound), 1 - level ** (1 / count))


def trajectory_job(
    target: Target, seen: RandomizedNetwork, *, epsilon: float, geometry: Geometry, n: int, m: int
) -> Job[TrajectoryRecord]:
    """Follow EOT-PGD through the network `seen`, and judge every step on the target, on draws that stay the same."""
    attack = PGD(m=m, geometry=geometry)
    settings = {"norm": geometry.name, "epsilon": epsilon, "n": n, "m": m, "alpha": attack.alpha}

    def wrong(view: Given, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            scores = torch.stack([f(x).double().softmax(1) for f in view(0)]).mean(0)
        return scores.argmax(1) != y

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        F, seed = target.F, fold(target.seed, "trajectory")
        radius = torch.full((len(x),), epsilon, dtype=x.dtype, device=x.device)
        problem = Problem(EOT(seen, n, fold(seed, "view")), x, y, radius, ids, seed, lambda: None)
        losses, fooled, at = [], [], x
        with running_statistics(F):
            common = Given(list(models_of(F, COMMON, fold(seed, "common"))))
            for step, at in enumerate(chain([x], attack.iterates(problem))):
                losses.append(common.loss(0, at, y, "ensemble"))
                fooled.append(wrong(common, at, y))
                advance(step / m)
            own = wrong(Given(list(EOT(F, n, fold(seed, "view"))(m - 1))), at, y)
        fresh = predict(F, at, n=target.n_ensemble, seed=fold(seed, "fresh")).label != y
        series = {"loss": torch.stack(losses, 1), "fooled": torch.stack(fooled, 1)}
        return {**series, "fooled_seen": own, "fooled_fresh": fresh}

    return target.job(TrajectoryRecord, settings, measure, work=(2.0 * n + 2 * COMMON) * m)
