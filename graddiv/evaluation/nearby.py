"""Whether gradients near an example are as dispersed as those at the example itself."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from graddiv.directions.gradients import input_gradient
from graddiv.directions.moments import moments_of
from graddiv.errors import GradDivError
from graddiv.evaluation.batches import Advance, Job
from graddiv.evaluation.prediction import models_of
from graddiv.evaluation.target import Target
from graddiv.networks import SampleModel, running_statistics
from graddiv.records import NearbyRecord
from graddiv.seeding import fold, uniform

SHARES = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Distances from the example, as shares of epsilon."""


def nearby_job(
    target: Target,
    directory: Path | None = None,
    *,
    epsilon: float,
    n: int = 20,
    shares: Sequence[float] = SHARES,
) -> Job[NearbyRecord]:
    """Measure the mean cosine and the mean length of n gradients at x + d (2u - 1), u uniform, for distances d.

    A regularizer that sees the clean x alone may be met there alone: by a kink so narrow that no adversary lingers
    in it.  Gradients that come together again within a small part of epsilon tell.

    target: the network and its examples.
    directory: where the record is stored; None for nowhere.
    epsilon: the largest l_inf distance.
    n: gradients at each point, of one sample model each; at least 2.
    shares: distances as shares of epsilon, all along one random direction for each example.

    Arrays: mean_cosine and length, both b x distances.
    """
    if n < 2:
        raise GradDivError(f"n is {n}, expected at least 2 gradients to compare")
    distances = [share * epsilon for share in shares]

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        u = uniform(fold(target.seed, "nearby", "direction"), ids, target.pixels).reshape(x.shape)
        found: dict[str, list[Tensor]] = {"mean_cosine": [], "length": []}
        for number, distance in enumerate(distances):
            point = displaced(x, u, distance)
            lengths: list[Tensor] = []
            gradients = _noting(lengths, models_of(target.F, n, fold(target.seed, "gradients")), point, y)
            with running_statistics(target.F):
                found["mean_cosine"].append(moments_of(gradients).mean_cosine())
            found["length"].append(torch.stack(lengths).mean(0))
            advance((number + 1) / len(distances))
        return {name: torch.stack(columns, 1) for name, columns in found.items()}

    settings = {"n": n, "epsilon": epsilon, "distances": distances}
    return target.job(NearbyRecord, settings, directory, measure, work=2.0 * n * len(distances))


def _noting(
    lengths: list[Tensor], models: Iterable[SampleModel], x: Tensor, y: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield s_i and grad s_i of each model, and note |grad s_i|."""
    for f in models:
        s, g = input_gradient(f, x, y)
        lengths.append(torch.linalg.vector_norm(g.flatten(1), dim=1))
        yield s, g


def displaced(x: Float[Tensor, "b ..."], u: Float64[Tensor, "b ..."], distance: float) -> Float[Tensor, "b ..."]:
    """x + distance (2u - 1), reflected at 0 and 1: clipped, the half of all black pixels that u darkens would stay."""
    moved = (x + distance * (2 * u - 1).to(x.dtype)).abs()
    return torch.where(moved > 1, 2 - moved, moved)
