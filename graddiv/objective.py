"""The objective of training: L(X; theta) + lam R_GradDiv(X; theta), for any training loop.  See docs/equations.md."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graddiv.attacks import EOT, PGD
from graddiv.diversity import GradDiv
from graddiv.errors import GradDivError
from graddiv.geometry import LINF, Images, Labels, in_bytes, per_example, radius_of
from graddiv.losses import ce
from graddiv.networks import GaussianNetwork, RandomizedNetwork, Rules
from graddiv.networks.defense import Minibatch, neighbours
from graddiv.networks.weights import WithKL
from graddiv.registries import Count, NotNegative, Positive, Share, check_fields, checked
from graddiv.seeding import fold, uniform

Place = Literal["clean", "adversarial", "noisy"]
"""The x at which R is taken: the clean image, the attacked one, or a random point of the adversary's ball around it."""


@dataclass(frozen=True)
class Adversary:
    """The inner PGD of adversarial training: on fresh weights at each of its steps, from the original image.

        objective = Objective(F, examples=50_000, adversary=Adversary(epsilon=8 / 255, m=10))

    epsilon: the radius in the max norm, images lying in [0, 1].
    m: steps of PGD.
    alpha: its step size as a share of epsilon.
    random_start: whether it starts from a random point of the ball, not from the original image.
    clean_weight: the weight of the clean loss; the adversarial one has the rest.
    n: fresh sample models at each of its steps, whose mean gradient it follows.  One is what the paper takes; diverse
        gradients mislead such an adversary (docs/gotchas.md).
    """

    epsilon: NotNegative
    m: Count = 10
    alpha: Positive = 0.25
    random_start: bool = False
    clean_weight: Share = 0.0
    n: Count = 1

    def __post_init__(self) -> None:
        if not 0 <= radius_of(self.epsilon) <= 1:
            hint = in_bytes(self.epsilon)
            raise GradDivError(f"epsilon is {self.epsilon}, expected from 0 to 1, images lying in [0, 1]{hint}")
        check_fields(self)


