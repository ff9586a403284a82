"""Projected gradient descent (Madry et al. 2018) and, as its one-step case, the fast gradient (sign) method.

In the paper: docs/equations.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from graddiv.attacks.attack import Attack, Problem
from graddiv.errors import GradDivError


@dataclass(frozen=True)
class PGD(Attack):
    """x' = x_k + argmax_{|g|_p <= alpha} <g, E grad L(F(x_k), y)>, x_{k+1} = the projection of x' to the ball.

    m iterations of step alpha * epsilon; from x0 itself, or from a random point of the ball (after the first restart
    always).  Returns the last iterate.
    """

    m: int = 50
    """Iterations; at least 1."""
    alpha: float = 0.25
    """Length of a step as a share of epsilon."""
    random_start: bool = False
    """Whether the first run, too, starts from a random point of the ball."""

    name = "PGD"

    def __post_init__(self) -> None:
        if self.m < 1 or not self.alpha > 0:
            raise GradDivError(f"m is {self.m} and alpha {self.alpha}, expected at least one step of positive length")

    @property
    def iterations(self) -> int:
        return self.m

    def run(self, problem: Problem, restart: int) -> Float[Tensor, "b ..."]:
        x = problem.x0
        for x in self.iterates(problem, restart):  # noqa: B007 -- the last one is returned
            problem.tick()
        return x

    def iterates(self, problem: Problem, restart: int = 0) -> Iterator[Float[Tensor, "b ..."]]:
        """Yield x_1 .. x_m."""
        x0, epsilon = problem.x0, problem.epsilon
        x = x0
        if self.random_start or restart:
            x = self.geometry.random(problem.uniform("start", restart), x0, epsilon)
        for k in range(self.m):
            iteration = restart * self.m + k
            g = self.proxy(problem.view.gradient(iteration, x, problem.y, self.objective).direction, problem, iteration)
            x = self.geometry.project(x + self.geometry.steepest(g, self.alpha * epsilon), x0, epsilon)
            yield x

    def proxy(self, g: Float[Tensor, "b ..."], problem: Problem, iteration: int) -> Float[Tensor, "b ..."]:
        """Return the direction that the step follows: the gradient g itself; probes put another in its place."""
        return g


@dataclass(frozen=True)
class FGSM(PGD):
    """x = x0 + argmax_{|g|_p <= epsilon} <g, E grad L(F(x0), y)>: PGD with m = 1 and alpha = 1; FGM in the l_2 norm."""

    m: int = 1
    alpha: float = 1.0

    name = "FGSM"
