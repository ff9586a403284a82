"""What an adversary raises, as weights of the members: d = sum_i w_i grad s_i over the sample models i.

Each objective says which score s_i of a model is differentiated and how much the gradient of each model counts.  The
weights are logarithms: where every model is sure of itself all of them underflow, and their ratios still decide.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid

from graddiv.errors import unknown
from graddiv.losses import dlr, margin, soft_margin, softplus

IGNORED = -1e4
"""The log weight of a model that does not count: nothing beside one that does, and equal among themselves."""

SHARPNESS = 5.0
"""lam of the EM step; 5 as in DiffHammer."""


class Members(NamedTuple):
    """What sample models say about a batch, of one model or of all n."""

    z: Float[Tensor, "n b c"]
    """Logits."""
    y: Int64[Tensor, " b"]
    """Labels."""
    s: Float[Tensor, "n b"]
    """The score of the objective."""
    g: Float[Tensor, "n b ..."] | None = None
    """grad_x s, where gradients were asked for."""
    p: Float[Tensor, " n"] | None = None
    """The probability of each model; None where all are equally likely."""

    @classmethod
    def joined(cls, parts: Sequence["Members"]) -> "Members":
        """Return the members of all parts, which are of one batch and either all have gradients or none."""
        z, s = torch.cat([part.z for part in parts]), torch.cat([part.s for part in parts])
        g = [part.g for part in parts if part.g is not None]
        p = [part.p for part in parts if part.p is not None]
        return cls(z, parts[0].y, s, torch.cat(g) if g else None, torch.cat(p) if p else None)

    def with_probability(self, log_weights: Float[Tensor, "n b"]) -> Float[Tensor, "n b"]:
        """log (p_i w_i); log w_i where all are equally likely."""
        return log_weights if self.p is None else log_weights + self.p.log()[:, None]

    def mean(self, values: Float[Tensor, "n b"]) -> Float[Tensor, " b"]:
        """sum_i p_i values_i."""
        return values.mean(0) if self.p is None else (self.p[:, None] * values).sum(0)

    def log_mean(self, log_values: Float[Tensor, "n ..."]) -> Float[Tensor, "..."]:
        """log sum_i p_i exp(log_values_i)."""
        if self.p is None:
            return log_values.logsumexp(0) - math.log(len(log_values))
        return (log_values + self.p.log().reshape(-1, *(1,) * (log_values.dim() - 1))).logsumexp(0)


class AttackObjective(NamedTuple):
    """A loss over sample models whose gradient is sum_i w_i grad s_i up to a positive factor per example."""

    s: Callable[[Tensor, Tensor], Tensor]
    """(logits, labels) -> what is differentiated."""
    log_weights: Callable[[Members], Tensor]
    """log w_i of each member, n b."""
    value: Callable[[Members], Tensor]
    """The loss itself, of all members: b."""
    joint: bool = False
    """Whether a weight depends on the other members, so that the gradients of all n are held until all are known."""


def log_margin(members: Members) -> Float[Tensor, " b"]:
    """log P(c) - log P(y), P the mean of the members' probabilities and c its highest class but y."""
    return margin(members.log_mean(members.z.log_softmax(2)), members.y)


def log_margin_weights(members: Members) -> Float[Tensor, "n b"]:
    """log of w_i = p_i(c) [p_i(y) / P(y) + (1 - p_i(c)) / P(c)], the derivative of log P(c) - log P(y) in z_i(c).

    MORA's weights (Gao et al. 2022), from the formula: the released code has a slip of sign.
    """
    log_p, y = members.z.log_softmax(2), members.y[:, None]
    log_mean = members.log_mean(log_p)
    c = log_mean.scatter(1, y, -torch.inf).argmax(1, keepdim=True)

    def of(classes: Tensor) -> tuple[Tensor, Tensor]:
        rows = classes.expand(len(log_p), *classes.shape)
        return log_p.gather(2, rows).squeeze(2), log_mean.gather(1, classes).squeeze(1)

    (own_c, mean_c), (own_y, mean_y) = of(c), of(y)
    others = log_p.scatter(2, c.expand(len(log_p), *c.shape), -torch.inf).logsumexp(2)  # log(1 - p_i(c)), exactly
    return own_c + torch.logaddexp(own_y - mean_y, others - mean_c)


def hardest_half(members: Members) -> Float[Tensor, "n b"]:
    """w_i = 1 for the half of the members that are hardest to fool, those of lowest s_i; 0 for the others."""
    rank = members.s.argsort(dim=0, stable=True).argsort(dim=0)
    return torch.where(rank < (len(members.s) + 1) // 2, 0.0, IGNORED).to(members.s.dtype)


def em_step(members: Members) -> Float[Tensor, "n b"]:
    """log of w_i = sigmoid(lam (s_i + t <u, g_i>)): one E step towards the members that one perturbation can fool.

    u is the steepest step of the member whose own step raises the scores of all members most, and t is so long that it
    brings their mean to 0: the members that it leaves behind share nothing with the others (DiffHammer, Kang et al.
    2024, whose released code likewise makes one E step).
    """
    assert members.g is not None
    g = members.g.flatten(2)
    gains = torch.einsum("ibp,jbp->ijb", g.sign(), g)  # how much a step along i raises s_j
    best = gains.mean(1).argmax(0)
    gain = gains[best, :, torch.arange(g.shape[1], device=g.device)].T
    t = -members.mean(members.s).clamp_max(0) / members.mean(gain).clamp_min(torch.finfo(g.dtype).tiny)
    return logsigmoid(SHARPNESS * (members.s + t * gain))


def _equal(members: Members) -> Float[Tensor, "n b"]:
    return torch.zeros_like(members.s)


def _mean(members: Members) -> Float[Tensor, " b"]:
    return members.mean(members.s)


OBJECTIVES: dict[str, AttackObjective] = {
    # E CE(F(x), y): EOT as in the paper
    "ce": AttackObjective(soft_margin, lambda m: logsigmoid(m.s), lambda m: m.mean(softplus(m.s))),
    # E s(F(x), y)
    "soft_margin": AttackObjective(soft_margin, _equal, _mean),
    # E margin(F(x), y)
    "margin": AttackObjective(margin, _equal, _mean),
    # E DLR(F(x), y)
    "dlr": AttackObjective(dlr, _equal, _mean),
    # -log E p(y), the loss of the ensemble; the factor is 1 / E p(y)
    "ensemble": AttackObjective(
        soft_margin,
        lambda m: logsigmoid(m.s) + logsigmoid(-m.s),
        lambda m: -m.log_mean(logsigmoid(-m.s)),
    ),
    # log E p(c) - log E p(y); each member is differentiated towards its own highest class, which is c where they agree
    "log_margin": AttackObjective(margin, log_margin_weights, log_margin, joint=True),
    # E min(0, margin): members that are fooled no longer pull
    "still_correct": AttackObjective(
        margin, lambda m: torch.where(m.s < 0, 0.0, IGNORED).to(m.s.dtype), lambda m: m.mean(m.s.clamp_max(0))
    ),
    # the mean margin of the half of the members that are hardest to fool
    "hardest": AttackObjective(
        margin, hardest_half, lambda m: m.s.topk((len(m.s) + 1) // 2, dim=0, largest=False).values.mean(0), joint=True
    ),
    # E margin, with the gradients of those members alone that one perturbation can fool
    "selective": AttackObjective(margin, em_step, _mean, joint=True),
}


def attack_objective(objective: str) -> AttackObjective:
    """Return the objective of that name."""
    if objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES)
    return OBJECTIVES[objective]
