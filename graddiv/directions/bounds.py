"""How much one step can raise the expected loss: Delta(alpha g), and Theorem 1's bound on it.

Delta(alpha g) = E[l_F(X + alpha g) - l_F(X)] = alpha g^.g + O(alpha^2), with g^ = E grad l_F(X).

In the paper: docs/equations.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid

from graddiv.directions.gradients import directions, input_gradient
from graddiv.directions.moments import Moments, moments_of
from graddiv.directions.vmf import mrl
from graddiv.errors import GradDivError
from graddiv.losses import ce
from graddiv.networks import SampleModel

DUAL = {2.0: 2.0, torch.inf: 1.0}
"""p -> q with 1/p + 1/q = 1, for the norms of the two perturbation balls."""


def loss_increase(
    models: Iterable[SampleModel],
    x: Float[Tensor, "b ..."],
    y: Int64[Tensor, " b"],
    delta: Float[Tensor, "b ..."],
) -> Float64[Tensor, " b"]:
    """Delta(delta) = 1/n sum_i l_{f_i}(x + delta) - l_{f_i}(x), by evaluation; l is the cross-entropy.

    models: the n sample models f_i.
    x, y: the examples and their labels.
    delta: the perturbation of each example.
    """
    with torch.no_grad():
        increases = [ce(f(x + delta).double(), y) - ce(f(x).double(), y) for f in models]
    return torch.stack(increases).mean(0)


@dataclass(frozen=True, eq=False)
class FirstOrderBound:
    """Theorem 1 at each example, for steps of length alpha in the l_p ball; expectations are means over n gradients."""

    first_order: Float64[Tensor, " b"]
    """alpha |E g|_q: the largest increase to first order, attained by EOT's own step."""
    theorem: Float64[Tensor, " b"]
    """alpha M_X rho_q, with M_X = max_i |g_i|_2: what Theorem 1 gives."""
    tightness: Float64[Tensor, " b"]
    """first_order / theorem: 1 where the bound is attained, near 0 where it says little, above 1 where it fails."""
    holds: Bool[Tensor, " b"]
    """Whether first_order <= theorem.  The proof assumes norm and direction uncorrelated, and needs it."""
    excess: Float64[Tensor, " b"]
    """|E g|_q / (E|g| rho_q): 1 where norm and direction are uncorrelated, above 1 where unequal norms help EOT."""


@dataclass(frozen=True, eq=False)
class BoundReport(FirstOrderBound):
    """The bound, and how far the gradients are from what its proof assumes."""

    correlation: Float64[Tensor, " b"]
    """Correlation, over the n gradients, of |g_i| with the cosine between g_i and E g; 0 where norms are equal."""


def first_order_bound(g: Moments, rho_q: Float64[Tensor, " b"], alpha: float, q: float) -> FirstOrderBound:
    """alpha |E g|_q <= alpha M_X rho_q, of the moments of gradients.

    g: the moments of the gradients at each example.
    rho_q: |E v|_q; an argument, because callers differ on examples where some gradient has no direction.
    alpha: the length of the step, in the norm of the ball.
    q: the exponent dual to that norm, 1 for Linf and 2 for L2.
    """
    scale = alpha * g.log_scale.exp()  # apart from the ratios: it may underflow
    mean_length: Tensor = torch.linalg.vector_norm(g.gradient, ord=q, dim=1)
    bound = g.longest * rho_q
    return FirstOrderBound(
        first_order=scale * mean_length,
        theorem=scale * g.longest * rho_q,
        tightness=mean_length / bound,
        holds=mean_length <= bound * (1 + 1e-9),
        excess=mean_length / (g.length * rho_q),
    )


def theorem1(
    models: Sequence[SampleModel], x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"], alpha: float, norm: float
) -> BoundReport:
    """Delta(alpha g) <= alpha M_X rho_q + O(alpha^2) for |g|_p <= 1, 1/p + 1/q = 1: the bound and how it fares.

    models: the sample models over whose gradients the expectations are taken.
    x, y: the examples and their labels.
    alpha: the length of the step.
    norm: p, the norm of the ball: 2 or infinity.

    An example all of whose gradients are 0 has NaN ratios.
    """
    if norm not in DUAL:
        raise GradDivError(f"norm is {norm}, expected 2 or infinity")
    q = DUAL[norm]
    gradients = [input_gradient(f, x, y) for f in models]
    moments_g = moments_of(gradients)
    s, g = map(torch.stack, zip(*gradients, strict=True))
    weights = (logsigmoid(s.double()) - moments_g.log_scale).exp()
    relative_lengths = weights * torch.linalg.vector_norm(g.flatten(2).double(), dim=2) / moments_g.longest
    cosines_to_mean = (directions(g).v * directions(moments_g.gradient[None]).v).sum(2)
    bound = first_order_bound(moments_g, mrl(moments_g.resultant[None], q), alpha, q)
    return BoundReport(**vars(bound), correlation=_correlation(relative_lengths, cosines_to_mean))


def _correlation(a: Float64[Tensor, "n b"], b: Float64[Tensor, "n b"]) -> Float64[Tensor, " b"]:
    a, b = a - a.mean(0), b - b.mean(0)
    spread = (a.square().mean(0) * b.square().mean(0)).sqrt()
    return torch.where(spread > 1e-14, (a * b).mean(0) / spread, 0.0)
