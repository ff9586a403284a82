"""Input gradients of sample models, their directions, and their mean over models.  See docs/equations.md.

A loss l(s) of a score s has gradient l'(s) grad s: directions come from grad s, means over models have weights l'(s).
Weights are kept as logarithms, since all of them underflow where every model is sure of itself.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import logsigmoid

from graddiv.diversity.double_backward import efficient_double_backward, inputs_only
from graddiv.errors import GradDivError
from graddiv.geometry import Images, Labels, PerExample, per_example
from graddiv.losses import (
    Weights,
    dlr,
    expectation,
    log_expectation,
    margin,
    soft_margin,
    soft_margin_and_slope,
    softplus,
)
from graddiv.networks import SampleModel
from graddiv.registries import Registry

ZERO = 1e-20  #: a gradient shorter than this has no direction
Score = Callable[[Tensor, Tensor], Tensor]  #: (logits, labels) -> a number for each example


def input_gradient(
    f: SampleModel, x: Images, y: Labels, create_graph: bool = False, s_of: Score = soft_margin,
    logits: list[Tensor] | None = None,
) -> tuple[PerExample, Images]:  # fmt: skip
    """Return s(f(x), y) and grad_x s(f(x), y), differentiable again with `create_graph`; works inside no_grad.

    logits: a list to which f(x) is appended, unless it is to be differentiated again.
    """
    with torch.enable_grad():
        x = leaf(x)
        if not create_graph:
            z = f(x)
            if logits is not None:
                logits.append(z.detach())
            if s_of is soft_margin:
                s, slope = soft_margin_and_slope(z.detach(), y)
                return s, derivative(z, x, slope)
            s = s_of(z, y)
            return s.detach(), derivative(s.sum(), x)
        # the faster kernels of attention have no second derivative
        with efficient_double_backward(), sdpa_kernel(SDPBackend.MATH):
            s = s_of(f(x), y)
        with inputs_only(x):
            return s, derivative(s.sum(), x, create_graph=True)


def derivative(
    s: Float[Tensor, "..."], x: Tensor, slope: Tensor | None = None, *, create_graph: bool = False,
    retain_graph: bool = False,
) -> Tensor:  # fmt: skip
    """ds / dx of a number s, or <slope, ds / dx>; it must exist."""
    if s.requires_grad:
        keep = retain_graph or create_graph
        (g,) = torch.autograd.grad(s, x, slope, create_graph=create_graph, retain_graph=keep, allow_unused=True)
        if g is not None:
            return g
    raise GradDivError(
        "the network's output has no gradient with respect to its input, since a step inside (such as rounding, or "
        "detach) has none: attack it with Square, which needs no gradient"
    )


def leaf(x: Images) -> Images:
    """Return x as a leaf of a new graph."""
    if torch.is_inference_mode_enabled():
        raise GradDivError("input gradients were asked for inside torch.inference_mode(): use torch.no_grad() there")
    return x.detach().requires_grad_()


def check_finite(lengths: PerExample) -> None:
    """Refuse gradients of which some length is NaN or infinite."""
    if not (finite := torch.isfinite(lengths)).all():
        raise GradDivError(
            f"the input gradients of {int((~finite).sum())} of {len(lengths)} examples are not finite: "
            "the network's output there is NaN or infinite, look at its weights and at the input"
        )


class Directions(NamedTuple):
    """The unit gradients of n sample models at each example."""

    v: Float64[Tensor, "n b p"]  #: v_i = g_i / |g_i|_2, in float64; 0 where g_i is
    usable: Bool[Tensor, " b"]  #: whether all n gradients of the example have a direction


def directions(g: Float[Tensor, "n b ..."]) -> Directions:
    """v_i = g_i / |g_i|_2."""
    g = g.flatten(2).double()
    norms = torch.linalg.vector_norm(g, dim=2, keepdim=True)
    check_finite(norms.sum((0, 2)))
    return Directions(g / norms.clamp_min(ZERO), (norms >= ZERO).all(0).squeeze(1))


class AttackObjective(NamedTuple):
    """A loss over sample models whose gradient is E w_i grad s_i up to a positive factor per example."""

    s: Score  #: what is differentiated
    log_weight: Callable[[Tensor], Tensor]  #: s_i -> log w_i
    value: Callable[[Tensor, Tensor | None], Tensor]  #: scores n b, probabilities of the models -> the loss itself, b


OBJECTIVES: Registry[AttackObjective] = Registry(
    "objective",
    {
        # E CE(F(x), y): EOT as in the paper
        "ce": AttackObjective(soft_margin, logsigmoid, lambda s, p: expectation(softplus(s), p)),
        # E s(F(x), y), E margin(F(x), y), E DLR(F(x), y)
        "soft_margin": AttackObjective(soft_margin, torch.zeros_like, expectation),
        "margin": AttackObjective(margin, torch.zeros_like, expectation),
        "dlr": AttackObjective(dlr, torch.zeros_like, expectation),
        # -log E p(y), the loss of the ensemble; the factor is 1 / E p(y)
        "ensemble": AttackObjective(
            soft_margin, lambda s: logsigmoid(s) + logsigmoid(-s), lambda s, p: -log_expectation(logsigmoid(-s), p)
        ),
        # E log(1 - p(y)): of two classes, the log-likelihood of the other one, which targeted attacks raise
        "likelihood": AttackObjective(
            soft_margin, lambda s: logsigmoid(-s), lambda s, p: -expectation(softplus(-s), p)
        ),
    },
)
"""What an adversary raises: the score of a model that is differentiated, and how much each model's gradient counts."""


class MeanGradient(NamedTuple):
    """(1/n) sum_i w_i grad s_i = exp(log_scale) * direction, per example; the factor apart, since it may underflow."""

    direction: Images  #: the mean up to its factor; not of unit length
    log_scale: PerExample  #: the logarithm of the factor: the greatest log w_i
    value: PerExample  #: the objective itself


def mean_gradient(
    models: Iterable[SampleModel],
    x: Images,
    y: Labels,
    objective: str = "ce",
    probabilities: Weights = None,
    logits: list[Tensor] | None = None,
) -> MeanGradient:
    """(1/n) sum_i w_i grad s_i for one of the OBJECTIVES.

    models: the n sample models, with one graph at a time, so memory does not grow with n.
    probabilities: p of the models; with them the mean is sum_i p_i w_i grad s_i.
    logits: a list to which those of each model are appended.
    """
    goal, scores = OBJECTIVES[objective], []
    total = torch.zeros_like(x)
    max_log_w = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)

    for i, f in enumerate(models):
        s, g = input_gradient(f, x, y, s_of=goal.s, logits=logits)
        scores.append(s)
        log_w = goal.log_weight(s)
        if probabilities is not None:
            log_w = log_w + probabilities[i].to(x).log()
        new_max = torch.maximum(max_log_w, log_w)
        before, weight = (max_log_w - new_max).exp(), (log_w - new_max).exp()
        total.mul_(per_example(before, total)).add_(g * per_example(weight, g))
        max_log_w = new_max
    if not scores:
        raise GradDivError("there are 0 sample models, expected at least one to take a mean gradient over")
    check_finite(total.flatten(1).abs().sum(1))
    p = None if probabilities is None else probabilities.to(x)
    return MeanGradient(total / len(scores) if p is None else total, max_log_w, goal.value(torch.stack(scores), p))
