"""Decision regions of sample models around an example, on the plane that two runs of EOT-PGD span."""

from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from graddiv.attacks import EOT, PGD
from graddiv.evaluation.batches import Advance, Job
from graddiv.evaluation.prediction import count_models, models_of, predict
from graddiv.evaluation.target import Target
from graddiv.geometry import per_example
from graddiv.networks import running_statistics
from graddiv.records import BoundaryRecord
from graddiv.seeding import fold, uniform

REACH = 3.0
"""How far the plane extends from the image, in lengths of the perturbation."""


def boundary_job(
    target: Target,
    directory: Path | None = None,
    *,
    epsilon: float,
    examples: int = 4,
    models: int = 10,
    grid: int = 41,
    n: int = 10,
    m: int = 20,
) -> Job[BoundaryRecord]:
    """The class that each sample model, and last the ensemble, names at x + c_i axis_1 + c_j axis_2, cut to the box.

    The first axis is the perturbation of EOT-PGD, the second that of another run, with other models and another start,
    made orthogonal to the first and as long.  Arrays: regions (k x (models + 1) x grid x grid, bytes), axes (k x 2 x
    image), images.  The coordinates c are in the description.

    target: the network and its examples.
    directory: where the record is stored; None for nowhere.
    epsilon: the l_inf radius of the attacks.
    examples: how many examples, the first ones, are shown.
    models: how many sample models are shown; all there are where the network has fewer, such as a small ensemble.
    grid: points along each axis; odd, so that the image itself is one of them.
    n, m: sample models in each iteration of the attacks, and iterations.
    """
    target = target.first(examples)
    models = min(models, count_models(target.F, max(models, target.n_ensemble)))
    attack = PGD(m=m, random_start=True)
    low, high = attack.geometry.bounds
    coordinates = torch.linspace(-REACH, REACH, grid, dtype=torch.float64)
    settings = {"epsilon": epsilon, "n": n, "m": m, "models": models, "coordinates": coordinates.tolist()}

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        found = []
        for run in range(2):
            seed = fold(target.seed, "boundary", run)
            x_adv = replace(attack, seed=seed)(EOT(target.F, n, seed), x, y, epsilon, ids=ids)
            found.append(x_adv - x)
            advance((run + 1) / 4)
        axes = torch.stack([found[0], _second_axis(found[0], found[1], ids)], 1)
        c = coordinates.to(x)
        regions = []
        for number in range(len(x)):
            plane = x[number] + torch.einsum("i,...->i...", c, axes[number, 0])[:, None]
            points = (plane + torch.einsum("j,...->j...", c, axes[number, 1])[None]).flatten(0, 1).clamp(low, high)
            regions.append(_predicted_classes(target, points, models).reshape(models + 1, grid, grid))
            advance(0.5 + (number + 1) / len(x) / 2)
        return {"regions": torch.stack(regions), "axes": axes, "images": x}

    work = 4.0 * n * m + grid**2 / target.batch * examples * target.n_ensemble
    return target.job(BoundaryRecord, settings, directory, measure, work=work)


def _predicted_classes(target: Target, points: Float[Tensor, "g ..."], models: int) -> UInt8[Tensor, "k g"]:
    """Return the class at each point: for each of the first `models` members of the ensemble, then for the ensemble."""
    predict(target.F, points[:2], n=1)  # lets a foreign network find out whether its models are pointwise
    parts = torch.split(points, target.batch if target.F.pointwise else 1)
    answers, scores = [], torch.zeros((), dtype=torch.float64, device=points.device)
    with torch.no_grad(), running_statistics(target.F):
        for f in models_of(target.F, max(models, target.n_ensemble), fold(target.seed, "boundary", "models")):
            z = torch.cat([f(part) for part in parts])
            answers.append(z.argmax(1))
            scores = scores + z.double().softmax(1)
    return torch.stack([*answers[:models], scores.argmax(1)]).to(torch.uint8)


def _second_axis(first: Float[Tensor, "b ..."], second: Float[Tensor, "b ..."], ids: Tensor) -> Float[Tensor, "b ..."]:
    """Return the part of `second` orthogonal to `first`, scaled to the same length.

    Where the two are parallel, so that nothing is left, a random orthogonal direction takes its place.
    """
    noise = (uniform(0, ids, first[0].numel()) - 0.5).to(first.dtype).reshape(first.shape)
    rest, other = (_orthogonal(candidate, first) for candidate in (second, noise))
    rest = torch.where(per_example(_length(rest) > 1e-3 * _length(second), rest), rest, other)
    return rest * per_example(_length(first) / _length(rest).clamp_min(1e-30), rest)


def _orthogonal(v: Float[Tensor, "b ..."], to: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
    """v - (v.u) u with u = to / |to|."""
    u = to / per_example(_length(to).clamp_min(1e-30), to)
    return v - per_example((v * u).flatten(1).sum(1), u) * u


def _length(v: Float[Tensor, "b ..."]) -> Float[Tensor, " b"]:
    length: Tensor = torch.linalg.vector_norm(v.flatten(1), dim=1)
    return length
