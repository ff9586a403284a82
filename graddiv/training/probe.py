"""What is measured of the network after each epoch: its gradients' concentration, and its validation accuracy."""

import torch

from graddiv.attacks import EOT
from graddiv.data import Dataset
from graddiv.diversity import REGULARIZERS, directions, input_gradient
from graddiv.diversity.concentration import debiased_mrl
from graddiv.networks import RandomizedNetwork, running_statistics
from graddiv.objective import Objective
from graddiv.seeding import fold

PROBE, GRADIENTS = 512, 3  #: Training images that concentration is measured on, and gradients of each.
VALIDATION, MODELS = 500, 10  #: Validation images that accuracy is measured on, and models of the ensemble.
AT_ONCE = 128


def concentration(F: RandomizedNetwork, data: Dataset, seed: int) -> dict[str, float]:
    """The paper's measures of concentration, means over the first training images, from n = 3 gradients each.

    `usable` is the share of images of which all gradients have a direction; where it is 0, it stands alone.  `norm` is
    the mean length of these gradients of the soft margin, which the measures ignore.
    """
    data, count = data.take(slice(0, PROBE)), 0
    measures = {**{f"R_{name}": R for name, R in REGULARIZERS.items()}, "rho": debiased_mrl}
    sums = dict.fromkeys([*measures, "norm"], 0.0)
    for x, y, _ in data.batches(AT_ONCE, F.device):
        with torch.no_grad(), running_statistics(F):
            models = [F.bind(draw()) for draw in F.distinct_draws([fold(seed, "model", i) for i in range(GRADIENTS)])]
            gradients = torch.stack([input_gradient(f, x, y)[1] for f in models])  # of the soft margin
        v, usable = directions(gradients)
        v, count = v[:, usable], count + int(usable.sum())
        for name, measure in measures.items():
            sums[name] += float(measure(v).sum())
        sums["norm"] += float(gradients[:, usable].double().flatten(2).norm(dim=2).mean(0).sum())
    return {"usable": count / len(data)} | ({name: total / count for name, total in sums.items()} if count else {})


def validation_accuracy(objective: Objective, data: Dataset, step: int) -> float:
    """The share of validation images, attacked as in training, that an ensemble of fresh sample models gets right."""
    F, adversary, data, right = objective.F, objective.adversary, data.take(slice(0, VALIDATION)), 0
    ensemble = EOT(F, MODELS, seed=fold(objective.seed, "validation", step))
    for x, y, ids in data.batches(AT_ONCE, F.device):
        x_adv = x if adversary is None else objective.attacked(adversary, x, y, ids, step)
        p = ensemble.member_logits(0, x_adv).double().softmax(2).mean(0)
        right += int((p.argmax(1) == y).sum())
    return right / len(data)
