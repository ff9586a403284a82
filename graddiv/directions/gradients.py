"""Input gradients of sample models, their directions, and their mean over models.

Gradients are those of the soft margin s.  A loss l(s) of one model has gradient l'(s) grad s, so directions come from
grad s, exactly, and means over models are means of grad s with weights l'(s).

In the paper: docs/equations.md.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from graddiv.directions.double_backward import efficient_gradients, inputs_only
from graddiv.directions.objectives import AttackObjective, Members, attack_objective
from graddiv.errors import GradDivError
from graddiv.geometry import per_example
from graddiv.losses import soft_margin
from graddiv.networks import SampleModel

ZERO = 1e-20
"""A gradient shorter than this has no direction."""


def input_gradient(
    f: SampleModel,
    x: Float[Tensor, "b ..."],
    y: Int64[Tensor, " b"],
    create_graph: bool = False,
    s_of: Callable[[Tensor, Tensor], Tensor] = soft_margin,
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b ..."]]:
    """Return s(f(x), y) and grad_x s(f(x), y), per example; works inside a caller's no_grad.

    f: the sample model.
    x, y: the examples and their labels.
    create_graph: whether the gradient can be differentiated again, as the regularizer needs it.
    s_of: (logits, labels) -> s, per example; by default the soft margin.
    """
    check_mode()
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        if not create_graph:
            s = s_of(f(x), y)
            return s.detach(), derivative(s.sum(), x)
        # the faster kernels of attention have no second derivative
        with efficient_gradients(), sdpa_kernel(SDPBackend.MATH):
            s = s_of(f(x), y)
        with inputs_only():
            return s, derivative(s.sum(), x, create_graph=True)


def derivative(s: Float[Tensor, ""], x: Tensor, *, create_graph: bool = False, retain_graph: bool = False) -> Tensor:
    """ds / dx, which must exist."""
    if s.requires_grad:
        keep = retain_graph or create_graph
        (g,) = torch.autograd.grad(s, x, create_graph=create_graph, retain_graph=keep, allow_unused=True)
        if g is not None:
            return g
    raise GradDivError(
        "the network's output has no gradient with respect to its input, since a step inside (such as rounding, or "
        "detach) has none: attack it with Square, which needs no gradient"
    )


def check_mode() -> None:
    """Refuse to take gradients where torch cannot be asked for any."""
    if torch.is_inference_mode_enabled():
        raise GradDivError("input gradients were asked for inside torch.inference_mode(): use torch.no_grad() there")


class Directions(NamedTuple):
    """The unit gradients of n sample models at each example."""

    v: Float64[Tensor, "n b p"]
    """v_i = g_i / |g_i|_2, in float64; 0 where g_i is."""
    usable: Bool[Tensor, " b"]
    """Whether all n gradients of the example have a direction."""


def directions(g: Float[Tensor, "n b ..."]) -> Directions:
    """v_i = g_i / |g_i|_2."""
    g = g.flatten(2).double()
    norms = torch.linalg.vector_norm(g, dim=2, keepdim=True)
    check_finite(norms.sum((0, 2)))
    return Directions(g / norms.clamp_min(ZERO), (norms >= ZERO).all(0).squeeze(1))


class MeanGradient(NamedTuple):
    """(1/n) sum_i w_i grad s_i = exp(log_scale) * direction, per example; the factor apart, since it may underflow."""

    direction: Float[Tensor, "b ..."]
    """The mean up to its factor; not of unit length."""
    log_scale: Float[Tensor, " b"]
    """The logarithm of the factor: the greatest log w_i."""
    value: Float[Tensor, " b"]
    """The objective itself."""


def mean_gradient(
    models: Iterable[SampleModel],
    x: Float[Tensor, "b ..."],
    y: Int64[Tensor, " b"],
    objective: str = "ce",
    probabilities: Float64[Tensor, " n"] | None = None,
) -> MeanGradient:
    """(1/n) sum_i w_i grad s_i for one of the OBJECTIVES.

    models: the n sample models, taken one after the other.
    x, y: the examples and their labels.
    objective: the name of the objective, which decides s and w.
    probabilities: p of the models, where they are not equally likely: the mean is then sum_i p_i w_i grad s_i.

    One graph at a time, so memory does not grow with n, but for the n gradients that a joint objective holds.  Weights
    are exp(log w_i - running maximum): the mean stays exact where every w_i underflows.
    """
    goal = attack_objective(objective)
    total = torch.zeros_like(x)
    max_log_w = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)

    def add(members: Members) -> None:
        nonlocal max_log_w
        assert members.g is not None
        for log_w, g in zip(members.with_probability(goal.log_weights(members)), members.g, strict=True):
            new_max = torch.maximum(max_log_w, log_w)
            before, weight = (max_log_w - new_max).exp(), (log_w - new_max).exp()
            total.mul_(per_example(before, total)).add_(g * per_example(weight, g))
            max_log_w = new_max

    seen: list[Members] = []
    for i, f in enumerate(models):
        p = None if probabilities is None else probabilities[i : i + 1].to(x)
        member = _member(f, x, y, goal, p)
        if not goal.joint:
            add(member)
            member = member._replace(g=None)
        seen.append(member)
    if not seen:
        raise GradDivError("there are 0 sample models, expected at least one to take a mean gradient over")
    everyone = Members.joined(seen)
    if goal.joint:
        add(everyone)
    check_finite(total.flatten(1).abs().sum(1))
    return MeanGradient(total / len(seen) if probabilities is None else total, max_log_w, goal.value(everyone))


def _member(f: SampleModel, x: Tensor, y: Tensor, goal: AttackObjective, p: Tensor | None) -> Members:
    """Return what one model says, its gradient included."""
    logits: list[Tensor] = []

    def score(z: Tensor, y: Tensor) -> Tensor:
        logits.append(z.detach())
        return goal.s(z, y)

    s, g = input_gradient(f, x, y, s_of=score)
    return Members(logits[0][None], y, s[None], g[None], p)


def check_finite(lengths: Float[Tensor, " b"]) -> None:
    """Refuse gradients of which some length is NaN or infinite."""
    if not (finite := torch.isfinite(lengths)).all():
        raise GradDivError(
            f"the input gradients of {int((~finite).sum())} of {len(lengths)} examples are not finite: "
            "the network's output there is NaN or infinite, look at its weights and at the input"
        )
