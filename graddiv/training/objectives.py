"""What is minimised: L(X; theta) + lam R_GradDiv(X; theta), as one module, so that DDP can wrap all of it.

In the paper: docs/equations.md.
"""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graddiv.attacks import EOT, PGD
from graddiv.directions import GradDiv
from graddiv.experiment import AdversarySection, Experiment, Minibatch
from graddiv.geometry import per_example
from graddiv.losses import ce
from graddiv.networks import RandomizedNetwork
from graddiv.networks.randomized import neighbours
from graddiv.seeding import fold, uniform
from graddiv.training.stages import Stage, stages_of


class Objective(nn.Module):
    """L + lam R with L = (1 - w) CE(f(x_adv), y) + w CE(f(x), y) + the penalties of the defense.

    The penalty of Adv-BNN is alpha_kl / N KL(q || p).  f is drawn anew at each step, x_adv is found against other
    draws; w is 1 without an adversary.  A defense may bring a loss of its own in the place of CE (`losses`), and train
    a network without the noise that it has later (`trained`): mixup inference does, on interpolated examples, and is
    random only in R.
    All randomness is addressed by (seed, step) and, example by example, by data-set index: never by batch or rank.
    """

    def __init__(self, F: RandomizedNetwork, experiment: Experiment, examples: int, stage: Stage | None = None) -> None:
        super().__init__()
        stage = stage or stages_of(experiment, examples)[0]
        self.F, self.seed, self.examples = F, experiment.seed, examples
        self.defense = experiment.defense
        self.trained = self.defense.trained(F)
        self.steps = stages_of(experiment, examples)[-1].last_step
        self.adversary = experiment.adversary
        self.diversity: GradDiv | None = None
        if (g := stage.settings.graddiv) is not None:
            self.at = g.at
            warmup, rampup = stage.ramp(g)
            self.diversity = GradDiv(
                g.regularizer, g.lam, g.n, warmup=warmup, rampup=rampup,
                low_memory=g.low_memory, seed=fold(self.seed, "R"),
            )  # fmt: skip
        self.parts: dict[str, Tensor] = {}
        """The terms of the last loss by name, for the log."""

    def forward(
        self, x: Float[Tensor, "b ..."], y: Int64[Tensor, " b"], ids: Int64[Tensor, " b"], step: int
    ) -> Float[Tensor, ""]:
        """The mean over the batch at `step`; the network is in train mode, batch norm uses the batch in L alone."""
        x_adv = x if self.adversary is None else self.attacked(self.adversary, x, y, ids, step)
        self.parts = {}
        total = self.task_loss(x, x_adv, y, ids, step)
        for name, penalty in self.defense.penalties(self.F, self.examples).items():
            self.parts[name] = penalty
            total = total + penalty
        if self.diversity is not None:
            at = x_adv if self.at == "adversarial" else x
            regularization = self.diversity(self.F, at, y, step=step, ids=ids)
            self.parts["graddiv"] = regularization
            total = total + regularization
        self.parts = {"loss": total.detach(), **{name: part.detach() for name, part in self.parts.items()}}
        return total

    def task_loss(self, x: Tensor, x_adv: Tensor, y: Tensor, ids: Tensor, step: int) -> Float[Tensor, ""]:
        """(1 - w) CE(f(x_adv), y) + w CE(f(x), y), both halves in one pass, so that batch norm sees them together."""
        w = self.adversary.clean_weight if self.adversary is not None else 1.0
        halves = [half for half in (("adversarial", x_adv, 1 - w), ("clean", x, w)) if half[2] > 0]
        inputs, labels = torch.cat([part for _, part, _ in halves]), y.repeat(len(halves))
        seed, everyone = fold(self.seed, "loss", step), ids.repeat(len(halves))
        if self.defense.interpolated:
            inputs, partner, a = self.interpolation(inputs, ids, step)
            z = self.trained.bind(self.trained.draw(seed, everyone))(inputs)
            losses = a * ce(z, labels) + (1 - a) * ce(z, labels[partner])
        else:
            losses = self.defense.losses(self.trained, Minibatch(inputs, labels, everyone, seed, step / self.steps))
        total = x.new_zeros(())
        for (name, _, weight), part in zip(halves, losses.reshape(-1, len(x)), strict=True):
            self.parts[name] = part.mean()
            total = total + weight * self.parts[name]
        return total

    def attacked(
        self, adversary: AdversarySection, x: Tensor, y: Tensor, ids: Tensor, step: int
    ) -> Float[Tensor, "b ..."]:
        """x_adv by PGD on fresh sample models at each of its steps, seen with batch norm's running statistics."""
        pgd = PGD(
            m=adversary.m,
            alpha=adversary.alpha,
            random_start=adversary.random_start,
            seed=fold(self.seed, "start", step),
        )
        return pgd(EOT(self.trained, 1, seed=fold(self.seed, "adversary", step)), x, y, adversary.epsilon, ids=ids)

    def interpolation(
        self, x: Tensor, ids: Int64[Tensor, " b"], step: int
    ) -> tuple[Tensor, Int64[Tensor, " k"], Float[Tensor, " k"]]:
        """x~ = a x + (1 - a) x[partner] with a ~ U(0, 1) = Beta(1, 1), in each half of the inputs apart."""
        b = len(ids)
        partner = torch.cat([neighbours(b, x.device) + start for start in range(0, len(x), b)])
        a = uniform(fold(self.seed, "interpolation", step), ids, len(x) // b).T.flatten().to(x.dtype)
        share = per_example(a, x)
        return share * x + (1 - share) * x[partner], partner, a


def first_nonfinite(parts: dict[str, float]) -> str | None:
    """The first term that is not finite; the sum itself is looked at last."""
    names = [*(name for name in parts if name != "loss"), "loss"]
    return next((name for name in names if not math.isfinite(parts[name])), None)
