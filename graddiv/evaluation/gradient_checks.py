"""The checks of gradients: are they there, are they right, do they lead anywhere?"""

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from jaxtyping import Float
from torch import Tensor

from graddiv.directions.gradients import ZERO, directions
from graddiv.directions.regularizers import mean_cosine
from graddiv.evaluation.layers import dying_layer
from graddiv.evaluation.look import Answer, Look
from graddiv.evaluation.nearby import displaced
from graddiv.evaluation.verdicts import Outcome
from graddiv.geometry import per_example
from graddiv.networks import running_statistics

STEP = 0.5 / 255
"""How far pixels are moved, at most, to see whether the gradient changes at once: half of what a byte can tell."""
STEADY, SHATTERED = 0.5, 0.1
"""Cosines of gradients so close to each other: from the first on all is well, below the second they are noise."""
MANY_ZERO, MOST_ZERO = 0.1, 0.5
"""Shares of gradients that are 0: from the first on attacks miss images, from the second on they miss the network."""
AWAY = 8 / 255
"""How far pixels are moved, at most, to see whether gradients of draws are as diverse there."""
KINKED = 0.15
"""How much greater the cosine of two draws is there than at the images, where they disperse in a kink."""
AGREE, DISAGREE = 0.1, 0.5
"""Relative errors of a gradient: up to the first it agrees with finite differences, from the second on it does not."""


ACROSS = 3
"""Random directions in which a gradient is compared with finite differences."""


def gradients(look: Look) -> Answer:
    """Absent, not finite, 0 or saturated gradients; and the layer in which they are lost."""
    g = look.gradients
    if g is None:
        return _lost(look, "autograd finds no way from the output to the input", {"absent": True})
    norms = torch.linalg.vector_norm(g.flatten(2).double(), dim=2)
    numbers: dict[str, Any] = {
        "zero": float((norms < ZERO).double().mean()),
        "not_finite": float((~norms.isfinite()).double().mean()),
    }
    if numbers["not_finite"] > 0:
        said = f"{100 * numbers['not_finite']:.0f} % of the gradients are NaN or infinite: look for roots and"
        return "fail", f"{said} logarithms of 0, and divisions by it", numbers
    if numbers["zero"] >= MOST_ZERO:
        return _lost(look, f"{100 * numbers['zero']:.0f} % of the gradients are exactly 0", numbers)
    if numbers["zero"] >= MANY_ZERO:
        share = f"{100 * numbers['zero']:.0f} % of the gradients are exactly 0"
        return "warn", f"{share}: attacks by gradients leave these images alone", numbers
    numbers["saturated"] = _saturated(look)
    said = "all images have gradients" if numbers["zero"] == 0 else f"{100 * numbers['zero']:.1f} % of them are 0"
    if numbers["saturated"] > 0.05:
        share = f"cross-entropy in float32 has no gradient at {100 * numbers['saturated']:.0f} % of the images"
        said += f"; {share}, which blinds other libraries (here the margin is differentiated)"
    return "pass", said, numbers


def _lost(look: Look, what: str, numbers: dict[str, Any]) -> Answer:
    """The finding of gradients that are not there: where they are lost, and what to do."""
    found = dying_layer(look.F.module, look.models[0], *look.near)
    numbers["layer"] = f"{found[0]} ({type(found[1]).__name__})" if found else None
    where = f"lost in the layer {numbers['layer']}" if found else "lost in code of the network's own forward"
    remedy = "straight_through(fn) in its place lets them through as if it were the identity"
    return "fail", f"{what}, {where}: no attack by gradients can work; {remedy}", numbers


def _saturated(look: Look) -> float:
    """The share of images at which the gradient of the cross-entropy, as others compute it, is exactly 0."""
    x, y = look.near
    with running_statistics(look.F), torch.enable_grad():
        at = x.detach().requires_grad_()
        z = look.models[0](at)
        loss = torch.nn.functional.cross_entropy(z, y, reduction="sum")
        (g,) = torch.autograd.grad(loss, at)
    return float((g.flatten(1) == 0).all(1).double().mean())


def optimization(look: Look) -> Answer:
    """A network that takes gradients while it answers adapts to the attack: its own gradient is seldom right."""
    taken = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **options: Any) -> Any:
            nonlocal taken
            taken += 1
            return function(*arguments, **options)

        return count

    with (
        patch("torch.autograd.grad", counted(torch.autograd.grad)),
        patch("torch.autograd.backward", counted(torch.autograd.backward)),
        running_statistics(look.F),
        torch.enable_grad(),
    ):
        look.models[0](look.x[:1])
    if taken:
        said = f"it takes {taken} gradients to give an answer: attack the last of its steps apart, too"
        return "warn", said, {"taken": taken}
    return "pass", "no gradient is taken while it answers", {"taken": 0}


