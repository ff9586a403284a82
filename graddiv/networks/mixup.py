"""Mixup inference (Pang et al. 2020): classify a mixture of x with images of other, or of the predicted, class.

In the paper: docs/equations.md.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.errors import GradDivError
from graddiv.networks.randomized import Noise, RandomizedNetwork, SampleModel, Theta, check_noise, check_rows
from graddiv.seeding import uniform

Partners = Literal["OL", "PL"]


class MixupNetwork(RandomizedNetwork):
    """f(x) = module(lam x + (1 - lam) x_s), x_s a training image of class c.

    With y^ = argmax module(x): OL (other label) draws c uniformly among the classes other than y^; PL (predicted
    label) has c = y^.  The noise is one partner for each class and a choice of class; y^ is piecewise constant, so the
    gradient is lam times that of the module at the mixture.  The pool is data, not state: it is not in the state_dict.
    """

    pool: Tensor

    def __init__(self, module: nn.Module, pool: Tensor, members: list[Tensor], lam: float, partners: Partners) -> None:
        super().__init__(module)
        self.lam = lam
        self.partners = partners
        self.members = members  # rows of the pool, class by class
        self.register_buffer("pool", pool, persistent=False)

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> dict[str, Tensor]:
        ids = torch.tensor([-1]) if batch is None else batch.cpu()  # -1: the address of no example
        *u, choice = uniform(seed, ids, len(self.members) + 1).unbind(1)
        partner = [rows[(u_c * len(rows)).long()] for rows, u_c in zip(self.members, u, strict=True)]
        return {
            "partner": torch.stack(partner, dim=1).to(self.device),
            "choice": (choice * (len(self.members) - 1)).long().to(self.device),
        }

    def realise(self, noise: Noise, theta: Theta) -> dict[str, Tensor]:
        return dict(theta.parameters)

    def bind(self, noise: Noise, theta: Theta | None = None) -> SampleModel:
        noise = check_noise(noise, {"partner": (None, len(self.members)), "choice": (None,)}, self.device)
        if (last := int(noise["partner"].max())) >= len(self.pool):
            raise GradDivError(f"noise names image {last} of a pool of {len(self.pool)}: it belongs to another network")
        f = super().bind(noise, theta)
        return Mixture(f, self.pool, noise["partner"], noise["choice"], self.lam, self.partners)


@dataclass(frozen=True, eq=False)
class Mixture:
    """f~(x) = f(lam x + (1 - lam) pool[partner of the chosen class])."""

    f: SampleModel
    """The deterministic network that sees the mixture."""
    pool: Tensor
    """The training images among which the partners are."""
    partner: Int64[Tensor, "r k"]
    """The row of the pool drawn for each class; r is 1, or the batch size where each example has noise of its own."""
    choice: Int64[Tensor, " r"]
    """Which class the partner is of: the choice-th of those other than the predicted one (OL only)."""
    lam: float
    """The weight of x in the mixture, in (0, 1]."""
    partners: Partners
    """Whether partners are of another class than the predicted one (OL), or of that class (PL)."""

    def __call__(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b k"]:
        check_rows(len(self.partner), len(x))
        with torch.no_grad():
            predicted = self.f(x).argmax(1)
        # the choice-th class once the predicted one is left out
        chosen = predicted if self.partners == "PL" else self.choice + (self.choice >= predicted).long()
        rows = self.partner.expand(len(x), -1).gather(1, chosen[:, None]).squeeze(1)
        return self.f(self.lam * x + (1 - self.lam) * self.pool[rows].to(x.dtype))


def mixup_inference(
    module: nn.Module,
    pool: tuple[Float[Tensor, "n ..."], Int64[Tensor, " n"]],
    *,
    lam: float = 0.6,
    partners: Partners = "OL",
) -> MixupNetwork:
    """Make a deterministic `module` stochastic at inference by mixing its input with images of `pool`.

        F = mixup_inference(module, pool=(training_images, training_labels))

    Returns a `RandomizedNetwork` whose noise chooses the images that x is mixed with.

    module: the network that classifies the mixture.
    pool: (images, labels) of the *training* set, in the pixel range of x; partners from the test set would mix an
        attacked image with itself.
    lam: the weight of x, in (0, 1]; 0.6 suits interpolated adversarial training, 0.5 plain mixup training.
    partners: "OL" for images of another class than the predicted one, "PL" for images of that class.
    """
    images, labels = pool
    if not 0 < lam <= 1:
        raise GradDivError(f"lam is {lam}, expected a number in (0, 1]: the weight of x in the mixture")
    if partners not in get_args(Partners):
        raise GradDivError(f"partners is {partners!r}, expected one of {get_args(Partners)}")
    if not images.is_floating_point():
        raise GradDivError(
            f"the pool's images are {images.dtype}, expected floats in the pixel range of x, as batch() gives"
        )
    if len(images) != len(labels) or len(labels) == 0 or labels.min() < 0:
        raise GradDivError(
            f"the pool has {len(images)} images and {len(labels)} labels, expected as many, some, and none below 0"
        )
    classes = int(labels.max()) + 1
    members = [(labels == c).nonzero().squeeze(1).cpu() for c in range(classes)]
    if classes < 2 or any(len(rows) == 0 for rows in members):
        counts = [len(rows) for rows in members]
        raise GradDivError(f"the pool holds {counts} images of the classes 0..{classes - 1}, expected some of each")
    return MixupNetwork(module, images, members, lam, partners)
