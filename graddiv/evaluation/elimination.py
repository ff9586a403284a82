"""Sequential elimination: the Total alone, for fewer passes than the whole table.

Attacks run one after the other, the cheapest first.  After each, two ensembles look at the images it made: they keep
the worst image so far, and an image that is fooled beyond doubt leaves.  What is left at the end is judged by two other
ensembles, those that judge the rows of a table and that had no part in any choice, so the Total is cross-fitted.
"""

import json
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from graddiv.errors import GradDivError
from graddiv.evaluation.examples import digest
from graddiv.evaluation.robustness import Cell, attacked, judged
from graddiv.evaluation.run import IN_MEMORY, Advance, Job, Session
from graddiv.evaluation.target import Target
from graddiv.networks import running_statistics
from graddiv.networks.prediction import logits_from, models_of, score
from graddiv.performance import channels_last
from graddiv.records import TotalRecord
from graddiv.seeding import fold

LEVEL = 1e-2
"""An image leaves when a fresh ensemble would be right about it with a probability below this.

The same models look at the images of all attacks, so each look may err with this probability divided by the looks.
"""


def attack_until_fooled(target: Target, wanted: Sequence[Cell], session: Session = IN_MEMORY) -> list[TotalRecord]:
    """The Total of the cells of each epsilon and repeat."""
    groups: dict[tuple[float, int], list[Cell]] = {}
    for cell in wanted:
        if cell.attack is not None:
            groups.setdefault((cell.epsilon, cell.repeat), []).append(cell)
    return session.run([total_job(target, group) for group in groups.values()])


def total_job(target: Target, wanted: Sequence[Cell]) -> Job[TotalRecord]:
    """Attack each batch with one cell after the other, on the images that are left; then judge the worst images."""
    if len({(cell.epsilon, cell.repeat) for cell in wanted}) != 1:
        raise GradDivError("a Total is taken over the attacks of one epsilon and one repeat")
    epsilon, repeat = wanted[0].epsilon, wanted[0].repeat
    order = [Cell(None, "fixed", 1, 0.0, repeat), *sorted(wanted, key=lambda cell: cell.work(target))]
    attacks = [cell.describe(target) for cell in order]
    settings = {"attacks": attacks, "epsilon": epsilon, "repeat": repeat, "level": LEVEL}

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        worst, found = _worst_images(target, order, x, y, ids, advance)
        return {**found, **judged(target, worst, y, repeat)}

    file = f"total-{digest(json.dumps(attacks))[:8]}-eps{epsilon:.6g}-r{repeat}.record"
    work = sum(cell.work(target) for cell in order)
    return target.job(TotalRecord, settings, measure, work=work, file=file, label="Total")


def _worst_images(
    target: Target, order: Sequence[Cell], x: Tensor, y: Tensor, ids: Tensor, advance: Advance
) -> tuple[Tensor, dict[str, Tensor]]:
    """Attack the examples that are left with one cell after the other; return the worst images, and the arrays."""
    worst, distance = x.clone(), torch.zeros_like(y, dtype=torch.float32)
    surest = torch.full_like(y, -torch.inf, dtype=torch.float64)
    chosen, ended = torch.zeros_like(y), torch.zeros_like(y, dtype=torch.bool)
    costs = torch.zeros(4, len(y), len(order), dtype=torch.int64)
    work = [cell.work(target) for cell in order]
    for number, cell in enumerate(order):
        left = ~ended
        if not left.any():
            break

        def tell(share: float, number: int = number) -> None:
            advance((sum(work[:number]) + share * work[number]) / sum(work))

        # the rows of a network that is not pointwise depend on each other, so its batches stay whole
        rows = (left if target.F.pointwise else torch.ones_like(left)).nonzero().squeeze(1)
        x_adv, far, cost = attacked(target, cell, channels_last(x[rows]), y[rows], ids[rows], tell)
        sure, doubtless, models = _looked_at(target, x_adv, y[rows], cell.repeat, looks=len(order))
        better = left[rows] & ((sure > surest[rows]) | doubtless)
        kept = rows[better]
        worst[kept], distance[kept] = x_adv[better], far[better]
        surest[kept], chosen[kept] = sure[better], number
        ended[rows] |= doubtless
        spent = [cost.forwards, cost.backwards, cost.draws, models]
        costs[:, rows.cpu(), number] = torch.tensor(spent)[:, None]
    found = {"chosen": chosen, "ended": ended, "distance": distance}
    names = ("cost_forwards", "cost_backwards", "cost_draws", "cost_choice")
    return worst, {**found, **dict(zip(names, costs, strict=True))}


def _looked_at(
    target: Target, x: Tensor, y: Tensor, repeat: int, looks: int
) -> tuple[Float64[Tensor, " b"], Bool[Tensor, " b"], int]:
    """The sureness of two ensembles, whether both and a fresh one are wrong beyond doubt, and how many models look."""
    seeds = [fold(target.seed, "choice", repeat, i) for i in range(2)]
    with torch.no_grad(), running_statistics(target.F):
        models = [models_of(target.F, target.n_ensemble, seed) for seed in seeds]
        ensembles = [torch.stack([score(logits_from(f, x), "softmax") for f in each]) for each in models]
    both = torch.cat(ensembles)
    sure = sureness(both, y, len(ensembles[0]))
    wrong = torch.stack([p.mean(0).argmax(1) != y for p in ensembles]).all(0)
    return sure, wrong & (sure > sure_enough(len(both), looks)), len(both)


def sureness(p: Float64[Tensor, "n b c"], y: Int64[Tensor, " b"], size: int) -> Float64[Tensor, " b"]:
    """t = mean(d) / (sd(d) sqrt(1/n + 1/size)), d_i = p_i(j) - p_i(y), j the likeliest other class.

    p: the probabilities that n >= 2 models give each class.
    y: the true labels.
    size: of the fresh ensemble whose verdict is predicted.

    The mean d of a fresh ensemble of `size` models differs from that of these n by an error of standard deviation
    sd(d) sqrt(1/n + 1/size); if t lies above Student's quantile, the fresh mean lies above 0 too, and the ensemble is
    wrong.  Infinite where all models say the same.
    """
    own = p.gather(2, y.expand(len(p), -1)[..., None]).squeeze(2)
    others = p.scatter(2, y.expand(len(p), -1)[..., None], -torch.inf)
    rival = others.mean(0).argmax(1)
    d = others.gather(2, rival.expand(len(p), -1)[..., None]).squeeze(2) - own
    mean, spread = d.mean(0), d.std(0) * (1 / len(d) + 1 / size) ** 0.5
    return torch.where(spread > 0, mean / spread, torch.where(mean > 0, torch.inf, -torch.inf))


def sure_enough(n: int, looks: int) -> float:
    """The quantile 1 - LEVEL / looks of Student's t for n models: beyond it, an image is fooled beyond doubt."""
    from scipy.stats import t

    return float(t.ppf(1 - LEVEL / looks, n - 1))
