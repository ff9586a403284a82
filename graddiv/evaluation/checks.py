"""Look before attacking: what can make an evaluation of a network mean something else than it seems to.

A check is a small function of a `Look` that answers with a verdict, a sentence and its numbers.  CHECKS is the list of
them.  `graddiv audit` shows every answer; `evaluate` warns of those that are not a pass.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.directions.gradients import ZERO, input_gradient
from graddiv.evaluation.layers import dying_layer
from graddiv.evaluation.prediction import models_of
from graddiv.evaluation.verdicts import Item, Outcome
from graddiv.geometry import per_example
from graddiv.losses import ce, soft_margin
from graddiv.networks import RandomizedNetwork, SampleModel, running_statistics
from graddiv.networks.randomized import DROPOUT
from graddiv.registries import Registry
from graddiv.seeding import fold, generator, isolated

DRAWS = 8
"""Sample models that are looked at."""
EXAMPLES = 16
"""Examples whose gradients are looked at, the first ones."""
MANY = 30
"""Examples from which on an accuracy is compared with chance."""
STEP = 0.5 / 255
"""How far an image is moved to see whether its gradient changes at once: half of what a byte can tell apart."""
STEADY, SHATTERED = 0.5, 0.1
"""Cosines of gradients so close to each other: from the first on all is well, below the second they are noise."""
AGREE, DISAGREE = 0.1, 0.5
"""Relative errors of a gradient: up to the first it agrees with finite differences, from the second on it does not."""


@dataclass(frozen=True, eq=False)
class Look:
    """What the checks look at: a network and examples with pixels in [0, 1]."""

    F: RandomizedNetwork
    x: Float[Tensor, "b ..."]
    y: Int64[Tensor, " b"]
    seed: int = 0
    declared: bool | None = None
    """Whether the network was said to be random; None where it was for us to find out."""

    @cached_property
    def models(self) -> list[SampleModel]:
        """The sample models that are looked at; one of a deterministic network."""
        return list(models_of(self.F, DRAWS, fold(self.seed, "look")))

    @cached_property
    def logits(self) -> Float[Tensor, "n b c"]:
        """What they answer."""
        with torch.no_grad(), running_statistics(self.F):
            return torch.stack([f(self.x) for f in self.models])

    @cached_property
    def near(self) -> tuple[Float[Tensor, "k ..."], Int64[Tensor, " k"]]:
        """The examples whose gradients are looked at."""
        return self.x[:EXAMPLES], self.y[:EXAMPLES]

    @cached_property
    def gradients(self) -> Float[Tensor, "n k ..."] | None:
        """grad s of each sample model there; None where autograd finds no way from the output to the input."""
        try:
            return torch.stack([self.gradient(f, *self.near) for f in self.models])
        except RuntimeError as error:
            if "does not require grad" in str(error) or "not have been used in the graph" in str(error):
                return None
            raise

    def gradient(self, f: SampleModel, x: Tensor, y: Tensor) -> Tensor:
        """grad s of one sample model."""
        with running_statistics(self.F):
            return input_gradient(f, x, y)[1]

    def margins(self, f: SampleModel, x: Tensor) -> Float[Tensor, " k"]:
        """Return s of one sample model at points near the examples."""
        with torch.no_grad(), running_statistics(self.F):
            return soft_margin(f(x), self.near[1])

    @cached_property
    def usable(self) -> bool:
        """Whether there are gradients, all of them numbers and some of them not 0."""
        g = self.gradients
        return g is not None and bool(g.isfinite().all()) and bool((g != 0).any())

    def normal(self, *role: int | str) -> Tensor:
        """Return independent normal numbers in the shape of the examples whose gradients are looked at."""
        x = self.near[0]
        return torch.randn(x.shape, generator=generator(fold(self.seed, "look", *role)), dtype=x.dtype).to(x.device)


class Check(NamedTuple):
    """One entry of the registry."""

    title: str
    """What should be the case."""
    run: Callable[[Look], tuple[Outcome, str, dict[str, Any]]]
    decisive: bool = False
    """Whether numbers mean nothing where it fails, whatever the attacks find."""

    def __call__(self, look: Look) -> Item:
        """The answer, as an item."""
        return Item(self.title, *self.run(look))


CHECKS: Registry[Check] = Registry("check", {})
"""Every check by name, in the order in which they are made."""


def check(name: str, title: str, *, decisive: bool = False) -> Callable[..., Any]:
    """Register a check."""

    def register(run: Callable[[Look], tuple[Outcome, str, dict[str, Any]]]) -> Any:
        CHECKS[name] = Check(title, run, decisive)
        return run

    return register


def look_at(look: Look) -> dict[str, Item]:
    """Make every check; answers by name."""
    return {name: each(look) for name, each in CHECKS.items()}


def draws_by_itself(module: nn.Module, x: Float[Tensor, "b ..."]) -> bool:
    """Whether two calls of a module, as it is, differ: it draws from the global random state."""
    with torch.no_grad(), running_statistics(module):
        answers = []
        for seed in (1, 2, 3):
            with isolated(seed):
                output = module(x)
            answers.append(output[0] if isinstance(output, tuple | list) else output)
    return any(not torch.equal(answers[0], other) for other in answers[1:])


@check("scale", "the input has the scale that the network expects")
def scale(look: Look) -> tuple[Outcome, str, dict[str, Any]]:
    """Pixels that fill little of [0, 1] were probably divided by 255 twice."""
    low, high = float(look.x.min()), float(look.x.max())
    numbers = {"least": low, "greatest": high}
    said = f"pixels lie between {low:.3g} and {high:.3g}"
    if high - low < 0.1:
        return "warn", f"{said}, a small part of [0, 1]: divided by 255 twice, or bounds that are too wide?", numbers
    return "pass", said, numbers


@check("random", "the network is what it is said to be, random or not")
def random(look: Look) -> tuple[Outcome, str, dict[str, Any]]:
    """Draws must differ where the network is said to be random, and only there."""
    z = look.logits
    different = len({tuple(row) for row in z.flatten(1).tolist()}) if look.F.random else 1
    silent = [name for name, m in look.F.named_modules() if isinstance(m, DROPOUT) and not m.training and m.p > 0]
    native = not look.F.random and draws_by_itself(look.F, look.x[:2])
    numbers = {"draws": len(z), "different": different, "dropout_layers": len(silent)}
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
        aside = f"its {len(silent)} dropout layers are switched off (randomize(module) would keep them drawing)"
        return "pass", f"deterministic; {aside}", numbers
    return "pass", "deterministic: every call gives the same answer", numbers


@check("replay", "the same noise gives the same answer", decisive=True)
def replay(look: Look) -> tuple[Outcome, str, dict[str, Any]]:
    """A sample model is a function: called twice it must say the same."""
    with torch.no_grad(), running_statistics(look.F):
        again = look.models[0](look.x)
    apart = float((again - look.logits[0]).abs().max())
    numbers = {"largest_difference": apart}
    if apart > 1e-4 * (1 + float(again.abs().max())):
        remedy = "draw from torch's, NumPy's or Python's global generators only, which can be set"
        return "fail", f"two calls with the same noise differ by up to {apart:.3g}: {remedy}", numbers
    return "pass", "noise that is drawn again gives the same function", numbers


@check("pointwise", "an answer depends on its own image alone")
def pointwise(look: Look) -> tuple[Outcome, str, dict[str, Any]]:
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


@check("support", "how many functions the noise can make")
def support(look: Look) -> tuple[Outcome, str, dict[str, Any]]:
    """With finitely many, expectations are exact sums."""
    if not look.F.random:
        return "pass", "one: the network is deterministic", {"outcomes": 1}
    known = look.F.support()
    if known is None:
        return "pass", "unknown or infinitely many: expectations are estimated from draws", {"outcomes": None}
    return "pass", f"{len(known.noises)}: expectations over them are exact sums", {"outcomes": len(known.noises)}


@check("logits", "the output is logits")
def logits(look: Look) -> tuple[Outcome, str, dict[str, Any]]:
    """Softmax of a softmax flattens the loss: attacks and ensembles would see hardly any difference."""
    z = look.logits.double()
    off = float((z.sum(2) - 1).abs().max())
    numbers = {"classes": z.shape[2], "sum_off_one": off, "least": float(z.min()), "greatest": float(z.max())}
    if off < 1e-3 and float(z.min()) >= 0:
        remedy = "return the logits, or the logarithm of the probabilities"
        return "warn", f"every answer is between 0 and 1 and sums to 1, so these are probabilities: {remedy}", numbers
    return "pass", f"{z.shape[2]} logits between {numbers['least']:.3g} and {numbers['greatest']:.3g}", numbers


@check("accuracy", "clean accuracy is above chance", decisive=True)
def accuracy(look: Look) -> tuple[Outcome, str, dict[str, Any]]:
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


@check("gradients", "gradients reach the input")
def gradients(look: Look) -> tuple[Outcome, str, dict[str, Any]]:
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
    if numbers["zero"] > 0.05:
        return _lost(look, f"{100 * numbers['zero']:.0f} % of the gradients are exactly 0", numbers)
    numbers["saturated"] = _saturated(look)
    said = "all images have gradients" if numbers["zero"] == 0 else f"{100 * numbers['zero']:.1f} % of them are 0"
    if numbers["saturated"] > 0.05:
        share = f"cross-entropy in float32 has no gradient at {100 * numbers['saturated']:.0f} % of the images"
        said += f"; {share}, which blinds other libraries (here the margin is differentiated)"
    return "pass", said, numbers


def _lost(look: Look, what: str, numbers: dict[str, Any]) -> tuple[Outcome, str, dict[str, Any]]:
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
        loss = torch.nn.functional.cross_entropy(z, y, reduction="sum") if look.usable else ce(z, y).sum()
        (g,) = torch.autograd.grad(loss, at)
    return float((g.flatten(1) == 0).all(1).double().mean())


@check("differences", "the gradient is the derivative")
def differences(look: Look) -> tuple[Outcome, str, dict[str, Any]]:
    """(s(x + h u) - s(x - h u)) / 2h against <grad s, u>, with the noise replayed, along the gradient itself."""
    if not look.usable:
        return "not enough evidence", "there are no gradients to compare", {}
    assert look.gradients is not None
    x, errors = look.near[0], {}
    f, g = look.models[0], look.gradients[0]
    length = torch.linalg.vector_norm(g.flatten(1), dim=1)
    there = length >= ZERO
    unit = g / per_example(length.clamp_min(ZERO), g)
    scale_of_x = math.sqrt(x[0].numel())
    for h in (1e-5, 1e-4, 1e-3):
        step = h * scale_of_x
        measured = (look.margins(f, x + step * unit) - look.margins(f, x - step * unit)) / (2 * step)
        errors[h] = float(((measured - length).abs() / length.clamp_min(ZERO))[there].median())
    best = min(errors.values())
    numbers = {"relative_error": best, "steps": [f"{h:g}: {error:.3g}" for h, error in errors.items()]}
    said = f"finite differences along the gradient differ from it by {100 * best:.2g} % (median)"
    if best <= AGREE:
        return "pass", said, numbers
    verdict: Outcome = "warn" if best < DISAGREE else "fail"
    return verdict, f"{said}: is a backward pass replaced or a part of the network detached?", numbers


@check("roughness", "the loss is smooth enough to follow")
def roughness(look: Look) -> tuple[Outcome, str, dict[str, Any]]:
    """Cosine of gradients of one draw at points half a grey level apart; apart from it, of two draws at one point."""
    if not look.usable:
        return "not enough evidence", "there are no gradients to compare", {}
    assert look.gradients is not None
    x, y = look.near
    f, g = look.models[0], look.gradients
    moved = look.gradient(f, (x + STEP * look.normal("move").sign()).clamp(0, 1), y)
    close = _cosine(g[0], moved)
    among = float(torch.stack([_mean(_cosine(g[0], other)) for other in g[1:]]).mean()) if len(g) > 1 else 1.0
    same = float(_mean(close))
    change = torch.stack(
        [(look.margins(f, x + STEP * look.normal("near", i).sign()) - look.margins(f, x)).abs() for i in range(4)]
    ).mean()
    noise = float(look.logits[:, : len(x)].gather(2, y.expand(len(g), -1)[..., None]).std(0).mean()) if len(g) > 1 else 0.0
    numbers = {
        "cosine_same_draw": same, "cosine_other_draws": among, "change_of_margin": float(change), "noise_of_logit": noise,
    }  # fmt: skip
    said = f"gradients of one draw half a grey level apart have cosine {same:.2f}"
    said += f", those of two draws at one point {among:.2f}" if len(g) > 1 else ""
    if same >= STEADY:
        return "pass", said, numbers
    verdict: Outcome = "warn" if same >= SHATTERED else "fail"
    return verdict, f"{said}: they lead nowhere, whatever the noise does; attacks without gradients decide", numbers


def _cosine(a: Float[Tensor, "k ..."], b: Float[Tensor, "k ..."]) -> Float[Tensor, " k"]:
    """Of each pair of gradients; NaN where one is 0."""
    a, b = a.flatten(1).double(), b.flatten(1).double()
    return (a * b).sum(1) / (torch.linalg.vector_norm(a, dim=1) * torch.linalg.vector_norm(b, dim=1))


def _mean(values: Float[Tensor, " k"]) -> Float[Tensor, ""]:
    """Over those that are numbers; 1 where none is."""
    there = values[values.isfinite()]
    return there.mean() if len(there) else torch.ones((), dtype=values.dtype)
