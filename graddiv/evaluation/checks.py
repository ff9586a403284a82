"""The checks of a network before any attack: `audit` makes all of them, `evaluate` warns of the quick ones."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode

from graddiv.diversity.gradients import ZERO, directions
from graddiv.diversity.regularizers import mean_cosine
from graddiv.evaluation.inspection import CHECKS, DRAWS, Answer, Inspection, Outcome, check
from graddiv.evaluation.jobs import displaced
from graddiv.geometry import per_example
from graddiv.losses import soft_margin
from graddiv.networks import SampleModel, running_statistics
from graddiv.networks.foreign import CALLS, SURELY, draws_by_itself, sources
from graddiv.networks.prediction import models_of
from graddiv.networks.randomized import DROPOUT
from graddiv.seeding import fold

__all__ = ["CHECKS"]

DRAWN, REPEATING = 32, 0.5  #: Draws to compare; if at most this share of them differs, the noise has few values.
MANY = 30  #: Examples from which on an accuracy is compared with chance.
STEP = 0.5 / 255  #: How far pixels are moved, at most, to see whether the gradient changes at once: half a gray level.
STEADY, SHATTERED = 0.5, 0.1  #: Cosines of these gradients: smooth from the first on, noise below the second.
MANY_ZERO, MOST_ZERO = 0.1, 0.5  #: Shares of zero gradients from which attacks miss images, or the network.
AWAY = 8 / 255  #: How far pixels are moved, at most, to see whether gradients of draws are as diverse there.
KINKED = 0.15  #: How much greater the cosine of two draws is there than at the images, where they disperse in a kink.
AGREE, DISAGREE = 0.1, 0.5  #: Relative errors up to which a gradient is right, and from which on it is wrong.
ACROSS = 3  #: Random directions in which a gradient is compared with finite differences.

NOTHING: Answer = ("not enough evidence", "there are no gradients to compare", {})


@check("the input has the scale that the network expects")
def scale(seen: Inspection) -> Answer:
    """Raised if the pixels fill less than a tenth of [0, 1].
    Means: they were probably divided by 255 twice, or bounds are too wide; epsilon is then far too large.
    Do: pass x as the network takes it, with bounds=(low, high) unless that is [0, 1].
    """
    low, high = float(seen.x.min()), float(seen.x.max())
    numbers = {"least": low, "greatest": high}
    said = f"pixels lie between {low:.3g} and {high:.3g}"
    if high - low < 0.1:
        return "warn", f"{said}, a small part of [0, 1]: divided by 255 twice, or bounds that are too wide?", numbers
    return "pass", said, numbers


@check("the network is what it is said to be, random or not")
def random(seen: Inspection) -> Answer:
    """Raised if calls of a network taken as deterministic differ, if draws of a random one agree, or dropout is off.
    Means: attacks and scores would see another network than the one that answers.
    Do: pass randomize(module) if it draws when it answers, Dirac(module) if it does not.
    """
    z = seen.logits_of_draws
    different = len({tuple(row) for row in z.flatten(1).tolist()}) if seen.F.random else 1
    silent = [name for name, m in seen.F.named_modules() if isinstance(m, DROPOUT) and not m.training and m.p > 0]
    numbers: dict[str, Any] = {"draws": len(z), "different": different, "dropout_layers": len(silent)}
    if not seen.F.random and seen.draws:
        remedy = "pass randomize(module), which makes its noise a value that can be drawn again"
        return "fail", f"it is taken as deterministic, but two calls with the same input differ: {remedy}", numbers
    if seen.F.random and different == 1:
        remedy = "is dropout switched off in eval mode? randomize(module, active=(ItsType,)) names layers to keep on"
        return "fail", f"it is said to be random, but {len(z)} draws give the same answers: {remedy}", numbers
    if seen.F.random:
        numbers["spread"] = float(z.std(0).mean() / z.std().clamp_min(1e-12))
        return "pass", f"random: {different} of {len(z)} draws answer differently", numbers
    if silent:
        said = f"deterministic: dropout is switched off in {', '.join(silent)}"
        if seen.declared is None:
            remedy = "pass randomize(module) if it goes on drawing when the network answers, Dirac(module) if not"
            return "warn", f"{said}; {remedy}", numbers
        return "pass", said, numbers
    return "pass", f"deterministic: {CALLS} calls gave the same answer, and {SURELY}", {**numbers, "calls": CALLS}


@check("the same noise gives the same answer", decisive=("fail",))
def replay(seen: Inspection) -> Answer:
    """Raised if two calls with the same noise differ.
    Means: common random numbers, ladders and a second scoring are not exact, since each call is another function.
    Do: draw from the global generators of torch, NumPy or Python, which can be set, and pass randomize(module).
    """
    z, again = (seen.answer(seen.models[0], seen.x, seed).nan_to_num() for seed in (1, 2))
    apart = float((again - z).abs().max())
    numbers: dict[str, Any] = {"largest_difference": apart, "calls": CALLS}
    if not seen.draws and apart <= 1e-4 * (1 + float(again.abs().max())):
        return "pass", f"noise that is drawn again gives the same function: of {CALLS} calls, {SURELY}", numbers
    said = f"calls with the same noise differ{f' by up to {apart:.3g}' if apart else ''}"
    if not draws_by_itself(lambda x: seen.answer(seen.models[0], x, seed=1), seen.F, seen.x[:2]):
        return "fail", f"{said}, since the module draws beside it: pass randomize(module)", numbers
    numbers["sources"] = sources(seen.F)
    which = ", ".join(numbers["sources"]) or "such as os.urandom, secrets, the clock, or a counter of calls"
    remedy = "draw from torch's, NumPy's or Python's global generators only, which can be set"
    return "fail", f"{said}, and some of it comes from where no seed reaches ({which}): {remedy}", numbers


@check("every answer is a number")
def numbers(seen: Inspection) -> Answer:
    """Raised if some logits are NaN.
    Means: there is no answer; the audit counts each as a wrong one, and an attack may look for more.
    Do: look for roots and logarithms of 0, for divisions by it, and for numbers too large for half precision.
    """
    models = enumerate(models_of(seen.F, CALLS, fold(seen.seed, "numbers")))
    answers = [seen.answer(f, seen.x if i < DRAWS else seen.x[:2]) for i, f in models]
    missing = torch.stack([z.isnan().any(1).double().mean() for z in answers])
    draws, share = int((missing > 0).sum()), float(missing.mean())
    found = {"draws": len(missing), "draws_with_nan": draws, "share_of_answers": share}
    if not draws:
        return "pass", "no logit is NaN", found
    if share == 1:
        return "fail", "every answer is NaN: look at the network's weights and at the input", found
    said = f"{100 * share:.2g} % of the answers are NaN"
    said += f", and {draws} of {len(missing)} draws have some" if seen.F.random else ""
    return "warn", f"{said}: look for roots and logarithms of 0, and divisions by it", found


@check("an answer depends on its own image alone")
def pointwise(seen: Inspection) -> Answer:
    """Raised if other images in the batch change the answer for an image, with the same noise.
    Means: accuracy depends on which images are judged together, and an attack on one image moves the others.
    Do: call model.eval(), so that batch norm uses its running statistics.
    """
    if len(seen.x) < 2:
        return "not enough evidence", "there is one image only", {}
    f, z, others = seen.models[0], seen.logits[0], seen.x.clone()
    others[1:] = 1 - others[1:]
    moved = float((seen.answer(f, others)[0] - z[0]).abs().max())
    shifted = float((seen.answer(f, seen.x[1:]) - z[1:]).abs().max())
    allowed = 1e-3 * (1 + float(z.abs().max()))
    numbers = {"change_with_other_images": moved, "change_with_place": shifted}
    if moved > allowed:
        remedy = "does it use statistics of the batch? Accuracies then depend on which images are judged together"
        return "warn", f"other images in the batch move the answer by up to {moved:.3g}: {remedy}", numbers
    if shifted > allowed:
        return "pass", "noise falls on images by their place in the batch; batches are kept as they are", numbers
    return "pass", "images can be looked at in any batch", numbers


@check("how many functions the noise can make")
def support(seen: Inspection) -> Answer:
    """Raised if never: it reports how many different functions the noise makes, if that is known.
    Means: with finitely many, A1 and W_k are exact in the noise; otherwise they are estimates from draws.
    Do: pass a list of modules, one for each value, if the noise has few.
    """
    if not seen.F.random:
        return "pass", "one: the network is deterministic", {"outcomes": 1}
    if (known := seen.F.support()) is not None:
        outcomes = len(known.noises)
        return "pass", f"{outcomes}: expectations over them are exact sums", {"outcomes": outcomes}
    models = models_of(seen.F, DRAWN, fold(seen.seed, "support"))
    different = len({tuple(seen.answer(f, seen.x[:2]).flatten().tolist()) for f in models})
    said = "unknown or infinitely many: expectations are estimated from draws"
    if different <= REPEATING * DRAWN:
        said = f"unknown, but {DRAWN} draws gave {different} different answers: it seems to have few values"
        said += "; a list of modules, one for each of them, would make expectations exact"
    return "pass", said, {"outcomes": None, "seen": different}


@check("the output is logits")
def logits(seen: Inspection) -> Answer:
    """Raised if every answer is between 0 and 1 and sums to 1.
    Means: the network returns probabilities; softmax of them flattens the loss that attacks follow.
    Do: return the logits; the audit takes the logarithm of the probabilities, and goes on.
    """
    z = seen.logits.double()
    if not len(z := z[~z.isnan().any(2)]):
        return "not enough evidence", "no answer is a number", {}
    off = float((z.sum(1) - 1).abs().max())
    numbers = {"classes": z.shape[1], "sum_off_one": off, "least": float(z.min()), "greatest": float(z.max())}
    if off < 1e-3 and float(z.min()) >= 0:
        remedy = "return the logits, or the logarithm of the probabilities"
        return "warn", f"every answer is between 0 and 1 and sums to 1, so these are probabilities: {remedy}", numbers
    return "pass", f"{z.shape[1]} logits between {numbers['least']:.3g} and {numbers['greatest']:.3g}", numbers


@check("clean accuracy is above chance", decisive=("fail",))
def accuracy(seen: Inspection) -> Answer:
    """Raised if clean images are not classified better than by naming one class (one-sided test, 1 %).
    Means: labels, their order or the scale of the input do not fit, so that accuracy under attack says nothing.
    Do: compare model(x).argmax(1) with y by hand.
    """
    right = (seen.logits.argmax(2) == seen.y).double().mean(0)
    chance = float(torch.bincount(seen.y).max() / len(seen.y))
    share, b = float(right.mean()), len(right)
    spread = math.sqrt(max(chance * (1 - chance), 1e-12) / b)
    numbers = {"accuracy": share, "chance": chance, "examples": b}
    said = f"{100 * share:.1f} % of {b} images, where always naming one class gives {100 * chance:.1f} %"
    if b < MANY:
        return "not enough evidence", said, numbers
    if share < chance + 2.33 * spread and chance < 1:
        return "fail", f"{said}: do labels, their order and the scale of the input fit the network?", numbers
    return "pass", said, numbers


@check("gradients reach the input")
def gradients(seen: Inspection) -> Answer:
    """Raised if gradients at the input are absent, NaN or infinite, or exactly 0 at a tenth of the images or more.
    Means: attacks by gradients are blind there: what survives them is no evidence of robustness.
    Do: put straight_through(fn) in the place of the layer that is named; the audit follows a surrogate if it finds one.
    """
    g = seen.gradients
    if g is None:
        return _lost(seen, "autograd finds no way from the output to the input", {"absent": True})
    norms = torch.linalg.vector_norm(g.flatten(2).double(), dim=2)
    zero, broken = float((norms < ZERO).double().mean()), float((~norms.isfinite()).double().mean())
    numbers: dict[str, Any] = {"zero": zero, "not_finite": broken}
    share = f"{100 * zero:.0f} % of the gradients are exactly 0"
    if broken > 0:
        said = f"{100 * broken:.0f} % of the gradients are NaN or infinite: look for roots and"
        return "fail", f"{said} logarithms of 0, and divisions by it", numbers
    if zero >= MOST_ZERO:
        return _lost(seen, share, numbers)
    if zero >= MANY_ZERO:
        return "warn", f"{share}: attacks by gradients leave these images alone", numbers
    numbers["saturated"] = _saturated(seen)
    said = "all images have gradients" if zero == 0 else f"{100 * zero:.1f} % of them are 0"
    if numbers["saturated"] > 0.05:
        share = f"cross-entropy in float32 has no gradient at {100 * numbers['saturated']:.0f} % of the images"
        said += f"; {share}, which blinds other libraries (here the margin is differentiated)"
    return "pass", said, numbers


def _lost(seen: Inspection, what: str, numbers: dict[str, Any]) -> Answer:
    """The answer if gradients are missing: where they are lost, and what to do."""
    layer = numbers["layer"] = dying_layer(seen.F.module, seen.models[0], *seen.near)
    where = f"lost in the layer {layer}" if layer else "lost in code of the network's own forward"
    remedy = "straight_through(fn) in its place lets them through as if it were the identity"
    return "fail", f"{what}, {where}: no attack by gradients can work; {remedy}", numbers


def _saturated(seen: Inspection) -> float:
    """The share of images at which the gradient of the cross-entropy, as others compute it, is exactly 0."""
    x, y = seen.near
    with running_statistics(seen.F), torch.enable_grad():
        at = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(cross_entropy(seen.models[0](at), y, reduction="sum"), at)
    return float((g.flatten(1) == 0).all(1).double().mean())


def dying_layer(module: nn.Module, f: SampleModel, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"]) -> str | None:
    """Name the layer through which no gradient comes back; None where it is lost in code of the module's `forward`."""
    calls: list[tuple[str, Tensor, Tensor]] = []

    def remember(layer: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        before, after = ([a for a in each if isinstance(a, Tensor)] for each in (arguments, outputs))
        if before and after:
            calls.append((f"{names[layer]} ({type(layer).__name__})", before[0], after[0]))

    def arrives(at: Tensor) -> bool:
        if not at.requires_grad or not s.requires_grad:
            return False
        (gradient,) = torch.autograd.grad(s, at, retain_graph=True, allow_unused=True)
        return gradient is not None and bool((gradient != 0).any())

    names = {layer: name for name, layer in module.named_modules() if name and not list(layer.children())}
    hooks = [layer.register_forward_hook(remember) for layer in names]
    try:
        with torch.enable_grad(), running_statistics(module):
            s = soft_margin(f(x.detach().requires_grad_()), y).sum()
    finally:
        for hook in hooks:
            hook.remove()
    return next((name for name, before, after in reversed(calls) if arrives(after) and not arrives(before)), None)


class _CountGradients(TorchFunctionMode):
    """While active, counts the gradients that this thread takes."""

    taken = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.taken += func in (torch.autograd.grad, torch.autograd.backward, Tensor.backward)
        return func(*args, **(kwargs or {}))


@check("answers are not found by optimization")
def optimization(seen: Inspection) -> Answer:
    """Raised if the network takes gradients while it answers.
    Means: it adapts to the image, also to an attacked one; its own gradient is seldom that of the whole answer.
    Do: attack what it computes in its last step apart, too: graddiv.audit(last_step, x, y, epsilon=epsilon).
    """
    with running_statistics(seen.F), torch.enable_grad(), _CountGradients() as gradients:
        seen.models[0](seen.x[:1])
    if taken := gradients.taken:
        said = f"it takes {taken} gradients to give an answer: attack the last of its steps apart, too"
        return "warn", said, {"taken": taken}
    return "pass", "no gradient is taken while it answers", {"taken": 0}


@check("the gradient is the derivative")
def differences(seen: Inspection) -> Answer:
    """Raised if finite differences differ from the gradient by more than a tenth of its length.
    Means: a backward pass is replaced, or a part of the network is detached: attacks follow something else than the
    loss.
    Do: remove .detach() and no_grad, or name a replaced step with straight_through(fn).
    """
    if (found := seen.usable_gradients) is None:
        return NOTHING
    g = found[0]
    along = _errors(seen, g, g)
    root = math.sqrt(g[0].numel())  # <grad s, u> is so much smaller across than along the gradient
    random = [_errors(seen, g, seen.offset("across", i)) for i in range(ACROSS)]
    across = {h: root * sorted(error[h] for error in random)[ACROSS // 2] for h in along}
    errors = min(along.values()), min(across.values())
    steps = [f"{h:g}: {along[h]:.3g} along, {across[h]:.3g} across" for h in along]
    numbers = {"relative_error": errors[0], "relative_error_across": errors[1], "steps": steps}
    said = f"finite differences along the gradient differ from it by {100 * errors[0]:.2g} % (median)"
    said += f", in random directions by {100 * errors[1]:.2g} %"
    if max(errors) <= AGREE:
        return "pass", said, numbers
    if seen.F.proxy_gradient:
        return "pass", f"{said}, as it must: a straight-through step stands in for one without gradient", numbers
    verdict: Outcome = "warn" if max(errors) < DISAGREE else "fail"
    return verdict, f"{said}: is a backward pass replaced or a part of the network detached?", numbers


def _errors(seen: Inspection, g: Float[Tensor, "k ..."], direction: Float[Tensor, "k ..."]) -> dict[float, float]:
    """|(s(x + h u) - s(x - h u)) / 2h - <grad s, u>| / |grad s|, the median over images, for steps h a pixel."""
    f, x = seen.models[0], seen.near[0]
    length, size = (torch.linalg.vector_norm(v.flatten(1), dim=1).clamp_min(ZERO) for v in (g, direction))
    there = length > ZERO
    unit = direction / per_example(size, direction)
    slope = (g * unit).flatten(1).sum(1)
    errors = {}
    for h in (1e-5, 1e-4, 1e-3):
        step = h * math.sqrt(x[0].numel())
        measured = (seen.margins(f, x + step * unit) - seen.margins(f, x - step * unit)) / (2 * step)
        errors[h] = float(((measured - slope).abs() / length)[there].median())
    return errors


@check("the loss is smooth enough to follow")
def roughness(seen: Inspection) -> Answer:
    """Raised if gradients of one draw at points less than half a gray level apart have a cosine below 0.5.
    Means: gradients are right and too rough to lead anywhere; attacks without gradients decide.
    Do: look for a ripple or for quantized activations, and audit the network without them beside it.
    """
    if (g := seen.usable_gradients) is None:
        return NOTHING
    f, (x, y), several = seen.models[0], seen.near, len(g) > 1
    moved = seen.gradient(f, (x + STEP * seen.offset("move")).clamp(0, 1), y)
    same = float(_mean(_cosine(g[0], moved)))
    among = float(torch.stack([_mean(_cosine(g[0], other)) for other in g[1:]]).mean()) if several else 1.0
    points = [x + STEP * seen.offset("near", i) for i in range(4)]
    change = torch.stack([(seen.margins(f, point) - seen.margins(f, x)).abs() for point in points]).mean()
    own = seen.logits[:, : len(x)].gather(2, y.expand(len(g), -1)[..., None])
    numbers = {"cosine_same_draw": same, "cosine_other_draws": among, "change_of_margin": float(change)}
    numbers["noise_of_logit"] = float(own.std(0).mean()) if several else 0.0
    said = f"gradients of one draw less than half a gray level apart have cosine {same:.2f}"
    said += f", those of two draws at one point {among:.2f}" if several else ""
    if same >= STEADY:
        return "pass", said, numbers
    verdict: Outcome = "warn" if same >= SHATTERED else "fail"
    return verdict, f"{said}: they lead nowhere, whatever the noise does; attacks without gradients decide", numbers


@check("gradients are as diverse around images as at them")
def kink(seen: Inspection) -> Answer:
    """Raised if gradients of two draws agree better around the images than at them, by 0.15 in cosine.
    Means: training spread gradients at the images alone; an attack leaves the kink with its first step.
    Do: measure diversity away from the images; a low cosine at them is no evidence.
    """
    if (g := seen.usable_gradients) is None:
        return NOTHING
    if len(seen.models) == 1:
        return "pass", "one function, one gradient at each image", {}
    x, y = seen.near
    moved = displaced(x, (seen.offset("kink").double() + 1) / 2, AWAY)
    away = torch.stack([seen.gradient(f, moved, y) for f in seen.models])
    at, around = (float(_mean(mean_cosine(directions(each).v))) for each in (g, away))
    numbers = {"cosine_at_images": at, "cosine_around_them": around, "distance": AWAY}
    said = f"gradients of two draws have cosine {at:.2f} at images and {around:.2f} at most 8 gray levels away"
    if around < at + KINKED:
        return "pass", said, numbers
    return "warn", f"{said}: they disperse in a kink at the images alone, which does not slow an attack", numbers


def _cosine(a: Float[Tensor, "k ..."], b: Float[Tensor, "k ..."]) -> Float[Tensor, " k"]:
    """The cosine of each pair of gradients; NaN where one is 0."""
    a, b = a.flatten(1).double(), b.flatten(1).double()
    cosine: Tensor = (a * b).sum(1) / (torch.linalg.vector_norm(a, dim=1) * torch.linalg.vector_norm(b, dim=1))
    return cosine


def _mean(values: Float[Tensor, " k"]) -> Float[Tensor, ""]:
    """The mean of the finite values; 1 if there are none."""
    there = values[values.isfinite()]
    return there.mean() if len(there) else values.new_ones(())
