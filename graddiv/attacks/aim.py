"""Targets: an attack towards a class is the same attack on models that say how far behind that class is."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from graddiv.attacks.view import View
from graddiv.diversity.gradients import OBJECTIVES
from graddiv.errors import GradDivError
from graddiv.geometry import Images, Labels
from graddiv.losses import margin, targeted_dlr
from graddiv.networks import SampleModel
from graddiv.networks.inputs import numbers

ScoreOf = Callable[[Float[Tensor, "b c"]], Float[Tensor, " b"]]  #: how far the target is behind; below 0: reached
ON_TWO_CLASSES = {"ce": "likelihood", "ensemble": "ensemble"}
"""What raises each objective's targeted form: E log p(target), log E p(target); of all others -E s, the mean margin."""


class Aimed(View):
    """Models of a view that answer with two logits, (s, 0): label 0 is what the attack must leave for the target.

    s is the score of the attack's objective at the target.  Whatever attacks these models, attacks towards the target.
    """

    def __init__(self, view: View, score: ScoreOf) -> None:
        super().__init__()
        self.view, self.score = view, score
        self.n, self.fresh, self.probabilities = view.n, view.fresh, view.probabilities
        self.cost, self.context = view.cost, view.context  # type: ignore[method-assign]

    def __call__(self, k: int) -> Iterator[SampleModel]:
        return map(self._aimed, self.view(k))

    def _aimed(self, f: SampleModel) -> SampleModel:
        def two_logits(x: Images) -> Float[Tensor, "b 2"]:
            s = self.score(f(x))
            return torch.stack([s, torch.zeros_like(s)], 1)

        return two_logits


def at_class(view: View, y: Labels, target: int | Labels, objective: str) -> Aimed:
    """Aim at images that are taken for the class `target`: s = the objective's score with the target as the label.

    Of the DLR loss the targeted form, which also has a gradient where the target is the third of the classes.
    """
    wanted = torch.full_like(y, target) if isinstance(target, int) else numbers("target", target).to(y.device)
    if wanted.dtype != torch.int64 or wanted.shape != y.shape:
        shape = f"shape {tuple(wanted.shape)} and type {wanted.dtype}"
        raise GradDivError(f"target has {shape}, expected a class, or one int64 class for each of {len(y)} examples")
    if own := int((wanted == y).sum()):
        raise GradDivError(f"target is the label of {own} of {len(y)} examples, expected another class")

    def dlr_at(z: Tensor) -> Tensor:
        margin(z, wanted)  # raises an error for a target that is no class
        return -targeted_dlr(z, z.scatter(1, wanted[:, None], -torch.inf).argmax(1), wanted)

    return Aimed(view, dlr_at if objective == "dlr" else lambda z: OBJECTIVES[objective].s(z, wanted))


def at_likeliest(view: View, x0: Images, y: Labels, objective: str, count: int) -> list[Aimed]:
    """Aim at each of the `count` likeliest other classes: s = z_y - z_t, or the targeted DLR loss.

    The target need not beat all classes, only the label: any error will do.
    """
    z = view.logits(0, x0)
    margin(z, y)  # raises an error for labels that are no class
    ranks = z.scatter(1, y[:, None], -torch.inf).topk(min(count, z.shape[1] - 1), dim=1).indices

    def ahead_of(t: Labels) -> ScoreOf:
        if objective == "dlr":
            return lambda z: -targeted_dlr(z, y, t)
        return lambda z: (z.gather(1, y[:, None]) - z.gather(1, t[:, None])).squeeze(1)

    return [Aimed(view, ahead_of(t)) for t in ranks.unbind(1)]
