"""Input gradients of sample models, their directions, and their mean over models.

Gradients are those of the soft margin s.  A loss l(s) of one model has gradient l'(s) grad s, so directions come from
grad s, exactly, and means over models are means of grad s with weights l'(s).
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from graddiv.directions.double_backward import efficient_double_backward, inputs_only
from graddiv.errors import GradDivError, unknown
from graddiv.geometry import per_example
from graddiv.losses import dlr, margin, soft_margin
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
            (g,) = torch.autograd.grad(s.sum(), x)
            return s.detach(), g
        with efficient_double_backward():
            s = s_of(f(x), y)
        with inputs_only():
            (g,) = torch.autograd.grad(s.sum(), x, create_graph=True)
        return s, g


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


class AttackObjective(NamedTuple):
    """A loss over sample models whose gradient is sum_i w(s_i) grad s_i up to a positive factor per example."""

    s: Callable[[Tensor, Tensor], Tensor]
    """(logits, labels) -> what is differentiated."""
    log_weight: Callable[[Tensor], Tensor]
    """s -> log w(s)."""
    value: Callable[[Tensor], Tensor]
    """The loss itself, of the s of all models: n b -> b."""


OBJECTIVES: dict[str, AttackObjective] = {
    # E CE(F(x), y): EOT as in the paper
    "ce": AttackObjective(soft_margin, logsigmoid, lambda s: softplus(s, threshold=torch.inf).mean(0)),
    # E s(F(x), y)
    "soft_margin": AttackObjective(soft_margin, torch.zeros_like, lambda s: s.mean(0)),
    # E margin(F(x), y)
    "margin": AttackObjective(margin, torch.zeros_like, lambda s: s.mean(0)),
    # -log E p(y), the loss of the ensemble; the factor is 1 / E p(y)
    "ensemble": AttackObjective(
        soft_margin,
        lambda s: logsigmoid(s) + logsigmoid(-s),
        lambda s: math.log(len(s)) - logsigmoid(-s).logsumexp(0),
    ),
    # E DLR(F(x), y)
    "dlr": AttackObjective(dlr, torch.zeros_like, lambda s: s.mean(0)),
}


class MeanGradient(NamedTuple):
    """(1/n) sum_i w_i grad s_i = exp(log_scale) * direction, per example; the factor apart, since it may underflow."""

    direction: Float[Tensor, "b ..."]
    """The mean up to its factor; not of unit length."""
    log_scale: Float[Tensor, " b"]
    """The logarithm of the factor: the greatest log w_i."""
    value: Float[Tensor, " b"]
    """The objective itself."""


def mean_gradient(
    models: Iterable[SampleModel], x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"], objective: str = "ce"
) -> MeanGradient:
    """(1/n) sum_i w(s_i) grad s_i for one of the OBJECTIVES.

    models: the n sample models, taken one after the other.
    x, y: the examples and their labels.
    objective: the name of the objective, which decides s and w.

    One graph at a time, so memory does not grow with n.  Weights are exp(log w_i - running maximum): the mean stays
    exact where every w_i underflows.
    """
    goal = attack_objective(objective)
    total = torch.zeros_like(x)
    max_log_w = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
    all_s = []
    for f in models:
        s, g = input_gradient(f, x, y, s_of=goal.s)
        all_s.append(s)
        log_w = goal.log_weight(s)
        new_max = torch.maximum(max_log_w, log_w)
        total = total * per_example((max_log_w - new_max).exp(), total) + g * per_example((log_w - new_max).exp(), g)
        max_log_w = new_max
    if not all_s:
        raise GradDivError("there are 0 sample models, expected at least one to take a mean gradient over")
    check_finite(total.flatten(1).abs().sum(1))
    return MeanGradient(total / len(all_s), max_log_w, goal.value(torch.stack(all_s)))


def attack_objective(objective: str) -> AttackObjective:
    """Return the objective of that name."""
    if objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES)
    return OBJECTIVES[objective]


def check_finite(lengths: Float[Tensor, " b"]) -> None:
    """Refuse gradients of which some length is NaN or infinite."""
    if not (finite := torch.isfinite(lengths)).all():
        raise GradDivError(
            f"the input gradients of {int((~finite).sum())} of {len(lengths)} examples are not finite: "
            "the network's output there is NaN or infinite, look at its weights and at the input"
        )
