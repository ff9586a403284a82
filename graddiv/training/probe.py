"""What is measured of the network after each epoch: its gradients' concentration, and its validation accuracy."""

import torch
from jaxtyping import Float
from torch import Tensor

from graddiv.attacks import EOT
from graddiv.data import Dataset
from graddiv.directions import directions, input_gradient
from graddiv.directions.vmf import debiased_mrl
from graddiv.networks import RandomizedNetwork, running_statistics
from graddiv.objective import Objective
from graddiv.performance import channels_last
from graddiv.registries import REGULARIZERS
from graddiv.seeding import fold

PROBE = 512
"""How many training images the concentration of gradients is measured on."""
GRADIENTS = 3
VALIDATION = 500
"""How many validation images the accuracy is measured on."""
MODELS = 10
"""Of the ensemble that classifies them."""
AT_ONCE = 128


def concentration(F: RandomizedNetwork, data: Dataset, seed: int) -> dict[str, float]:
    """The paper's measures of concentration, means over the first training images, from n = 3 gradients each.

    `usable` is the share of images of which all gradients have a direction; where it is 0, it stands alone.  `norm` is
    the mean length of these gradients of the soft margin, of which the measures know nothing: R may disperse directions
    and change lengths.
    """
    probe, count = min(PROBE, len(data)), 0
    measures = {**{f"R_{name}": R for name, R in REGULARIZERS.items()}, "rho": debiased_mrl}
    sums = dict.fromkeys([*measures, "norm"], 0.0)
    for start in range(0, probe, AT_ONCE):
        gradients = _gradients(F, data, slice(start, min(start + AT_ONCE, probe)), seed)
        v, usable = directions(gradients)
        v, count = v[:, usable], count + int(usable.sum())
        for name, measure in measures.items():
            sums[name] += float(measure(v).sum())
        sums["norm"] += float(gradients[:, usable].double().flatten(2).norm(dim=2).mean(0).sum())
    return {"usable": count / probe} | ({name: total / count for name, total in sums.items()} if count else {})


def _gradients(F: RandomizedNetwork, data: Dataset, rows: slice, seed: int) -> Float[Tensor, "n b ..."]:
    """grad_x s(f_i(x), y), s the soft margin, of sample models f_i, other ones at each seed, at training images."""
    x, y = data.batch(rows)
    x, y = channels_last(x.to(F.device)), y.to(F.device)
    with torch.no_grad(), running_statistics(F):
        models = [F.bind(draw()) for draw in F.distinct_draws([fold(seed, "model", i) for i in range(GRADIENTS)])]
        return torch.stack([input_gradient(f, x, y)[1] for f in models])


def validation_accuracy(objective: Objective, data: Dataset, step: int) -> float:
    """The share of validation images, attacked as in training, that an ensemble of fresh sample models gets right."""
    F, adversary = objective.F, objective.adversary
    images, right = min(VALIDATION, len(data)), 0
    ensemble = EOT(F, MODELS if F.random else 1, seed=fold(objective.seed, "validation", step))
    for start in range(0, images, AT_ONCE):
        rows = slice(start, min(start + AT_ONCE, images))
        x, y = (t.to(F.device) for t in data.batch(rows))
        x = channels_last(x)
        if adversary is not None:
            x = objective.attacked(adversary, x, y, data.ids[rows].to(F.device), step)
        p = ensemble.member_logits(0, x).double().softmax(2).mean(0)
        right += int((p.argmax(1) == y).sum())
    return right / images
