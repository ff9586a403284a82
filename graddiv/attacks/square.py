"""Attacks without gradients: Square (Andriushchenko et al. 2020), and random search.  See docs/equations.md."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn.functional import pad

from graddiv.attacks.attack import RESCORE, Attack, Problem, highest, keep_best
from graddiv.errors import GradDivError
from graddiv.geometry import L2, Images, Linf, per_example
from graddiv.registries import Count, PositiveShare
from graddiv.seeding import fold, uniform

UniformDraw = Callable[[int], Tensor]  #: k -> k uniform numbers for each example; a second call gives the same ones
Window = tuple[Tensor, Tensor, Tensor, Tensor]  #: the index of a square in each image: example, channel, row and column
HALVING_QUERIES = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  #: of 10000; after each, squares cover half as much


@dataclass(frozen=True)
class Square(Attack):
    """x_{k+1} = x' if L(F(x'), y) > L(F(x_k), y) else x_k, where x' is x_k changed in a square at a random place.

    m queries, the first for the start; squares cover p_init of the image, then less and less.  Both losses are of the
    same models: where each iteration has new ones the incumbent is looked at again, since its best loss so far would
    be that of a lucky draw, which no candidate can beat.  No image is left alone once it is misclassified.
    """

    objective: str = "margin"
    m: Count = 5000  #: queries, each of which asks all models of an iteration; 5000 as in AutoAttack
    p_init: PositiveShare = 0.8  #: the share of the image that the first squares cover; the default is AutoAttack's
    name = "Square"
    norms = (Linf, L2)
    passes_per_iteration = 1.5

    def run(self, problem: Problem, restart: int) -> Float[Tensor, "b c h w"]:
        x0, view = problem.x0, problem.view
        if x0.dim() != 4:
            raise GradDivError(f"x has shape {tuple(x0.shape)}, expected images of shape b c h w")
        start, change = (self._tiles, self._move) if isinstance(self.geometry, L2) else (self._stripes, self._recolor)

        def draw_of(query: int) -> UniformDraw:
            return lambda k: uniform(fold(problem.seed, "square", restart, query), problem.ids, k)

        def losses_of(query: int, *points: Tensor) -> Tensor:
            return view.losses(restart * self.m + query, points, problem.y, self.objective)

        x = start(problem, draw_of(0))
        problem.tick()
        for query in range(1, self.m):
            candidate = change(problem, x, self._share(query), draw_of(query))
            if view.renewed(restart * self.m + query) or query == 1:
                loss, candidate_loss = losses_of(query, x, candidate)
            else:
                (candidate_loss,) = losses_of(query, candidate)
            better = candidate_loss > loss
            x, loss = torch.where(per_example(better, x), candidate, x), torch.where(better, candidate_loss, loss)
            problem.tick()
        return x

    def _share(self, query: int) -> float:
        """p_init / 2^j after j halvings: the share of pixels a square covers."""
        return float(self.p_init / 2 ** sum(10_000 * query > after * self.m for after in HALVING_QUERIES))

    def _stripes(self, problem: Problem, draw: UniformDraw) -> Float[Tensor, "b c h w"]:
        """x0 +- epsilon, a sign for each column of each channel: networks are sensitive to vertical stripes."""
        b, c, _, w = problem.x0.shape
        stripes = per_example(problem.epsilon, problem.x0) * _signs(draw(c * w), problem.x0).reshape(b, c, 1, w)
        return self.geometry.project(problem.x0 + stripes, problem.x0, problem.epsilon)

    def _recolor(self, problem: Problem, x: Tensor, share: float, draw: UniformDraw) -> Float[Tensor, "b c h w"]:
        """x +- 2 epsilon in a square, a sign for each channel, back to the ball: each pixel ends at an edge of it."""
        _, c, h, w = x.shape
        side = min(max(round(math.sqrt(share * h * w)), 1), h, w)
        u = draw(2 + c)
        square = _window(u[:, :2], side, x)
        old, middle = x[square], problem.x0[square]
        step = 2 * per_example(problem.epsilon, x) * _signs(u[:, 2:], x)[..., None, None]
        new, opposite = (self.geometry.project(old + change, middle, problem.epsilon) for change in (step, -step))
        # Where the square has these colors already, the opposite ones are taken, or the query would be wasted.
        same = (new == old).flatten(1).all(1)
        candidate = x.clone()
        candidate[square] = torch.where(per_example(same, x), opposite, new)
        return candidate

    def _tiles(self, problem: Problem, draw: UniformDraw) -> Float[Tensor, "b c h w"]:
        """x0 + epsilon * a grid of tiles, 5 along the shorter side: each a pair of bumps of random orientation."""
        b, c, h, w = problem.x0.shape
        side = max(min(h, w) // 5, 1)
        down, across = h // side, w // side
        u = draw((c + 1) * down * across).reshape(b, c + 1, down, across, 1, 1)
        tiles = _signs(u[:, :c], problem.x0) * _turned(_bumps(side, problem.x0), u[:, c:])
        grid = tiles.transpose(3, 4).reshape(b, c, down * side, across * side)
        top, left = (h - down * side) // 2, (w - across * side) // 2
        grid = pad(grid, (left, w - across * side - left, top, h - down * side - top))
        return self._onto_sphere(problem, grid)

    def _move(self, problem: Problem, x: Tensor, share: float, draw: UniformDraw) -> Float[Tensor, "b c h w"]:
        """Empty a window; what it held of epsilon^2, and what the box left unused, goes to bumps added to another."""
        _, c, h, w = x.shape
        side = min(max(round(math.sqrt(share * h * w)), 3) | 1, h, w)
        u = draw(5 + c)
        target, source = _window(u[:, :2], side, x), _window(u[:, 2:4], side, x)
        bumps = _signs(u[:, 5:], x)[..., None, None] * _turned(_bumps(side, x), u[:, 4, None, None, None])

        new = (old := x - problem.x0).clone()
        new[target] = new[source] = 0
        unused = (problem.epsilon**2 - self.geometry.norm(old) ** 2).clamp_min(0) / c
        freed = (old**2 - new**2).sum((2, 3), keepdim=True) + per_example(unused, x)
        new[target] = _unit(bumps + _unit(old[target])) * freed.sqrt()
        return self._onto_sphere(problem, new)

    def _onto_sphere(self, problem: Problem, delta: Tensor) -> Float[Tensor, "b c h w"]:
        """x0 + epsilon delta / |delta|_2, in the box."""
        return (problem.x0 + self.geometry.steepest(delta, problem.epsilon)).clamp(*self.geometry.bounds)


@dataclass(frozen=True)
class RandomSearch(Attack):
    """argmax of the loss over uniform points of the ball: what brute force finds (the checklist's fourth item).

    All points are scored on one model, the best `confirmed` ones of each example then on the fresh models of a whole
    iteration.
    """

    samples: Count = 100_000  #: random points per example; 100,000 as the checklist of Athalye et al. suggests
    confirmed: Count = 20  #: how many of the best are scored again on fresh models
    name = "random search"
    passes_per_iteration = 1.0

    @property
    def iterations(self) -> int:
        return self.samples

    def run(self, problem: Problem, restart: int) -> Images:
        x0, y, view = problem.x0, problem.y, problem.view
        best, best_loss = x0.new_empty(0, *x0.shape), x0.new_empty(0, len(x0))
        screen = view.held(restart, 1)
        for sample in range(self.samples):
            x = self.geometry.random(problem.uniform("sample", restart, sample), x0, problem.epsilon)
            best, best_loss = keep_best(best, best_loss, x, screen.loss(0, x, y, self.objective), self.confirmed)
            problem.tick()
        return highest(best, view.losses(RESCORE - 1 - restart, best.unbind(), y, self.objective))


def _signs(u: Float64[Tensor, "..."], like: Tensor) -> Float[Tensor, "..."]:
    """Return -1 or 1 for each uniform number."""
    return torch.where(u < 0.5, -1.0, 1.0).to(like.dtype)


def _window(u: Float64[Tensor, "b 2"], side: int, x: Float[Tensor, "b c h w"]) -> Window:
    """Return the index of a random square in each image: x[window] has shape b c side side."""
    b, c, h, w = x.shape
    corner = (u * torch.tensor([h - side + 1, w - side + 1], device=x.device)).long()
    place = corner[..., None] + torch.arange(side, device=x.device)
    example, channel = torch.arange(b, device=x.device), torch.arange(c, device=x.device)
    return example[:, None, None, None], channel[:, None, None], place[:, 0, None, :, None], place[:, 1, None, None, :]


def _bumps(side: int, like: Tensor) -> Float[Tensor, "side side"]:
    """Return a bump above its negative, of length 1 together: a pattern that convolutions do not average away."""
    return _unit(torch.cat([_bump(side // 2, side, like), -_bump(side - side // 2, side, like)]))


def _bump(h: int, w: int, like: Tensor) -> Float[Tensor, "h w"]:
    """sum_{r >= d} (r + 1)^-2, d = the distance of a pixel from the middle (max norm), scaled to length 1."""
    down, across = (torch.arange(n, device=like.device).sub(n // 2).abs() for n in (h, w))
    heights = torch.arange(1, max(h, w) // 2 + 2, device=like.device, dtype=like.dtype) ** -2
    return _unit(heights.flip(0).cumsum(0).flip(0)[torch.maximum(down[:, None], across)])


def _turned(pattern: Float[Tensor, "s s"], u: Float64[Tensor, "..."]) -> Float[Tensor, "... s s"]:
    """Return the pattern or its transpose, one for each uniform number."""
    return torch.where(u < 0.5, pattern, pattern.T)


def _unit(pattern: Float[Tensor, "... h w"]) -> Float[Tensor, "... h w"]:
    """pattern / |pattern|_2 of each plane; 0 where it is."""
    length = torch.linalg.vector_norm(pattern, dim=(-2, -1), keepdim=True)
    return pattern / torch.where(length > 0, length, 1.0)
