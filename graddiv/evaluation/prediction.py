"""How ensembles of several sizes, and their members, answer; networks/prediction.py has the ensemble itself."""

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from graddiv.errors import GradDivError
from graddiv.networks import RandomizedNetwork, running_statistics
from graddiv.networks.prediction import (
    N_ENSEMBLE,
    Prediction,
    Rule,
    count_models,
    logits_from,
    models_of,
    predict,
    score,
)

__all__ = [
    "N_ENSEMBLE",
    "Prediction",
    "Rule",
    "accuracy_by_size",
    "count_models",
    "models_of",
    "predict",
    "probabilities",
]


def probabilities(F: RandomizedNetwork, x: Float[Tensor, "b ..."], n: int, seed: int) -> Float64[Tensor, "models b c"]:
    """Return softmax(f_i(x)) of each of the n sample models of `predict`; a deterministic network has one only."""
    with torch.no_grad(), running_statistics(F):
        return torch.stack([score(logits_from(f, x), "softmax") for f in models_of(F, n, seed)])


def accuracy_by_size(
    F: RandomizedNetwork, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"], n: int = N_ENSEMBLE, seed: int = 0
) -> Bool[Tensor, "n b"]:
    """Return whether the ensemble of the first 1, 2, .. n sample models is right, for each example.

    F: the network.
    x, y: the images and their true labels.
    n: the size of the largest ensemble.
    seed: addresses the models, as in `predict`.
    """
    if n < 1:
        raise GradDivError(f"n is {n}, expected at least one sample model")
    total, right = torch.zeros((), dtype=torch.float64, device=x.device), []
    with torch.no_grad(), running_statistics(F):
        for f in models_of(F, n, seed):
            total = total + score(logits_from(f, x), "softmax")
            right.append(total.argmax(1) == y)
    return torch.stack(right)
