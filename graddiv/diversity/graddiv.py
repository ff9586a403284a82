"""GradDiv, the drop-in: lambda R_GradDiv(X; theta), a scalar to add to any training loss.  See docs/equations.md."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from graddiv.diversity.gradients import directions, input_gradient
from graddiv.diversity.regularizers import REGULARIZERS, mean_cosine
from graddiv.errors import GradDivError, GradDivWarning
from graddiv.geometry import Images, Labels
from graddiv.networks import Noise, RandomizedNetwork, running_statistics
from graddiv.networks.inputs import check_labels, check_takes, plain
from graddiv.registries import NotNegative, Range, checked
from graddiv.seeding import fold

Draws = Sequence[Callable[[], Noise]]  #: noise of n sample models, drawn when called
ValueAndGradient = tuple[Tensor, list[Tensor | None]]


def ramp(step: int, warmup: int, rampup: int) -> float:
    """0 for `warmup` steps, then linear from 0 to 1 over `rampup` steps, then 1."""
    return 0.0 if step < warmup else min(1.0, (step - warmup) / rampup) if rampup else 1.0


class Parts(NamedTuple):
    """Results of the last call, for the log; only lam if it was 0, when nothing is computed."""

    lam: float
    R: Float64[Tensor, ""] | None = None
    masked: Int64[Tensor, ""] | None = None  #: how many examples R leaves out because a gradient of theirs is 0
    cosine: Float64[Tensor, ""] | None = None  #: mean cosine between the n gradients of an example that counts


class GradDiv(nn.Module):
    """lambda(step) * 1/b sum_x R(v_1(x) .. v_n(x)), v_i the unit input gradients of n sample models drawn at this step.

        diversity = GradDiv("dpp", lam=1.0, n=3, warmup=600, rampup=6000)  # periods in steps
        f = F.bind(F.draw(seed=0))
        loss = cross_entropy(f(x), y) + diversity(F, x, y, step=0)

    Called with a network and a batch, returns lambda R as a scalar tensor, to be added to a loss.  Batch norm uses its
    running statistics; nothing is computed while lambda is 0; `parts` holds the results for the log.

    name: the regularizer R, one of `REGULARIZERS`.
    lam: the weight of R once the ramp-up is over; at least 0.
    n: sample models, and so gradients, for each step; at least 2, and 3 in the paper.  Of a network with finitely many
        sample models, such as an ensemble, they are different ones, and no more than there are.
    warmup: steps during which lambda is 0.
    rampup: steps after these over which lambda grows linearly to lam.
    low_memory: computes the same gradient in two passes with the memory of one graph, where n would be alive at once:
        g_i and a_i = dR/dg_i first, then d<g_i, a_i>/dtheta for one model after the other.
    seed: addresses the noise, together with the step.
    """

    @checked
    def __init__(
        self,
        name: str = "dpp",
        lam: NotNegative = 1.0,
        n: int = 3,
        *,
        warmup: Annotated[int, Range(ge=0)] = 0,
        rampup: Annotated[int, Range(ge=0)] = 0,
        low_memory: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if n < 2:
            raise GradDivError(f"n is {n}, expected at least 2: one gradient alone is neither diverse nor concentrated")
        self.name, self.regularizer = name, REGULARIZERS[name]
        self.lam, self.n, self.warmup, self.rampup = lam, n, warmup, rampup
        self.low_memory, self.seed = low_memory, seed
        self.parts = Parts(lam=0.0)
        self._met_network = False

    def forward(
        self, F: RandomizedNetwork, x: Images, y: Labels, *, step: int, ids: Labels | None = None
    ) -> Float[Tensor, ""]:
        """Return lambda(step) R(x; theta).

        step: the number of the training step; it addresses the noise, so a resumed run draws the same again.
        ids: the data-set indices of the batch; with them noise on activations (RSE, MI) is drawn for each example.
        """
        _check_arguments(F, x, y)
        lam = self.lam * ramp(step, self.warmup, self.rampup)
        self.parts = Parts(lam)
        if lam == 0:
            return x.new_zeros(())
        draws = F.distinct_draws([fold(self.seed, "graddiv", step, i) for i in range(self.n)], ids)
        with running_statistics(F):
            parameters = [p for p in F.parameters() if p.requires_grad]
            if self.low_memory and parameters and torch.is_grad_enabled():
                compute = partial(self._in_two_passes, F, draws, x, y, parameters)
                R: Tensor = _WithGradient.apply(compute, *parameters)  # type: ignore[no-untyped-call]
            else:
                wanted, theta = torch.is_grad_enabled(), F.theta()
                models = (F.bind(draw(), theta) for draw in draws)
                R = self._R(torch.stack([input_gradient(f, x, y, create_graph=wanted)[1] for f in models]))
        self._warn_if_deterministic()
        return lam * R.to(x.dtype)

    def _in_two_passes(
        self, F: RandomizedNetwork, draws: Draws, x: Tensor, y: Tensor, parameters: Sequence[Tensor]
    ) -> ValueAndGradient:
        """R and dR/dtheta = sum_i d<g_i, a_i>/dtheta with a_i = dR/dg_i; noise is drawn again, not kept."""
        *others, last = draws
        with torch.no_grad():
            theta = F.theta()
            g = [input_gradient(F.bind(draw(), theta), x, y)[1] for draw in others]
        with torch.enable_grad():
            live = input_gradient(F.bind(last()), x, y, create_graph=True)[1]  # its graph serves both passes
            leaves = torch.stack([*g, live.detach()]).requires_grad_()
            R = self._R(leaves)
            *a, a_last = torch.autograd.grad(R, leaves)[0]
            gradient: list[Tensor | None] = list(torch.autograd.grad(live, parameters, a_last, allow_unused=True))
            for draw, a_i in zip(others, a, strict=True):
                del live  # one graph at a time
                live = input_gradient(F.bind(draw()), x, y, create_graph=True)[1]
                more = torch.autograd.grad(live, parameters, a_i, allow_unused=True)  # None: no part in it
                both = zip(gradient, more, strict=True)
                gradient = [p if q is None else q if p is None else p + q for p, q in both]
        return R.detach(), gradient

    def _R(self, g: Float[Tensor, "n b ..."]) -> Float64[Tensor, ""]:
        """1/b sum_x R(v_1(x) .. v_n(x)), examples with a zero gradient counting 0."""
        v, usable = directions(g)
        R = torch.where(usable, self.regularizer(v), 0.0).sum() / max(len(usable), 1)
        with torch.no_grad():
            cosine = torch.where(usable, mean_cosine(v), 0.0).sum() / usable.sum().clamp_min(1)
            self.parts = self.parts._replace(R=R.detach(), masked=(~usable).sum(), cosine=cosine)
        return R

    def _warn_if_deterministic(self) -> None:
        """Warn, at the first batch only, that equal gradients cannot be made diverse."""
        if not self._met_network and self.parts.cosine is not None and self.parts.cosine > 1 - 1e-9:
            warnings.warn(
                f"GradDiv: the {self.n} sample models have the same gradient direction at every example, as those of "
                "a deterministic network have, and R can teach it nothing; make it random (bayesian, rse, pni, or "
                "randomize for a module with dropout of its own)",
                GradDivWarning,
                stacklevel=3,
            )
        self._met_network = True

    def extra_repr(self) -> str:
        return f"{self.name!r}, lam={self.lam}, n={self.n}, warmup={self.warmup}, rampup={self.rampup}"


class _WithGradient(torch.autograd.Function):
    """A value whose gradient with respect to theta was computed along with it; a node that DDP can see."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[[], ValueAndGradient], *theta: Tensor) -> Float64[Tensor, ""]:
        value, ctx.gradient = compute()
        return value

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(None if g is None else g * upstream[0].to(g.dtype) for g in ctx.gradient)


def _check_arguments(F: RandomizedNetwork, x: Tensor, y: Tensor) -> None:
    modules = F.modules() if isinstance(F, nn.Module) else ()
    if any("_orig_mod" in m._modules or m._compiled_call_impl is not None for m in modules):
        raise GradDivError(
            "the network is compiled with torch.compile, which has no double backward, and GradDiv differentiates "
            "gradients: pass the module as it was before torch.compile"
        )
    if not isinstance(F, RandomizedNetwork):
        raise GradDivError(
            f"F is a {type(F).__name__}, expected a RandomizedNetwork: "
            "make one of a stochastic module with randomize(module)"
        )
    check_takes(F, plain("x", x))
    check_labels(y, len(x))
