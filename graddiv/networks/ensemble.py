"""Random ensembles: the noise is which of k networks answers.  Trained apart, with ADP, GAL or DVERGE (docs/zoo.md)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.geometry import LINF, per_example
from graddiv.losses import ce
from graddiv.networks.activations import WEIGHTED, watched
from graddiv.networks.defense import Minibatch, Rules, defense, neighbours
from graddiv.networks.inputs import running_statistics
from graddiv.networks.randomized import BoundModel, Noise, RandomizedNetwork, SampleModel, Support, Theta, check_noise
from graddiv.registries import Count, NotNegative, Range, Share
from graddiv.seeding import fold, numbers, uniform


class EnsembleNetwork(RandomizedNetwork):
    """f = f_i with probability p_i, i = 1 .. k: one member answers, drawn anew for every call.

    `predict` asks every member once where they are equally likely: the deterministic ensembles of GAL, ADP and DVERGE.
    """

    module: nn.ModuleList

    def __init__(self, members: nn.ModuleList, probabilities: Float64[Tensor, " k"]) -> None:
        super().__init__(members)
        self.probabilities = probabilities

    @property
    def members(self) -> list[nn.Module]:
        return list(self.module)

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        return {"member": self.support().number(uniform(seed, None, 1)[0])[0].to(self.device)}

    def support(self) -> Support:
        everyone = torch.arange(len(self.module), device=self.device)
        return Support([{"member": i} for i in everyone], self.probabilities)

    def bind(self, noise: Noise, theta: Theta | None = None) -> BoundModel:
        i = int(check_noise(noise, {"member": ()}, self.device, {"member": len(self.module)})["member"])
        everything = (theta or self.theta()).parameters.items()
        own = {name.removeprefix(f"{i}."): p for name, p in everything if name.startswith(f"{i}.")}
        return BoundModel(self.module[i], own)


def ensemble(members: Sequence[nn.Module], probabilities: Sequence[float] | None = None) -> EnsembleNetwork:
    """Make a random ensemble of two or more networks.

        F = ensemble([module, another])

    Returns a `RandomizedNetwork`: a sample model is one of the members.

    members: the networks; initialize them independently, since members that start alike have the same gradients.
    probabilities: how often each answers; equally often by default.
    """
    k = len(members)
    if k < 2:
        raise GradDivError(f"there are {k} members, expected at least two networks")
    if any(isinstance(member, RandomizedNetwork) for member in members):
        raise GradDivError("a member is a RandomizedNetwork already: expected plain modules, whose choice is the noise")
    p = torch.tensor([1 / k] * k if probabilities is None else list(probabilities), dtype=torch.float64)
    if len(p) != k or not (p > 0).all() or abs(float(p.sum()) - 1) > 1e-6:
        raise GradDivError(f"probabilities are {p.tolist()}, expected {k} positive numbers that sum to 1")
    return EnsembleNetwork(nn.ModuleList(members), p / p.sum())


@dataclass(frozen=True)
class EnsembleTraining(Rules):
    """1/k sum_i CE(f_i(x), y): every member learns at every step; minus ADP's diversity / k, or DVERGE's loss instead.

    input_noise: sigma of Gaussian noise on half of the images; GAL needs 0.045.
    adp_alpha, adp_beta: weights of the ensemble's entropy and of the log volume of wrong classes; 2 and 0.5 in ADP.
    dverge: whether members train on each other's distilled images, at most dverge_epsilon from their source.
    baseline: the share of training that DVERGE's members spend on clean images before.
    """

    k: Annotated[int, Range(ge=2)] = 3  #: the number of members
    input_noise: NotNegative = 0.0
    adp_alpha: NotNegative = 0.0
    adp_beta: NotNegative = 0.0
    dverge: bool = False
    dverge_epsilon: NotNegative = 0.07  #: the radius of the distilled images
    dverge_m: Count = 10  #: the steps that distill an image
    baseline: Share = 0.5

    @property
    def in_pairs(self) -> bool:
        return self.dverge

    @property
    def passes(self) -> float:
        plain = 3.0 * self.k
        dverge = self.k * (2.0 * self.dverge_m + 3.0 * (self.k - 1))
        return self.baseline * plain + (1 - self.baseline) * dverge if self.dverge else plain

    def losses(self, F: RandomizedNetwork, batch: Minibatch) -> Tensor:
        assert isinstance(F, EnsembleNetwork)
        x, y = self._with_input_noise(batch), batch.y
        if self.dverge and batch.progress >= self.baseline:
            target = x[neighbours(len(x), x.device)]
            return dverge_losses(F, x, y, target, batch.seed, self.dverge_epsilon, self.dverge_m)
        logits = torch.stack([F.bind(noise)(x) for noise in F.support().noises])
        losses = torch.stack([ce(z, y) for z in logits]).mean(0)
        if self.adp_alpha or self.adp_beta:
            losses = losses - adp_diversity(logits, y, self.adp_alpha, self.adp_beta) / self.k
        return losses

    def _with_input_noise(self, batch: Minibatch) -> Tensor:
        """x + sigma noise for half of the examples, chosen anew at each step; R is taken at x itself."""
        if self.input_noise == 0:
            return batch.x
        noise = numbers("normal", fold(batch.seed, "input noise"), batch.ids, batch.x[0].numel(), batch.x)
        chosen = uniform(fold(batch.seed, "noisy"), batch.ids, 1)[:, 0] < 0.5
        return batch.x + self.input_noise * per_example(chosen, batch.x) * noise.reshape(batch.x.shape)


@defense("ensemble", EnsembleTraining)
def _of_one_architecture(
    members: Callable[[int], list[nn.Module]], k: Annotated[int, Range(ge=2)] = 3
) -> EnsembleNetwork:
    """An ensemble of k networks, initialized independently."""
    return ensemble(members(k))


def adp_diversity(
    logits: Float[Tensor, "k b c"], y: Int64[Tensor, " b"], alpha: float = 2.0, beta: float = 0.5
) -> Float64[Tensor, " b"]:
    """alpha H(mean_i p_i) + beta log det(M^T M + 1e-6 I), the diversity that ADP (Pang et al. 2019) rewards.

    p_i is the softmax of member i, H the entropy; the columns of M are the p_i without the true class, of unit length.
    In float64, as nearly equal members make the determinant tiny.
    """
    k, _, c = logits.shape
    if k >= c:
        raise GradDivError(f"ADP has {k} members and {c} classes, expected fewer members than classes")
    p = logits.double().softmax(2)
    mean = p.mean(0)
    entropy: Tensor = -torch.special.xlogy(mean, mean.clamp_min(1e-300)).sum(1)
    others = torch.ones_like(mean, dtype=torch.bool).scatter(1, y[:, None], False)
    wrong = p.transpose(0, 1)[others[:, None].expand(-1, k, -1)].reshape(len(y), k, c - 1)
    wrong = wrong / torch.linalg.vector_norm(wrong, dim=2, keepdim=True).clamp_min(1e-150)
    gram = wrong @ wrong.mT + 1e-6 * torch.eye(k, dtype=torch.float64, device=y.device)
    log_volume: Tensor = torch.linalg.slogdet(gram).logabsdet
    return alpha * entropy + beta * log_volume


def dverge_losses(
    F: EnsembleNetwork, x: Float[Tensor, "b ..."], y: Tensor, target: Tensor, seed: int, epsilon: float, m: int
) -> Float[Tensor, " b"]:
    """1/k sum_i sum_{j != i} CE(f_i(x'_j(x, target)), y), per example; `target` holds other images of the batch."""
    layers, noises = [_hidden_layers(member) for member in F.members], F.support().noises
    number = int(float(uniform(seed, None, 1)) * len(layers[0]))
    with torch.no_grad():
        constant = [F.bind(noise) for noise in noises]
    with running_statistics(F):
        weak = [distilled(f, own[number], x, target, epsilon, m) for f, own in zip(constant, layers, strict=True)]
    total = x.new_zeros(len(x))
    for i, f in enumerate(F.bind(noise) for noise in noises):
        others = torch.cat([z for j, z in enumerate(weak) if j != i])
        total = total + ce(f(others), y.repeat(len(noises) - 1)).reshape(-1, len(y)).sum(0)
    return total / len(noises)


def distilled(
    f: SampleModel, layer: nn.Module, source: Float[Tensor, "b ..."], target: Tensor, epsilon: float, m: int
) -> Float[Tensor, "b ..."]:
    """x'_j(x_s, x_t) = argmin_z |f_j^l(z) - f_j^l(x_t)|^2 over |z - x_s|_inf <= epsilon, as a constant.

    f^l is `layer`, which f calls.  Found from x_s in m steps of epsilon / m along the gradient's sign with momentum.
    """
    x, momentum, radius = source.detach(), torch.zeros_like(source), source.new_full((len(source),), epsilon)
    with torch.no_grad():
        wanted = _features(f, layer, target)
    for _ in range(m):
        with torch.enable_grad():
            z = x.clone().requires_grad_()
            (g,) = torch.autograd.grad((_features(f, layer, z) - wanted).square().sum(), z)
        momentum = momentum + g / per_example(g.flatten(1).abs().sum(1).clamp_min(1e-30), g)
        x = LINF.project(x - LINF.steepest(momentum, radius / m), source, radius)
    return x


def _features(f: SampleModel, layer: nn.Module, x: Tensor) -> Tensor:
    [*_, (_, visit)] = watched(f, {"": layer}, x)
    return visit.y


def _hidden_layers(member: nn.Module) -> Sequence[nn.Module]:
    """Return the convolutions and linear layers of a network, but for the last, whose output is the logits."""
    found = [m for m in member.modules() if isinstance(m, WEIGHTED)]
    if len(found) < 2:
        raise GradDivError(f"{type(member).__name__} has no hidden convolution or linear layer: DVERGE needs features")
    return found[:-1]
