"""Attacks that go on from the images of others, on those images alone that are not broken beyond doubt.

Draws that choose the worst image are not those that judge it, and whether an image leaves is decided by draws of a
third kind: an image that was broken by luck alone is right again where it is judged.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from graddiv.evaluation.robustness import Cell, attacked, choosing, judged, sure_enough, sureness
from graddiv.evaluation.run import Advance, Job, Session
from graddiv.evaluation.target import Target
from graddiv.geometry import LINF, per_example
from graddiv.losses import margin
from graddiv.performance import channels_last
from graddiv.records import AttackRecord
from graddiv.store import digest

LOOKS = 20  #: How often images are looked at in an audit; each look may end a race by mistake, together with 1 %.


def race(target: Target, cells: Sequence[Cell], images: np.ndarray, session: Session) -> list[AttackRecord]:
    """Run one attack after the other, each from the worst images so far; a record holds the worst ones after it."""
    records: list[AttackRecord] = []
    for cell in cells:
        records += session.run([raced_job(target, cell, images)])
        images = records[-1].images
    return records


def raced_job(target: Target, cell: Cell, images: np.ndarray) -> Job[AttackRecord]:
    """Attack the images that are left, keep the worse of both, then judge as `attack_job` does."""
    start, settings = torch.from_numpy(images), cell.describe(target)
    own = {**settings["attack"], "raced": digest(start)}
    settings |= {"label": f"then {settings['label']}", "attack": own, "epsilon": cell.epsilon, "repeat": cell.repeat}
    norm = cell.attack.geometry if cell.attack else LINF

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        worst = start[ids.cpu()].to(x)
        high, ended = _looked_at(target, worst, y, cell.repeat)
        costs = torch.zeros(3, len(y), dtype=torch.int64)
        # the rows of a network that is not pointwise depend on each other, so its batches stay whole
        rows = (~ended if target.F.pointwise else torch.ones_like(ended)).nonzero().squeeze(1)
        if not ended.all():
            part = channels_last(x[rows])
            found, _, cost = attacked(target, cell, part, y[rows], ids[rows], advance, start=worst[rows])
            better = (_looked_at(target, found, y[rows], cell.repeat)[0] > high[rows]) & ~ended[rows]
            worst[rows] = torch.where(per_example(better, found), found, worst[rows])
            costs[:, rows.cpu()] = torch.tensor([cost.forwards, cost.backwards, cost.draws])[:, None]
        spent = dict(zip(("cost_forwards", "cost_backwards", "cost_draws"), costs.to(y.device), strict=True))
        return {"distance": norm.norm(worst - x).float(), "images": worst, **spent, **judged(target, worst, y, 0)}

    file = f"raced-{own['raced'][:8]}-{cell.file_name}"
    return target.job(AttackRecord, settings, measure, work=cell.work(target), file=file, label=settings["label"])


def _looked_at(target: Target, x: Tensor, y: Tensor, repeat: int) -> tuple[Tensor, Tensor]:
    """The log-odds of the draws that choose against the label, and whether they are wrong beyond doubt."""
    p = choosing(target, x, repeat)
    sure = sureness(p.flatten(0, 1), y, p.shape[1])
    wrong = (p.mean(1).argmax(2) != y).all(0)
    return margin(p.mean((0, 1)).log(), y), wrong & (sure > sure_enough(p.shape[0] * p.shape[1], LOOKS))
