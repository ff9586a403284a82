"""Look before attacking: what can make an evaluation of a network mean something else than it seems to.

CHECKS lists all checks, those of gradients in gradient_checks.py among them.  `graddiv audit` shows every answer;
`evaluate` warns of those that are not a pass.
"""

import math
from typing import Any

import torch

from graddiv.evaluation.gradient_checks import differences, gradients, kink, optimization, roughness
from graddiv.evaluation.look import Answer, Check, Look, draws_by_itself
from graddiv.evaluation.prediction import models_of
from graddiv.networks import running_statistics
from graddiv.networks.randomized import DROPOUT
from graddiv.registries import Registry
from graddiv.seeding import fold

DRAWN, REPEATING = 32, 0.5
"""Draws whose answers are counted; where no more than this share of them differs, noise seems to have few values."""

MANY = 30
"""Examples from which on an accuracy is compared with chance."""


def scale(look: Look) -> Answer:
    """Pixels that fill little of [0, 1] were probably divided by 255 twice."""
    low, high = float(look.x.min()), float(look.x.max())
    numbers = {"least": low, "greatest": high}
    said = f"pixels lie between {low:.3g} and {high:.3g}"
    if high - low < 0.1:
        return "warn", f"{said}, a small part of [0, 1]: divided by 255 twice, or bounds that are too wide?", numbers
    return "pass", said, numbers


def random(look: Look) -> Answer:
    """Draws must differ where the network is said to be random, and only there."""
    z = torch.cat([look.logits, look.logits_elsewhere], 1)
    different = len({tuple(row) for row in z.flatten(1).tolist()}) if look.F.random else 1
    silent = [name for name, m in look.F.named_modules() if isinstance(m, DROPOUT) and not m.training and m.p > 0]
    native = not look.F.random and draws_by_itself(look.models[0], look.F, look.x[:2])
    numbers: dict[str, Any] = {"draws": len(z), "different": different, "dropout_layers": len(silent)}
    if native:
        remedy = "pass randomize(module), which makes its noise a value that can be drawn again"
        return "fail", f"it is taken as deterministic, but two calls with the same input differ: {remedy}", numbers
    if look.F.random and different == 1:
        remedy = "is dropout switched off in eval mode? randomize(module, active=(ItsType,)) names layers to keep on"
        return "fail", f"it is said to be random, but {len(z)} draws give the same answers: {remedy}", numbers
    if look.F.random:
        spread = float(z.std(0).mean() / z.std().clamp_min(1e-12))
        numbers["spread"] = spread
        return "pass", f"random: {different} of {len(z)} draws answer differently", numbers
    if silent:
        said = f"deterministic: dropout is switched off in {', '.join(silent)}"
        if look.declared is None:
            remedy = "pass randomize(module) if it goes on drawing when the network answers, Dirac(module) if not"
            return "warn", f"{said}; {remedy}", numbers
        return "pass", said, numbers
    return "pass", "deterministic: every call gives the same answer", numbers


def replay(look: Look) -> Answer:
    """A sample model is a function: called twice it must say the same."""
    with torch.no_grad(), running_statistics(look.F):
        again = look.models[0](look.x)
    apart = float((again - look.logits[0]).abs().max())
    numbers = {"largest_difference": apart}
    if apart > 1e-4 * (1 + float(again.abs().max())):
        remedy = "draw from torch's, NumPy's or Python's global generators only, which can be set"
        return "fail", f"two calls with the same noise differ by up to {apart:.3g}: {remedy}", numbers
    return "pass", "noise that is drawn again gives the same function", numbers