class Objective(nn.Module):
    """L + lam R with L = (1 - w) CE(f(x_adv), y) + w CE(f(x), y) + alpha_kl / N KL(q || p) for Bayesian networks.

        F = bayesian(module, prior_sigma=0.05)
        objective = Objective(F, examples=50_000, adversary=Adversary(8 / 255), diversity=GradDiv("dpp"))
        loss = objective(x, y, step=0)  # the number of this step
        loss.backward()  # as in any loop
        print(objective.parts)  # for the log

    Called with a batch, returns the loss as a scalar tensor; `parts` then holds its summands by name.  f is drawn anew
    at each step, x_adv is found against other draws; w is 1 without an adversary.  All randomness is addressed by
    (seed, step) and, example by example, by data-set index: never by batch or rank.

    F: the randomized network, whose parameters are those of the objective too; in train mode.
    examples: N, the size of the training set, by which the KL is divided.
    adversary: an `Adversary`, whose images are trained on; None trains on clean ones.
    diversity: a `GradDiv`, or None.
    at: where gradients are compared: at the "clean" images, at the "adversarial" ones, or at "noisy" ones, which are
        random points of the adversary's ball.
    alpha_kl: the weight of the KL of Bayesian networks; 0.02 in the paper.
    seed: addresses all randomness, together with the step.
    rules: the loss and the penalties of a defense, instead of cross-entropy and `alpha_kl`.
    steps: the number of training steps, for rules that change during training.
    """

    @checked
    def __init__(
        self,
        F: RandomizedNetwork,
        *,
        examples: Count,
        adversary: Adversary | None = None,
        diversity: GradDiv | None = None,
        at: Place = "clean",
        alpha_kl: float = 0.02,
        seed: int = 0,
        rules: Rules | None = None,
        steps: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(F, RandomizedNetwork):
            raise GradDivError(
                f"F is a {type(F).__name__}, expected a RandomizedNetwork: make one with bayesian(module, 0.05), "
                "or with randomize(module) if the module draws by itself"
            )
        if at != "clean" and adversary is None:
            raise GradDivError(f"at is {at!r}, which needs an adversary: adversary=Adversary(epsilon)")
        self.F, self.examples, self.seed, self.steps = F, examples, seed, steps
        self.adversary, self.diversity, self.at = adversary, diversity, at
        self.rules = rules or (WithKL(alpha_kl) if isinstance(F, GaussianNetwork) else Rules())
        self.trained = self.rules.trained(F)
        self.parts: dict[str, Tensor] = {}  #: the terms of the last loss by name, for the log

    def forward(self, x: Images, y: Labels, *, step: int, ids: Labels | None = None) -> Float[Tensor, ""]:
        """Return the mean over the batch at `step`; batch norm uses the batch in L alone.

        x, y: images in [0, 1] and their labels.
        step: the number of the training step; it addresses the noise, so a resumed run draws the same again.
        ids: the data-set indices of the batch, which address the noise of each example where a network has such; with
            them the loss of an example does not depend on its place in the batch.
        """
        ids = torch.arange(len(x), device=x.device) if ids is None else ids.to(x.device)
        x_adv = x if self.adversary is None else self.attacked(self.adversary, x, y, ids, step)
        self.parts = {}
        total = self.task_loss(x, x_adv, y, ids, step)
        added = {**self.rules.penalties(self.F, self.examples)}
        if self.diversity is not None:
            place = self.noisy(x, ids, step) if self.at == "noisy" else x_adv if self.at == "adversarial" else x
            added["graddiv"] = self.diversity(self.F, place, y, step=step, ids=ids)
        for part in added.values():
            total = total + part
        self.parts = {"loss": total, **self.parts, **added}
        self.parts = {name: part.detach() for name, part in self.parts.items()}
        return total

    def task_loss(self, x: Tensor, x_adv: Tensor, y: Tensor, ids: Tensor, step: int) -> Float[Tensor, ""]:
        """(1 - w) CE(f(x_adv), y) + w CE(f(x), y), both halves in one pass, so that batch norm sees them together."""
        w = self.adversary.clean_weight if self.adversary is not None else 1.0
        halves = [half for half in (("adversarial", x_adv, 1 - w), ("clean", x, w)) if half[2] > 0]
        inputs, labels = torch.cat([part for _, part, _ in halves]), y.repeat(len(halves))
        seed, everyone = fold(self.seed, "loss", step), ids.repeat(len(halves))
        if self.rules.interpolated:  # x~ = a x + (1 - a) x[partner], a ~ U(0, 1) = Beta(1, 1), in each half apart
            b = len(ids)
            partner = torch.cat([neighbours(b, x.device) + start for start in range(0, len(inputs), b)])
            a = uniform(fold(self.seed, "interpolation", step), ids, len(halves)).T.flatten().to(x.dtype)
            share = per_example(a, inputs)
            z = self.trained.bind(self.trained.draw(seed, everyone))(share * inputs + (1 - share) * inputs[partner])
            losses = a * ce(z, labels) + (1 - a) * ce(z, labels[partner])
        else:
            progress = step / self.steps if self.steps else 0.0
            losses = self.rules.losses(self.trained, Minibatch(inputs, labels, everyone, seed, progress))
        total = x.new_zeros(())
        for (name, _, weight), part in zip(halves, losses.reshape(-1, len(x)), strict=True):
            self.parts[name] = part.mean()
            total = total + weight * self.parts[name]
        return total

    def noisy(self, x: Images, ids: Labels, step: int) -> Images:
        """x + u clipped to [0, 1], u uniform in the ball of the adversary."""
        assert self.adversary is not None
        u = uniform(fold(self.seed, "noisy", step), ids, x[0].numel())
        return LINF.random(u, x, x.new_full((len(x),), self.adversary.epsilon))

    def attacked(self, adversary: Adversary, x: Tensor, y: Tensor, ids: Tensor, step: int) -> Images:
        """x_adv by PGD on fresh sample models at each of its steps, seen with batch norm's running statistics."""
        seed = fold(self.seed, "start", step)
        pgd = PGD(m=adversary.m, alpha=adversary.alpha, random_start=adversary.random_start, seed=seed)
        view = EOT(self.trained, adversary.n, seed=fold(self.seed, "adversary", step))
        return pgd(view, x, y, adversary.epsilon, ids=ids)