def differences(look: Look) -> Answer:
    """(s(x + h u) - s(x - h u)) / 2h against <grad s, u>, with the noise replayed, along the gradient and across.

    Along it alone a part of the network that is detached would not be seen: the gradient does not point there.
    """
    if not look.usable:
        return "not enough evidence", "there are no gradients to compare", {}
    assert look.gradients is not None
    g = look.gradients[0]
    along = _errors(look, g)
    root = math.sqrt(g[0].numel())  # <grad s, u> is so much smaller across than along the gradient
    random = [_errors(look, look.offset("across", i)) for i in range(ACROSS)]
    across = {h: root * sorted(error[h] for error in random)[ACROSS // 2] for h in along}
    errors = min(along.values()), min(across.values())
    best = max(errors)
    numbers = {
        "relative_error": errors[0],
        "relative_error_across": errors[1],
        "steps": [f"{h:g}: {along[h]:.3g} along, {across[h]:.3g} across" for h in along],
    }
    said = f"finite differences along the gradient differ from it by {100 * errors[0]:.2g} % (median)"
    said += f", in random directions by {100 * errors[1]:.2g} %"
    if best <= AGREE:
        return "pass", said, numbers
    if look.F.proxy_gradient:
        return "pass", f"{said}, as it must: a straight-through step stands in for one without gradient", numbers
    verdict: Outcome = "warn" if best < DISAGREE else "fail"
    return verdict, f"{said}: is a backward pass replaced or a part of the network detached?", numbers


def _errors(look: Look, direction: Float[Tensor, "k ..."]) -> dict[float, float]:
    """|(s(x + h u) - s(x - h u)) / 2h - <grad s, u>| / |grad s|, the median over images, for steps h a pixel."""
    assert look.gradients is not None
    f, g, x = look.models[0], look.gradients[0], look.near[0]
    length, size = (torch.linalg.vector_norm(v.flatten(1), dim=1).clamp_min(ZERO) for v in (g, direction))
    there = length > ZERO
    unit = direction / per_example(size, direction)
    slope = (g * unit).flatten(1).sum(1)
    errors = {}
    for h in (1e-5, 1e-4, 1e-3):
        step = h * math.sqrt(x[0].numel())
        measured = (look.margins(f, x + step * unit) - look.margins(f, x - step * unit)) / (2 * step)
        errors[h] = float(((measured - slope).abs() / length)[there].median())
    return errors


def roughness(look: Look) -> Answer:
    """Cosine of gradients of one draw less than half a grey level apart; and, apart from it, of draws at one point."""
    if not look.usable:
        return "not enough evidence", "there are no gradients to compare", {}
    assert look.gradients is not None
    x, y = look.near
    f, g = look.models[0], look.gradients
    moved = look.gradient(f, (x + STEP * look.offset("move")).clamp(0, 1), y)
    close = _cosine(g[0], moved)
    among = float(torch.stack([_mean(_cosine(g[0], other)) for other in g[1:]]).mean()) if len(g) > 1 else 1.0
    same = float(_mean(close))
    change = torch.stack(
        [(look.margins(f, x + STEP * look.offset("near", i)) - look.margins(f, x)).abs() for i in range(4)]
    ).mean()
    own = look.logits[:, : len(x)].gather(2, y.expand(len(g), -1)[..., None])
    numbers = {
        "cosine_same_draw": same,
        "cosine_other_draws": among,
        "change_of_margin": float(change),
        "noise_of_logit": float(own.std(0).mean()) if len(g) > 1 else 0.0,
    }
    said = f"gradients of one draw less than half a grey level apart have cosine {same:.2f}"
    said += f", those of two draws at one point {among:.2f}" if len(g) > 1 else ""
    if same >= STEADY:
        return "pass", said, numbers
    verdict: Outcome = "warn" if same >= SHATTERED else "fail"
    return verdict, f"{said}: they lead nowhere, whatever the noise does; attacks without gradients decide", numbers


def kink(look: Look) -> Answer:
    """Cosine of gradients of two draws at an image, and a little away from it.

    A network trained to have diverse gradients at its images may have them there alone, in kinks that no attack
    stays in: concentration at the images then says nothing of what an adversary meets.
    """
    if not look.usable:
        return "not enough evidence", "there are no gradients to compare", {}
    if len(look.models) == 1:
        return "pass", "one function, one gradient at each image", {}
    assert look.gradients is not None
    x, y = look.near
    moved = displaced(x, (look.offset("kink").double() + 1) / 2, AWAY)
    away = torch.stack([look.gradient(f, moved, y) for f in look.models])
    at, around = (float(_mean(mean_cosine(directions(g).v))) for g in (look.gradients, away))
    numbers = {"cosine_at_images": at, "cosine_around_them": around, "distance": AWAY}
    said = f"gradients of two draws have cosine {at:.2f} at images and {around:.2f} at most 8 grey levels away"
    if around < at + KINKED:
        return "pass", said, numbers
    return "warn", f"{said}: they disperse in a kink at the images alone, which does not slow an attack", numbers


def _cosine(a: Float[Tensor, "k ..."], b: Float[Tensor, "k ..."]) -> Float[Tensor, " k"]:
    """Of each pair of gradients; NaN where one is 0."""
    a, b = a.flatten(1).double(), b.flatten(1).double()
    cosine: Tensor = (a * b).sum(1) / (torch.linalg.vector_norm(a, dim=1) * torch.linalg.vector_norm(b, dim=1))
    return cosine


def _mean(values: Float[Tensor, " k"]) -> Float[Tensor, ""]:
    """Over those that are numbers; 1 where none is."""
    there = values[values.isfinite()]
    return there.mean() if len(there) else values.new_ones(())
