"""Measurements after each epoch: the concentration of gradients, and the validation accuracy."""

import torch
from torch import Tensor

from graddiv.attacks import EOT
from graddiv.data import Dataset
from graddiv.diversity import REGULARIZERS, directions, input_gradient
from graddiv.diversity.regularizers import mean_cosine
from graddiv.networks import RandomizedNetwork, running_statistics
from graddiv.networks.weights import WeightNoise
from graddiv.objective import Objective
from graddiv.seeding import fold

PROBE, GRADIENTS = 512, 3  #: Training images that concentration is measured on, and gradients of each.
SAME_MODELS = 32  #: Images that are looked at with the same sample models: 16 sets of models in all.
VALIDATION, MODELS = 500, 10  #: Validation images that accuracy is measured on, and models of the ensemble.
AT_ONCE = 128


def concentration(F: RandomizedNetwork, data: Dataset, seed: int) -> dict[str, float]:
    """The paper's measures of concentration, means over the first training images, from n = 3 gradients each.

    `rho` is sqrt(max(0, mean cosine)), as on pages; its standard error `rho_error` includes the draws, since every 32
    images have other sample models.  `usable` is the share of images with a direction for every gradient; if it is 0,
    it is the only result.  `norm` is the mean length of these gradients of the soft margin.
    """
    data, count, cosines = data.take(slice(0, PROBE)), 0, list[Tensor]()
    sums = dict.fromkeys([*(f"R_{name}" for name in REGULARIZERS), "norm"], 0.0)
    for number, (x, y, _) in enumerate(data.batches(SAME_MODELS, F.device)):
        seeds = [fold(seed, "model", GRADIENTS * number + i) for i in range(GRADIENTS)]
        with torch.no_grad(), running_statistics(F):
            models = [F.bind(draw()) for draw in F.distinct_draws(seeds)]
            gradients = torch.stack([input_gradient(f, x, y)[1] for f in models])  # of the soft margin
        v, usable = directions(gradients)
        v, count = v[:, usable], count + int(usable.sum())
        for name, measure in REGULARIZERS.items():
            sums[f"R_{name}"] += float(measure(v).sum())
        sums["norm"] += float(gradients[:, usable].double().flatten(2).norm(dim=2).mean(0).sum())
        if usable.any():
            cosines.append(mean_cosine(v).mean())
    if not count:
        return {"usable": 0.0}
    c = torch.stack(cosines)
    mean, error = float(c.mean()), float(c.std(correction=min(1, len(c) - 1))) / len(c) ** 0.5
    low, rho, high = (max(0.0, bound) ** 0.5 for bound in (mean - error, mean, mean + error))
    means = {name: total / count for name, total in sums.items()}
    return {"usable": count / len(data), **means, "rho": rho, "rho_error": (high - low) / 2}


def noise_scales(F: RandomizedNetwork) -> dict[str, list[float]]:
    """The root mean square and the median of sigma for each parameter, of networks with noise in their weights."""
    if not isinstance(F, WeightNoise):
        return {}
    with torch.no_grad():
        scales = {name: F.scale(name).double().abs().flatten() for name in F.names}
    return {name: [float(s.square().mean().sqrt()), float(s.median())] for name, s in scales.items()}


def validation_accuracy(objective: Objective, data: Dataset, step: int) -> float:
    """The share of validation images, attacked as in training, that an ensemble of fresh sample models gets right."""
    F, adversary, data, right = objective.F, objective.adversary, data.take(slice(0, VALIDATION)), 0
    ensemble = EOT(F, MODELS, seed=fold(objective.seed, "validation", step))
    for x, y, ids in data.batches(AT_ONCE, F.device):
        x_adv = x if adversary is None else objective.attacked(adversary, x, y, ids, step)
        p = ensemble.member_logits(0, x_adv).double().softmax(2).mean(0)
        right += int((p.argmax(1) == y).sum())
    return right / len(data)
