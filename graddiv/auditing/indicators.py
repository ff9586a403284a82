"""Signs that an attack failed for its own reasons: the six of Pintor et al. (2022), for randomized networks.

Two of them split in two where there is noise: a loss that differs between draws is no rough loss, and success counts
on draws that the attack did not see.  The loss curve is taken on draws that are the same at every step.
"""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graddiv.attacks import EOT, PGD, Given
from graddiv.attacks.attack import Problem
from graddiv.evaluation import Target, predict
from graddiv.evaluation.batches import Advance, Job
from graddiv.evaluation.prediction import models_of
from graddiv.evaluation.verdicts import Item, Outcome
from graddiv.geometry import Geometry
from graddiv.networks import RandomizedNetwork, running_statistics
from graddiv.records import AttackRecord, TrajectoryRecord, flips
from graddiv.seeding import fold

COMMON = 10
"""Draws on which the loss is followed."""
RARE, OFTEN = 0.02, 0.1
"""Shares of the images: up to the first a sign is no matter, beyond the second it is a failure."""
LAST = 0.25
"""The share of the steps that counts as the end of the attack."""
STILL = 0.05
"""An image whose loss gains this share of its whole range in the end was not optimized to the end."""


def trajectory_job(
    target: Target,
    seen: RandomizedNetwork,
    directory: Path | None = None,
    *,
    epsilon: float,
    geometry: Geometry,
    n: int,
    m: int,
) -> Job[TrajectoryRecord]:
    """Follow EOT-PGD through the network `seen`, and judge every step on the target."""
    attack = PGD(m=m, geometry=geometry)
    settings = {"norm": geometry.name, "epsilon": epsilon, "n": n, "m": m, "alpha": attack.alpha}

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        F, seed = target.F, fold(target.seed, "trajectory")
        view = EOT(seen, n, fold(seed, "view"))
        radius = torch.full((len(x),), epsilon, dtype=x.dtype, device=x.device)
        problem = Problem(view, x, y, radius, ids, seed, lambda: None)
        losses, fooled, at = [], [], x
        with running_statistics(F):
            common = Given(list(models_of(F, COMMON, fold(seed, "common"))))
            for step, at in enumerate(chain([x], attack.iterates(problem))):
                losses.append(common.loss(0, at, y, "ensemble"))
                fooled.append(_wrong(common, at, y))
                advance(step / m)
            own = _wrong(Given(list(EOT(F, n, fold(seed, "view"))(m - 1))), at, y)
        fresh = predict(F, at, n=target.n_ensemble, seed=fold(seed, "fresh")).label != y
        return {
            "loss": torch.stack(losses, 1),
            "fooled": torch.stack(fooled, 1),
            "fooled_seen": own,
            "fooled_fresh": fresh,
        }

    return target.job(TrajectoryRecord, settings, directory, measure, work=(2.0 * n + 2 * COMMON) * m)


def _wrong(view: Given, x: Tensor, y: Tensor) -> Tensor:
    """Whether the ensemble of the models is wrong."""
    with torch.no_grad():
        scores = torch.stack([f(x).double().softmax(1) for f in view(0)]).mean(0)
    return scores.argmax(1) != y


def indicators(path: TrajectoryRecord) -> list[Item]:
    """Three of the six that a trajectory shows; the others are checks before, and the unbounded attack."""
    return [silent_success(path), incomplete(path), transfer_failure(path)]


def silent_success(path: TrajectoryRecord) -> Item:
    """Some step fooled the network, the returned one does not."""
    lost = path.fooled[:, 1:].any(1) & ~path.fooled[:, -1] & ~path.fooled_fresh
    said = f"on {int(lost.sum())} of {path.examples} images a step fooled the network and the last one does not"
    return _share("no success is lost on the way", lost, said)


def incomplete(path: TrajectoryRecord) -> Item:
    """The running maximum of the loss, rescaled to [0, 1], still rises in the last steps of images not fooled yet."""
    loss = np.maximum.accumulate(path.loss.astype(np.float64), axis=1)
    span = loss[:, -1] - loss[:, 0]
    last = max(1, round(LAST * path.m))
    rise = np.where(span > 1e-9, (loss[:, -1] - loss[:, -1 - last]) / np.where(span > 1e-9, span, 1), 0)
    short = (rise > STILL) & ~path.fooled_fresh
    said = f"the loss of {int(short.sum())} of {path.examples} images still rises in the last {last} of {path.m} steps"
    item = _share("the attack is optimized to the end", short, f"{said}, and they are not fooled")
    # more steps are tried in any case, so that this alone is no failure
    return item._replace(verdict="warn" if item.verdict == "fail" else item.verdict)


def transfer_failure(path: TrajectoryRecord) -> Item:
    """The draws that the attack saw are fooled, fresh ones are not."""
    apart = path.fooled_seen & ~path.fooled_fresh
    said = f"{int(apart.sum())} of {path.examples} images fool the draws of the last step and not fresh ones"
    item = _share("what fools the draws seen fools others", apart, said)
    return item._replace(verdict="warn" if item.verdict == "fail" else item.verdict)


def gradient_free(blind: list[AttackRecord], seeing: list[AttackRecord]) -> Item:
    """No attack without the network's gradients, by queries or by transfer, may do better than all with them."""
    best, rival = (min(group, key=lambda r: r.accuracy) for group in (blind, seeing))
    change = flips(best.correct_again, rival.correct_again)
    share = (change.won - change.lost) / best.examples
    verdict: Outcome = "pass"
    if change.won > change.lost and change.p < 0.01:
        verdict = "fail" if share > RARE else "warn"
    said = f"{100 * best.accuracy:.1f} % under {best.label}, {100 * rival.accuracy:.1f} % under {rival.label}"
    evidence = {"only_blind": change.won, "only_seeing": change.lost, "p": change.p}
    return Item("gradients find what attacks without them find", verdict, said, evidence)


def _share(name: str, flags: np.ndarray, said: str) -> Item:
    share = float(flags.mean())
    verdict: Outcome = "pass" if share <= RARE else "warn" if share <= OFTEN else "fail"
    evidence: dict[str, Any] = {"share": share, "images": int(flags.sum())}
    return Item(name, verdict, said, evidence)
