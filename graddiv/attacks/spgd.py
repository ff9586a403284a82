"""PGD for noisy gradients: steps that shrink, and a pilot that measures the noise and says how to spend the passes."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from graddiv.attacks.attack import Attack, Problem
from graddiv.attacks.view import View
from graddiv.errors import GradDivError
from graddiv.geometry import Images, Labels, PerExample, per_example
from graddiv.registries import Count, Positive

Memory = Literal["none", "aggmo"]

MOMENTA = (0.0, 0.9, 0.99)  #: of AggMo


@dataclass(frozen=True)
class StochasticPGD(Attack):
    """x_{k+1} = the projection of x_k + a_k d_k, d_k the steepest step of length 1 along a mean of noisy gradients.

    a_k = alpha epsilon (1 + cos(pi k / m)) / 2.  Steps that shrink average the noise of many iterations away, and the
    same passes then buy more iterations instead of more models, which is worth far more (docs/adversaries.md).
    memory "aggmo" is signed AggMo (Sitawarin et al. 2022): three momenta, each made a step of its own, then averaged.
    """

    objective: str = "margin"
    m: Count = 100  #: iterations
    alpha: Positive = 0.5  #: length of the first step as a share of epsilon
    memory: Memory = "none"  #: what a step remembers of the gradients before

    former_settings: ClassVar = {"schedule": "cosine", "start": "clean", "kept": 1}

    @property
    def name(self) -> str:  # type: ignore[override]
        """SPGD, and the settings that are not the defaults: SPGD-ensemble-aggmo."""
        odd = [self.objective] * (self.objective != "margin") + [self.memory] * (self.memory != "none")
        return "-".join(["SPGD", *odd])

    def run(self, problem: Problem, restart: int) -> Images:
        x0, epsilon = problem.x0, problem.epsilon
        x = self.geometry.random(problem.uniform("start", restart), x0, epsilon) if restart else x0
        momenta = [torch.zeros_like(x0) for _ in MOMENTA] if self.memory == "aggmo" else []
        for k in range(self.m):
            g = problem.view.gradient(restart * self.m + k, x, problem.y, self.objective).direction
            length = self.alpha * ((1 + math.cos(math.pi * (k / self.m))) / 2) * epsilon
            x = self.geometry.project(self._step(x, g, length, momenta), x0, epsilon)
            problem.tick()
        return x

    def _step(self, x: Images, g: Images, length: PerExample, momenta: list[Tensor]) -> Images:
        if not momenta:
            return self.geometry.step(x, g, length)
        # of mean size 1, with no entry beyond it: a single steep iteration must not fill the memory
        size = g.flatten(1).abs().mean(1)
        g = (g / per_example(size.clamp_min(torch.finfo(g.dtype).tiny), g)).clamp(-1, 1)
        momenta[:] = [beta * momentum + g for beta, momentum in zip(MOMENTA, momenta, strict=True)]
        return x + torch.stack([self.geometry.steepest(momentum, length) for momentum in momenta]).mean(0)


COSINE = 0.85  #: enough draws give this cosine to the true gradient: what is left averages out over the steps
STARVED = 0.5  #: below this cosine a gradient is mostly noise, and momenta help; above it they slow the attack down
FEWEST_STEPS = 50  #: the fewest iterations, however noisy the gradient
PILOT = -1000  #: the iteration whose models the pilot looks at: no attack ever sees them


class GradientNoise(NamedTuple):
    """Estimates, from n gradients g_i of each of b examples, of their mean mu and covariance."""

    rho: Float64[Tensor, " b"]  #: debiased MRL of g_i / |g_i|: the root of the mean cosine of two, 0 where negative
    mean_length: Float64[Tensor, " b"]  #: |mu|: the root of |mean g|^2 - tr Cov / n, 0 where that is negative
    trace: Float64[Tensor, " b"]  #: tr Cov = n / (n - 1) (mean |g|^2 - |mean g|^2)

    @property
    def q(self) -> Float64[Tensor, " b"]:
        """|mu|^2 / tr Cov: 1 / q draws give a cosine of 0.71."""
        return self.mean_length.square() / self.trace.clamp_min(torch.finfo(torch.float64).tiny)

    def cosine_of_two(self, n: int) -> Float64[Tensor, " b"]:
        """1 / (1 + 1 / (n q)): the cosine of two means of n draws each, to leading order; its root is that to mu."""
        nq = n * self.q
        return nq / (1 + nq)


def gradient_noise(view: View, k: int, x: Images, y: Labels) -> GradientNoise:
    """Measure the noise of the margin's gradients on the models of iteration k."""
    total = unit = square = torch.zeros((), dtype=torch.float64, device=x.device)
    n = 0
    for gradient in view.gradients(k, x, y):
        g = gradient.flatten(1).double()
        length = torch.linalg.vector_norm(g, dim=1)
        total, square = total + g, square + length.square()
        unit, n = unit + g / length.clamp_min(1e-300)[:, None], n + 1
    if n < 2:
        raise GradDivError(f"there are {n} gradients at an iteration, expected at least 2 to measure their noise")
    of_mean = (total / n).square().sum(1)
    trace = ((square / n - of_mean) * n / (n - 1)).clamp_min(0)
    cosine = (unit.square().sum(1) - n) / (n * (n - 1))
    return GradientNoise(cosine.clamp_min(0).sqrt(), (of_mean - trace / n).clamp_min(0).sqrt(), trace)


def measured_cosine(view: View, k: int, x: Images, y: Labels) -> Float64[Tensor, " b"]:
    """Return the cosine of the mean gradients of iterations k and k + 1, per example: two means of n draws each."""
    first, second = (torch.stack([g.flatten(1) for g in view.gradients(i, x, y)]) for i in (k, k + 1))
    return torch.nn.functional.cosine_similarity(first.double().mean(0), second.double().mean(0), dim=1)


class Spending(NamedTuple):
    """A split of a budget of passes: n models at each of m iterations."""

    n: int
    m: int
    starved: bool = False  #: whether the gradient is mostly noise even with n models, so that a memory helps


def choose(q: float, passes: int) -> Spending:
    """n = the draws at which the cosine to the true gradient is 0.85, as long as 50 steps are left; m = passes / n."""
    q = max(q, 1e-9)
    wanted = math.ceil(COSINE**2 / (1 - COSINE**2) / q)
    n = max(1, min(wanted, passes // FEWEST_STEPS))
    return Spending(n, max(1, passes // n), starved=n * q < STARVED**2 / (1 - STARVED**2))
