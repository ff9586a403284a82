"""Does the gradient predict the loss at the scale of the attack?  And which surrogate predicts it best?"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import interpolate

from graddiv.attacks import EOT, PGD
from graddiv.diversity.gradients import input_gradient
from graddiv.evaluation.inspection import Answer
from graddiv.evaluation.run import Advance, Job
from graddiv.evaluation.straight_through import WIDTHS
from graddiv.evaluation.surrogates import Smoothed, steps_without_gradient, straight_through_surrogate
from graddiv.evaluation.target import Target
from graddiv.geometry import Geometry
from graddiv.losses import soft_margin
from graddiv.networks import RandomizedNetwork, running_statistics
from graddiv.records import ExplainedRecord
from graddiv.records.intervals import Z
from graddiv.seeding import fold, generator, uniform
from graddiv.store import digest

PARTS = 8  #: Parts of a path, at whose ends gradients are taken.
STEPS = (1, 2, 4, 8)  #: Parts after which changes are compared: epsilon/8, /4, /2 and epsilon.
DRAWN = 2  #: Draws of noise that are replayed.
SHIFTS = 8  #: Shifts over which the changes that a surrogate predicts are averaged: it stands for jumps by slopes.
COARSENESS = (1, 4, None)  #: Sides, in pixels, of the squares of random directions; None: the whole image.
EXPLAINED = 0.85  #: A gradient is right if the lower end of its share's interval is this at least.
FOLLOWED = 0.9  #: The least share, on a few images, with which the network's own gradient is followed.
STANDS_IN = 0.75  #: The least share with which a surrogate may stand in for a wrong gradient.
TRIED = 16  #: Images on which a surrogate is chosen.
OWN = "network"


class Share(NamedTuple):
    """A mean over images, with its 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, shares: np.ndarray) -> "Share":
        there = shares[np.isfinite(shares)].astype(float)
        if len(there) == 0:
            return cls(math.nan, math.nan, math.nan)
        half = Z * float(there.std(ddof=1)) / math.sqrt(len(there)) if len(there) > 1 else 1.0
        mean = float(there.mean())
        return cls(mean, max(0.0, mean - half), min(1.0, mean + half))

    def __str__(self) -> str:
        return f"{100 * self.mean:.0f} % ({100 * self.low:.0f} to {100 * self.high:.0f})"


def explained_share(
    F: RandomizedNetwork, seen: RandomizedNetwork, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"],
    ends: Sequence[Tensor], *, shifts: int = 1, width: float = 0.0, seed: int = 0,
) -> Float[Tensor, "ends b"]:  # fmt: skip
    """1 - sum (D - P)^2 / sum D^2, at least 0: D the change of F's margin, P its prediction by gradients of `seen`.

    The sums are over steps of epsilon/8 .. epsilon on the way from x to an end, and over draws of the noise, which are
    replayed.  P is the path integral of the gradient.  With several shifts of x, up to `width` in each pixel, D and P
    are averaged over them and the draws first.
    """
    with torch.no_grad():
        noises = [F.draw(fold(seed, "explained", i)) for i in range(DRAWN if F.random else 1)]
    found = []
    for end in ends:
        changes, predictions = [], []
        for number, noise in enumerate(noises):
            with torch.no_grad():
                f = F.bind(noise, F.theta())
                own = fold(seed, "seen", number)
                g = seen.bind(seen.draw(own) if isinstance(seen, Smoothed) else noise, seen.theta())
            for shift in range(shifts):
                u = 2 * torch.rand(x.shape, generator=generator(fold(seed, "shift", shift)), dtype=x.dtype) - 1
                start = x + (width * u.to(x) if shifts > 1 else 0.0)
                values, slopes = [], []
                for part in range(PARTS + 1):
                    at = start + part / PARTS * (end - x)
                    with running_statistics(F):
                        slope = input_gradient(g, at, y)[1] * (end - x)
                        with torch.no_grad():
                            values.append(soft_margin(f(at), y).double())
                    slopes.append(slope.flatten(1).double().sum(1))
                s = torch.stack(slopes)
                integral = ((s[1:] + s[:-1]) / (2 * PARTS)).cumsum(0)
                steps = torch.tensor(STEPS, device=x.device)
                changes.append(torch.stack(values)[steps] - values[0])
                predictions.append(integral[steps - 1])
        D, P = torch.stack(changes), torch.stack(predictions)
        if shifts > 1:
            D, P = D.mean(0, keepdim=True), P.mean(0, keepdim=True)
        error, size = (D - P).square().sum((0, 1)), D.square().sum((0, 1))
        share = (1 - error / size).nan_to_num(0.0, 0.0, 0.0).clamp_min(0)
        rounding = 1e-5 * (1 + values[0].abs())
        found.append(torch.where(size > rounding.square(), share, torch.nan))
    return torch.stack(found)


def random_ends(
    x: Float[Tensor, "b ..."], ids: Int64[Tensor, " b"], epsilon: float, geometry: Geometry, seed: int
) -> list[Tensor]:
    """Points of the ball's edge in random directions: a sign for each pixel, for each square of them, for the image."""
    radius, found = torch.full((len(x),), epsilon, dtype=x.dtype, device=x.device), []
    for side in COARSENESS if x.dim() == 4 else (1,):
        shape = list(x.shape[1:])
        if x.dim() == 4:
            shape[1:] = (math.ceil(length / (side or length)) for length in shape[1:])
        u = uniform(fold(seed, "explained", side or 0), ids, math.prod(shape)).reshape(len(x), *shape)
        signs = torch.where(u < 0.5, -1.0, 1.0).to(x.dtype)
        signs = interpolate(signs, size=x.shape[2:], mode="nearest") if x.dim() == 4 else signs
        found.append(geometry.project(x + geometry.steepest(signs, radius), x, radius))
    return found


