"""Networks that are attacked in place of one whose gradients lead nowhere; what is found is judged on that one."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax
from torch.overrides import TorchFunctionMode

from graddiv.evaluation.models import Adapted
from graddiv.networks import Dirac, RandomizedNetwork, SampleModel, straight_through
from graddiv.networks.prediction import predict
from graddiv.seeding import fold, generator, isolated

_FLAT = ("round", "floor", "ceil", "trunc", "fix", "sign", "sgn")
FLAT = frozenset(getattr(home, name) for home in (torch, Tensor) for name in _FLAT)
"""Functions of torch that are flat almost everywhere: their gradient is 0 and says nothing."""
CUTTING = frozenset({torch.detach, Tensor.detach})  #: Functions of torch that cut the graph.


class _HandedOn(TorchFunctionMode):
    """Inside, functions without a gradient hand it on as if they were the identity."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func in CUTTING:
            return args[0]
        if func in FLAT and args[0].is_floating_point():
            return straight_through(lambda x: func(x, *args[1:], **options))(args[0])
        return func(*args, **options)


def straight_through_surrogate(F: RandomizedNetwork) -> RandomizedNetwork:
    """The network with every flat function of torch (rounding, signs) as a straight-through step; its answers stay."""

    def call(f: SampleModel, x: Tensor) -> Tensor:
        with _HandedOn():
            return f(x)

    return Adapted(F, call)


def substitute(
    F: RandomizedNetwork, x: Float[Tensor, "b ..."], *, radius: float, steps: int, seed: int = 0
) -> RandomizedNetwork:
    """A small network taught with what F answers on the images and around them, within a radius in each pixel."""
    address = fold(seed, "substitute")
    targets = predict(F, x, seed=address).scores
    with isolated(address):
        module = _small_network(x, targets.shape[1]).to(x.device, x.dtype)
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)
    with torch.enable_grad():
        for step in range(steps):
            draw = generator(fold(address, step))
            rows = torch.randint(len(x), (min(len(x), 64),), generator=draw).to(x.device)
            noise = torch.rand(x[rows].shape, generator=draw, dtype=x.dtype).to(x.device)
            asked = (x[rows] + radius * (2 * noise - 1)).clamp(0, 1)
            said = predict(F, asked, n=4, seed=fold(address, step)).scores.to(x.dtype)
            loss = kl_div(log_softmax(module(asked), 1), said, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return Dirac(module.eval().requires_grad_(False))


def _small_network(x: Float[Tensor, "b ..."], classes: int) -> nn.Module:
    """Two convolutions for images, two layers for other inputs."""
    if x.dim() != 4:
        size = x[0].numel()
        return nn.Sequential(nn.Flatten(), nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, classes))
    body = nn.Sequential(
        *(nn.Conv2d(x.shape[1], 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten()),
    )
    with torch.no_grad():
        size = body(torch.zeros(1, *x.shape[1:])).shape[1]
    return nn.Sequential(*body, nn.Linear(size, classes))