def pointwise(look: Look) -> Answer:
    """f(x)[0] must not change with x[1:], for the same noise; that noise falls on rows by their place is no harm."""
    if len(look.x) < 2:
        return "not enough evidence", "there is one image only", {}
    f, others = look.models[0], look.x.clone()
    others[1:] = 1 - others[1:]
    with torch.no_grad(), running_statistics(look.F):
        moved = float((f(others)[0] - look.logits[0][0]).abs().max())
        shifted = float((f(look.x[1:]) - look.logits[0][1:]).abs().max())
    allowed = 1e-3 * (1 + float(look.logits[0].abs().max()))
    numbers = {"change_with_other_images": moved, "change_with_place": shifted}
    if moved > allowed:
        remedy = "does it use statistics of the batch? Accuracies then depend on which images are judged together"
        return "warn", f"other images in the batch move the answer by up to {moved:.3g}: {remedy}", numbers
    if shifted > allowed:
        return "pass", "noise falls on images by their place in the batch; batches are kept as they are", numbers
    return "pass", "images can be looked at in any batch", numbers


def support(look: Look) -> Answer:
    """With finitely many, expectations are exact sums."""
    if not look.F.random:
        return "pass", "one: the network is deterministic", {"outcomes": 1}
    known = look.F.support()
    if known is None:
        seen = _different_draws(look)
        said = "unknown or infinitely many: expectations are estimated from draws"
        if seen <= REPEATING * DRAWN:
            said = f"unknown, but {DRAWN} draws gave {seen} different answers: it seems to have few values"
            said += "; a list of modules, one for each of them, would make expectations exact"
        return "pass", said, {"outcomes": None, "seen": seen}
    return "pass", f"{len(known.noises)}: expectations over them are exact sums", {"outcomes": len(known.noises)}


def _different_draws(look: Look) -> int:
    """How many of some draws differ in their answers to two images."""
    models = models_of(look.F, DRAWN, fold(look.seed, "support"))
    with torch.no_grad(), running_statistics(look.F):
        return len({tuple(f(look.x[:2]).flatten().tolist()) for f in models})


def logits(look: Look) -> Answer:
    """Softmax of a softmax flattens the loss: attacks and ensembles would see hardly any difference."""
    z = look.logits.double()
    off = float((z.sum(2) - 1).abs().max())
    numbers = {"classes": z.shape[2], "sum_off_one": off, "least": float(z.min()), "greatest": float(z.max())}
    if off < 1e-3 and float(z.min()) >= 0:
        remedy = "return the logits, or the logarithm of the probabilities"
        return "warn", f"every answer is between 0 and 1 and sums to 1, so these are probabilities: {remedy}", numbers
    return "pass", f"{z.shape[2]} logits between {numbers['least']:.3g} and {numbers['greatest']:.3g}", numbers


def accuracy(look: Look) -> Answer:
    """One-sided test against always naming the most frequent class."""
    right = (look.logits.argmax(2) == look.y).double().mean(0)
    chance = float(torch.bincount(look.y).max() / len(look.y))
    share, b = float(right.mean()), len(right)
    spread = math.sqrt(max(chance * (1 - chance), 1e-12) / b)
    numbers = {"accuracy": share, "chance": chance, "examples": b}
    said = f"{100 * share:.1f} % of {b} images, where always naming one class gives {100 * chance:.1f} %"
    if b < MANY:
        return "not enough evidence", said, numbers
    if share < chance + 2.33 * spread and chance < 1:
        return "fail", f"{said}: do labels, their order and the scale of the input fit the network?", numbers
    return "pass", said, numbers


CHECKS: Registry[Check] = Registry(
    "check",
    {
        "scale": Check("the input has the scale that the network expects", scale),
        "random": Check("the network is what it is said to be, random or not", random),
        "replay": Check("the same noise gives the same answer", replay, decisive=True),
        "pointwise": Check("an answer depends on its own image alone", pointwise),
        "support": Check("how many functions the noise can make", support),
        "logits": Check("the output is logits", logits),
        "accuracy": Check("clean accuracy is above chance", accuracy, decisive=True),
        "gradients": Check("gradients reach the input", gradients),
        "optimization": Check("answers are not found by optimization", optimization),
        "differences": Check("the gradient is the derivative", differences),
        "roughness": Check("the loss is smooth enough to follow", roughness),
        "kink": Check("gradients are as diverse around images as at them", kink),
    },
)
"""Every check by name, in the order in which they are made."""
