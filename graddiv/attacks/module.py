"""A view as a module: what attack libraries of others take for a network."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graddiv.attacks.view import Cost, View
from graddiv.attacks.views import NetworkView
from graddiv.errors import GradDivError
from graddiv.networks import SampleModel


def as_module(view: View, *, mean: bool = False, first: int = 0, like: Tensor | None = None) -> "ViewModule":
    """Return a module x -> logits that shows, from call to call, the sample models of the view one after the other.

    view: what the adversary sees; every pass and every draw is counted in its cost, a call on a part of the batch as
        one on the whole.
    mean: each call is log sum_i q_i softmax f_i(x) over all n models of the next iteration, q_i = 1/n or the view's
        probabilities, for libraries that do not average by themselves.  Those that do, by calling n times, are given
        one model at each call.
    first: the iteration of the view whose models come first.
    like: a tensor of the device and type that the models take; by default those of the network's parameters.

    Call it inside `seeding.isolated` if the library that gets it draws from the global random state: this module does
    not.
    """
    if like is None:
        like = next(view.F.module.parameters(), None) if isinstance(view, NetworkView) else None
    if like is None:
        raise GradDivError("a view of given models does not tell where they lie: pass like=x, the images to attack")
    if view.probabilities is not None and not mean:
        raise GradDivError(
            "the models of the view are not equally likely, but calls in turn weigh them alike: pass mean=True"
        )
    return ViewModule(view, mean, first, like).eval()


class ViewModule(nn.Module):
    """The sample models of a view behind the interface of a network; made by `as_module`.

    The models' parameters are constants of the view and none of this module's.  The only one it has is empty and
    frozen: libraries ask a network's parameters for its device.
    """

    def __init__(self, view: View, mean: bool, first: int, like: Tensor) -> None:
        super().__init__()
        self.view, self.mean, self.iteration = view, mean, first
        self.where = nn.Parameter(like.detach().new_empty(0), requires_grad=False)
        self._models: Iterator[SampleModel] = iter(())

    def forward(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
        """Return the logits of the next model, or those of the ensemble of the next n."""
        with self.view.context():
            if not self.mean:
                return self._logits(self._next_model(), x)
            log_p = torch.stack([self._logits(f, x).log_softmax(1) for f in self._next_iteration()])
            q = self.view.probabilities
            log_q = log_p.new_full((len(log_p),), -math.log(len(log_p))) if q is None else q.log().to(log_p)
            return (log_p + log_q[:, None, None]).logsumexp(0)

    def _logits(self, f: SampleModel, x: Tensor) -> Tensor:
        self.view.cost.forwards += 1
        seen: Tensor = _CountBackward.apply(x, self.view.cost)  # type: ignore[no-untyped-call]
        return f(seen.to(self.where.dtype)).to(x.dtype)

    def _next_model(self) -> SampleModel:
        model = next(self._models, None)
        if model is None:
            self._models = self._next_iteration()
            model = next(self._models)
        return model

    def _next_iteration(self) -> Iterator[SampleModel]:
        self.iteration += 1
        return self.view(self.iteration - 1)


class _CountBackward(torch.autograd.Function):
    """The identity, which counts the backward passes that arrive at it."""

    @staticmethod
    def forward(ctx: "_CountBackward", x: Tensor, cost: Cost) -> Tensor:
        ctx.cost = cost  # type: ignore[attr-defined]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: "_CountBackward", g: Tensor) -> tuple[Tensor, None]:
        ctx.cost.backwards += 1  # type: ignore[attr-defined]
        return g, None
