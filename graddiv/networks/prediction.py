"""Predictions of a randomized network: an ensemble of several sample models decides.  See docs/equations.md."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from graddiv.errors import GradDivError
from graddiv.networks.inputs import check_takes, plain, running_statistics
from graddiv.seeding import fold

if TYPE_CHECKING:
    from graddiv.networks.randomized import Noise, RandomizedNetwork, SampleModel

N_ENSEMBLE = 20  #: how many sample models the paper's ensemble has
Rule = Literal["softmax", "logits", "vote"]  #: what is averaged over members


class Prediction(NamedTuple):
    """The predictions of the ensemble and of each of its members."""

    scores: Float[Tensor, "b c"]  #: the members' mean softmax, mean logits, or share of votes
    answers: Int64[Tensor, "n b"]  #: the class that each member predicts

    @property
    def label(self) -> Int64[Tensor, " b"]:
        """argmax of the scores."""
        return self.scores.argmax(1)


def models_of(F: "RandomizedNetwork", n: int, seed: int) -> "Iterator[SampleModel]":
    """Yield n sample models, bound one at a time with constant weights; one alone for a deterministic network.

    Where the noise has at most n values, all equally likely, each is yielded once: means over them are then exact.
    """
    with torch.no_grad():
        theta = F.theta()
    for draw in _draws(F, n, seed):
        with torch.no_grad():
            f = F.bind(draw(), theta)
        yield f


def count_models(F: "RandomizedNetwork", n: int) -> int:
    """Return how many sample models `models_of` yields where n are asked for."""
    return len(_draws(F, n, 0))


def _draws(F: "RandomizedNetwork", n: int, seed: int) -> "list[Callable[[], Noise]]":
    support = F.support()
    if support is not None and len(support.noises) <= n and support.is_uniform:
        return [partial(support.noises.__getitem__, i) for i in range(len(support.noises))]
    return [partial(F.draw, fold(seed, "model", i)) for i in range(n if F.random else 1)]


def predict(
    F: "RandomizedNetwork", x: Float[Tensor, "b ..."], *, n: int = N_ENSEMBLE, seed: int = 0, rule: Rule = "softmax"
) -> Prediction:
    """argmax of 1/n sum_i softmax(f_i(x)) over n sample models: `F.predict(x).label`, with `.scores` beside it.

    F, x: the network and the inputs.
    n: how many sample models the ensemble has, 20 as in the paper; all of them once if there are fewer, equally likely.
    seed: addresses the models; the same seed gives the same ensemble.
    rule: averages probabilities, as the paper does, or else logits or votes.
    """
    if rule not in get_args(Rule):
        raise GradDivError(f"rule is {rule!r}, expected one of {get_args(Rule)}")
    if n < 1:
        raise GradDivError(f"n is {n}, expected at least one sample model")
    x = plain("x", x)
    check_takes(F, x)
    scores, answers = [], []
    with torch.no_grad(), running_statistics(F):
        for f in models_of(F, n, seed):
            z = logits_from(f, x)
            answers.append(z.argmax(1))
            scores.append(score(z, rule))
    return Prediction(torch.stack(scores).mean(0), torch.stack(answers))


def logits_from(f: "SampleModel", x: Float[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
    """f(x), refused if it is not finite."""
    z = f(x)
    if not torch.isfinite(z).all():
        raise GradDivError(
            "a sample model returns NaN or infinite logits: look at its weights and at the input, or return "
            "torch.nan_to_num(logits)"
        )
    return z


def score(z: Float[Tensor, "b c"], rule: Rule) -> Float[Tensor, "b c"]:
    """The values that an ensemble averages, from the logits of a member."""
    match rule:
        case "softmax":
            return z.double().softmax(1)  # in float32 the probabilities of confident networks round to 1 and 0, and tie
        case "logits":
            return z
        case "vote":
            return torch.nn.functional.one_hot(z.argmax(1), z.shape[1]).to(z.dtype)