def explained_job(
    target: Target, seen: RandomizedNetwork, of: str, ends: Sequence[np.ndarray], *, epsilon: float, geometry: Geometry
) -> Job[ExplainedRecord]:
    """Measure the share on the way to attacked images, and in random directions; `of` names the network `seen`."""
    shifts = 1 if of == OWN else SHIFTS
    hashed = digest(*(torch.from_numpy(end) for end in ends))
    settings = {"of": of, "images": hashed, "norm": geometry.name, "epsilon": epsilon, "shifts": shifts}

    def measure(x: Tensor, y: Tensor, ids: Tensor, advance: Advance) -> dict[str, Tensor]:
        along = [torch.from_numpy(end)[ids.cpu()].to(x) for end in ends]
        across = random_ends(x, ids, epsilon, geometry, target.seed)
        found = explained_share(
            target.F, seen, x, y, [*along, *across], shifts=shifts, width=epsilon / 2, seed=target.seed
        )
        return {"along": found[: len(along)].nanmean(0), "across": found[len(along) :].nanmean(0)}

    work = 3.0 * (PARTS + 1) * shifts * (len(ends) + len(COARSENESS)) * (DRAWN if target.random else 1)
    return target.job(ExplainedRecord, settings, measure, work=work)


class Choice(NamedTuple):
    """The network whose gradients are followed, and the others, by name."""

    name: str
    seen: RandomizedNetwork
    others: dict[str, RandomizedNetwork]
    shares: dict[str, float]  #: Of each candidate on a few images: the lesser of along and across.
    steps: list[str]  #: The functions of torch without a gradient that the network uses.


def follow(F: RandomizedNetwork, x: Tensor, y: Tensor, *, epsilon: float, geometry: Geometry, seed: int) -> Choice:
    """Follow the network's own gradient where it explains enough; else the surrogate that explains most."""
    x, y = x[:TRIED], y[:TRIED]
    ids = torch.arange(len(x), device=x.device)
    across = random_ends(x, ids, epsilon, geometry, seed)

    def share(seen: RandomizedNetwork, shifts: int) -> float:
        try:
            end = PGD(m=10, geometry=geometry)(EOT(seen, 2, fold(seed, "choice")), x, y, epsilon)
            found = explained_share(F, seen, x, y, [end, *across], shifts=shifts, width=epsilon / 2, seed=seed)
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError):  # what cannot be run is no surrogate
            return -1.0
        return float(torch.nan_to_num(torch.stack([found[0].nanmean(), found[1:].nanmean()])).min())

    try:
        steps = steps_without_gradient(F, x[:2])
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError):
        steps = []
    candidates = {OWN: F}
    if steps:
        candidates |= {
            f"{name} straight-through surrogate": straight_through_surrogate(F, w) for name, w in WIDTHS.items()
        }
    shares = {OWN: share(F, 1)}
    right = shares[OWN] >= FOLLOWED
    if not right:
        shares = {name: share(seen, SHIFTS) for name, seen in candidates.items()}
    best = OWN if right else max(shares, key=lambda name: shares[name])
    smooth = {
        sigma: Smoothed(candidates[best], sigma * epsilon_in_pixels(epsilon, geometry, x)) for sigma in (0.25, 0.5)
    }
    of_smooth = {sigma: share(seen, SHIFTS // 4) for sigma, seen in smooth.items()}
    sigma = max(of_smooth, key=lambda each: of_smooth[each])
    name = f"network smoothed by {sigma:g} ε"
    candidates[name], shares[name] = smooth[sigma], of_smooth[sigma]
    if not right and shares[name] > shares[best]:
        best = name
    others = {name: seen for name, seen in candidates.items() if name != best and shares.get(name, 0) >= 0}
    return Choice(best, candidates[best], others, shares, steps)


def epsilon_in_pixels(epsilon: float, geometry: Geometry, x: Tensor) -> float:
    """The length in each pixel of a step that is as long as epsilon."""
    return epsilon / float(geometry.norm(torch.ones_like(x[:1])))


def explanation(records: Sequence[ExplainedRecord], accuracy: float, tolerance: float) -> Answer:
    """Pass by the network's own gradient; a surrogate that explains enough makes it a warning."""
    least = [min((Share.of(r.along), Share.of(r.across)), key=lambda share: share.low) for r in records]
    words = [
        f"that of the {r.of} explains {Share.of(r.along)} of the margin's change on the way to attacked images, "
        f"{Share.of(r.across)} in random directions"
        for r in records
    ]
    numbers = {
        r.of: {"along": Share.of(r.along)._asdict(), "across": Share.of(r.across)._asdict(), "shifts": r.shifts}
        for r in records
    }
    said = "of gradients, " + "; ".join(words)
    own, stand_in = least[0], max((share.low for share in least[1:]), default=0.0)
    if math.isnan(own.mean):
        return "not enough evidence", "the margin changes nowhere", numbers
    if own.low >= EXPLAINED:
        return "pass", said, numbers
    if stand_in >= STANDS_IN:
        return "warn", f"{said}: the network's own gradient is wrong in part, and attacks follow the surrogate", numbers
    if accuracy <= tolerance:
        return "warn", f"{said}; attacks leave nothing to doubt", numbers
    return "fail", f"{said}; less than {100 * EXPLAINED:.0f} %: gradients do not lead where the loss is", numbers
