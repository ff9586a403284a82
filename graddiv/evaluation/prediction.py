"""How a randomized network answers: an ensemble of sample models."""

from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from graddiv.errors import GradDivError
from graddiv.networks import RandomizedNetwork, SampleModel, Theta, running_statistics
from graddiv.seeding import fold

N_ENSEMBLE = 20
"""Sample models in the paper's ensemble."""

Rule = Literal["softmax", "logits", "vote"]


class Prediction(NamedTuple):
    """What the ensemble and its members say."""

    scores: Float[Tensor, "b c"]
    """The members' mean softmax, mean logits, or share of votes."""
    answers: Int64[Tensor, "n b"]
    """The class that each member names."""

    @property
    def label(self) -> Int64[Tensor, " b"]:
        """argmax of the scores."""
        return self.scores.argmax(1)


def models_of(F: RandomizedNetwork, n: int, seed: int) -> Iterator[SampleModel]:
    """Yield n sample models, bound one at a time; one model alone for a deterministic network.

    Their weights are constants: no graph of theta is built, whatever the consumer does.  Whether the consumer's own
    code records gradients is the consumer's choice, so no_grad is never left switched on while the generator waits.
    """
    with torch.no_grad():
        theta = F.theta()
    for i in range(n if F.random else 1):
        yield _constant_model(F, fold(seed, "model", i), theta)


def _constant_model(F: RandomizedNetwork, seed: int, theta: Theta) -> SampleModel:
    with torch.no_grad():
        return F.bind(F.draw(seed), theta)


def predict(
    F: RandomizedNetwork, x: Float[Tensor, "b ..."], *, n: int = N_ENSEMBLE, seed: int = 0, rule: Rule = "softmax"
) -> Prediction:
    """argmax of 1/n sum_i softmax(f_i(x)) over n sample models; the mean of their logits or votes on request."""
    if rule not in get_args(Rule):
        raise GradDivError(f"rule is {rule!r}, expected one of {get_args(Rule)}")
    if n < 1:
        raise GradDivError(f"n is {n}, expected at least one sample model")
    scores, answers = [], []
    with torch.no_grad(), running_statistics(F):
        for f in models_of(F, n, seed):
            z = _logits(f, x)
            answers.append(z.argmax(1))
            scores.append(_score(z, rule))
    return Prediction(torch.stack(scores).mean(0), torch.stack(answers))


def accuracy_by_size(
    F: RandomizedNetwork, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"], n: int = N_ENSEMBLE, seed: int = 0
) -> Bool[Tensor, "n b"]:
    """Whether the ensemble of the first 1, 2, .. n sample models is right, for each example."""
    if n < 1:
        raise GradDivError(f"n is {n}, expected at least one sample model")
    total, right = torch.zeros((), dtype=torch.float64, device=x.device), []
    with torch.no_grad(), running_statistics(F):
        for f in models_of(F, n, seed):
            total = total + _score(_logits(f, x), "softmax")
            right.append(total.argmax(1) == y)
    return torch.stack(right)


def _logits(f: SampleModel, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
    z = f(x)
    if not torch.isfinite(z).all():
        raise GradDivError("a sample model returns NaN or infinite logits: look at its weights and at the input")
    return z


def _score(z: Float[Tensor, "b c"], rule: Rule) -> Float[Tensor, "b c"]:
    match rule:
        case "softmax":
            return z.double().softmax(1)  # in float32 sure networks tie: 1 and 0 for all of them
        case "logits":
            return z
        case "vote":
            return torch.nn.functional.one_hot(z.argmax(1), z.shape[1]).to(z.dtype)
