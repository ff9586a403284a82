"""DVERGE (Yang et al. 2020): the members of an ensemble learn from each other's weaknesses."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.geometry import Linf, per_example
from graddiv.losses import ce
from graddiv.networks import EnsembleNetwork, SampleModel, running_statistics
from graddiv.seeding import uniform


@dataclass(frozen=True)
class Distillation:
    """x'_j(x_s, x_t) = argmin_z |f_j^l(z) - f_j^l(x_t)|^2 over |z - x_s|_inf <= epsilon.

    The image looks like x_s, but to member j it has the features of x_t.  f^l is the output of a convolution or hidden
    linear layer, before its activation.  Found in m steps of epsilon / m along the sign of the gradient with momentum,
    from x_s on.
    """

    epsilon: float = 0.07
    m: int = 10

    def __call__(
        self, f: SampleModel, layer: nn.Module, source: Float[Tensor, "b ..."], target: Float[Tensor, "b ..."]
    ) -> Float[Tensor, "b ..."]:
        """Return x'_j for every pair of rows, as a constant; `layer` is a module that f calls."""
        radius = source.new_full((len(source),), self.epsilon)
        x, momentum, geometry = source.detach(), torch.zeros_like(source), Linf()
        with torch.no_grad():
            wanted = _features(f, layer, target)
        for _ in range(self.m):
            with torch.enable_grad():
                z = x.clone().requires_grad_()
                (g,) = torch.autograd.grad((_features(f, layer, z) - wanted).square().sum(), z)
            momentum = momentum + g / per_example(g.flatten(1).abs().sum(1).clamp_min(1e-30), g)
            x = geometry.project(x - geometry.steepest(momentum, radius / self.m), source, radius)
        return x


def dverge_losses(
    F: EnsembleNetwork,
    x: Float[Tensor, "b ..."],
    y: Int64[Tensor, " b"],
    target: Float[Tensor, "b ..."],
    *,
    seed: int,
    distil: Distillation = Distillation(),  # noqa: B008 -- frozen, so safely shared
) -> Float[Tensor, " b"]:
    """1/k sum_i sum_{j != i} CE(f_i(x'_j(x, target)), y), for each example; `target` holds other images of the batch.

    A member trains neither on clean images nor on its own weakness.  Two differences from the released code: the layer
    is drawn at every step and not once an epoch, which its authors found to vary much, and the passes that distil use
    batch norm's running statistics and leave them alone.
    """
    layers = [_hidden_layers(member) for member in F.members]
    number = int(float(uniform(seed, torch.tensor([-1]), 1)) * len(layers[0]))
    noises = F.support().noises
    with torch.no_grad():
        constant = [F.bind(noise) for noise in noises]
    with running_statistics(F):
        distilled = [distil(f, own[number], x, target) for f, own in zip(constant, layers, strict=True)]
    total = x.new_zeros(len(x))
    for i, f in enumerate(F.bind(noise) for noise in noises):
        others = torch.cat([z for j, z in enumerate(distilled) if j != i])
        total = total + ce(f(others), y.repeat(len(noises) - 1)).reshape(-1, len(y)).sum(0)
    return total / len(noises)


def _hidden_layers(member: nn.Module) -> Sequence[nn.Module]:
    """Return the convolutions and linear layers of a network, but for the last, whose output is the logits."""
    found = [m for m in member.modules() if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear))]
    if len(found) < 2:
        raise GradDivError(f"{type(member).__name__} has no hidden convolution or linear layer: DVERGE needs features")
    return found[:-1]


def _features(f: SampleModel, layer: nn.Module, x: Tensor) -> Tensor:
    """Return what `layer` puts out when f is called."""
    found: list[Tensor] = []
    hook = layer.register_forward_hook(lambda module, inputs, output: found.append(output))
    try:
        f(x)
    finally:
        hook.remove()
    return found[-1]
