"""The kinds of records: what each stores, and the line that sums it up."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from graddiv.records.intervals import html_table, median, summary
from graddiv.records.record import Record


class JudgedRecord(Record):
    """Perturbed images, judged on two ensembles of models that had no part in making them."""

    epsilon: float
    repeat: int  #: Repeats have independent draws in attack, choice and judgement.
    distance: Float[np.ndarray, " b"]  #: From the original image, in the norm of the attack.
    correct: Bool[np.ndarray, " b"]  #: Whether the ensemble is right on the perturbed image.
    margin: Float[np.ndarray, " b"]  #: Log-odds of the ensemble against the label: negative where it is right.
    right: Bool[np.ndarray, "b models"]  #: Whether each model of the ensemble is right by itself.
    correct_again: Bool[np.ndarray, " b"]  #: The same judged by a second ensemble, which has no part in any choice.
    margin_again: Float[np.ndarray, " b"]

    @property
    def verdicts(self) -> list[Bool[np.ndarray, " b"]]:
        """Whether either ensemble is right on the image."""
        return [self.correct, self.correct_again]


class AttackRecord(JudgedRecord, kind="attack"):
    """An attack through a view at one epsilon."""

    label: str  #: The row of the table, such as EOT-PGD; "clean" for images as they are.
    attack: Mapping[str, Any] | None  #: The settings of the attack; None for clean images.
    source: str | None = None  #: The network that was attacked instead of the one that is judged.
    mode: str  #: How the adversary sees the network: fixed, eot1 or eot.
    n: int  #: Sample models at each iteration.
    m: int  #: Iterations.
    restarts: int
    images: Float[np.ndarray, "shown ..."]  #: Adversarial images of the first examples.
    cost_forwards: Int[np.ndarray, " b"]  #: Forward passes that the attack spent on the example.
    cost_backwards: Int[np.ndarray, " b"]
    cost_draws: Int[np.ndarray, " b"]

    @property
    def accuracy(self) -> float:
        """Share of examples the ensemble still gets right."""
        return float(self.correct.mean())

    @property
    def accuracy_per_draw(self) -> float:
        """Share of (example, sample model) pairs that are right."""
        return float(self.right.mean())

    @property
    def is_clean(self) -> bool:
        return self.attack is None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that tell attacks of one name apart; repeats differ only in seeds."""
        own = {key: value for key, value in (self.attack or {}).items() if key != "seed"}
        return {"epsilon": self.epsilon, "n": self.n, **own}

    @property
    def lines(self) -> list[tuple[str, str]]:
        """What it says: the attack, the radius, the accuracy with its interval, that of one draw, the cost."""
        found, attack = summary(self.verdicts), self.attack
        low, high = (f"{100 * end:.1f}" for end in found.interval)
        forwards, backwards = (f"{cost.mean():.0f}" for cost in (self.cost_forwards, self.cost_backwards))
        return [
            ("attack", f"{self.label} on {self.target}, {self.examples} images"),
            ("radius", f"{self.epsilon:.4g}, {attack.get('norm', 'Linf')}" if attack else "none"),
            ("accuracy", f"{100 * found.mean:.1f} % (95 % interval: {low} to {high}), ensemble of {self.n_ensemble}"),
            ("per draw", f"{100 * self.accuracy_per_draw:.1f} %"),
            ("cost", f"{forwards} forward and {backwards} backward passes an image"),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:<10}{text}" for name, text in self.lines)

    def _repr_html_(self) -> str:
        return html_table(self.lines)

    @property
    def draws(self) -> tuple[int, int, str]:
        """The values that tell repeats of one attack apart."""
        return self.repeat, self.seed, self.parameters


class TotalRecord(JudgedRecord, kind="total"):
    """The worst of several attacks on each image, chosen on models that do not judge it, in one repeat.

    An image that is fooled beyond doubt leaves, and the attacks after that one spend nothing on it.
    """

    attacks: list[Mapping[str, Any]]  #: Label and settings of each attack in their order; the first is "clean".
    level: float  #: An image leaves when a fresh ensemble is right about it with a probability below this.

    chosen: Int[np.ndarray, " b"]  #: The attack whose image was the worst on the models that choose, and is judged.
    ended: Bool[np.ndarray, " b"]  #: Whether the image left after that attack, since it was fooled beyond doubt.
    cost_forwards: Int[np.ndarray, "b attacks"]  #: Forward passes of each attack on the image.
    cost_backwards: Int[np.ndarray, "b attacks"]
    cost_draws: Int[np.ndarray, "b attacks"]
    cost_choice: Int[np.ndarray, "b attacks"]  #: Forward passes of the models that chose.

    @property
    def labels_of_attacks(self) -> list[str]:
        """The names of the attacks in their order, beginning with "clean"."""
        return [attack["label"] for attack in self.attacks]

    @property
    def seen(self) -> Bool[np.ndarray, "b attacks"]:
        """Whether the image was still there when each attack ran."""
        return self.cost_choice > 0

    @property
    def passes(self) -> Int[np.ndarray, "b attacks"]:
        """Forward and backward passes that each attack spent on the image, and the choice after it."""
        return np.asarray(self.cost_forwards + self.cost_backwards + self.cost_choice)

    @property
    def share_of_passes(self) -> float:
        """Passes spent, as a share of the estimated cost of all attacks on all images; NaN if an attack never ran."""
        if not (counts := self.seen.sum(0)).all():
            return float("nan")
        return float(self.passes.sum() / (self.passes.sum(0) / counts * self.examples).sum())


class MeasurementRecord(Record):
    """Something measured on every example, other than an attack's success."""

    @classmethod
    def file_name(cls, settings: Mapping[str, Any]) -> str:
        """The name of its file: transfer-eps0.4.record."""
        given = [k for k in cls.named_by if k in settings]
        parts = [f"eps{settings[k]:.6g}" if k == "epsilon" else str(settings[k]).lower() for k in given]
        return "-".join([cls.kind, *parts]) + ".record"

    @property
    def summary(self) -> str:
        """The result in one line."""
        return f"{self.kind} of the first {self.examples} examples"


class ConcentrationRecord(MeasurementRecord, kind="concentration"):
    """How much n gradients point the same way; NaN where not all of them have a direction."""

    n: int  #: Gradients at each example.
    p: int  #: Their dimension.
    rho: Float[np.ndarray, " b"]  #: |1/n sum_i v_i|_2 of the unit gradients v_i: biased upward by about 1/sqrt(n).
    rho_1: Float[np.ndarray, " b"]  #: The same in the l_1 norm.
    rho_debiased: Float[np.ndarray, " b"]  #: sqrt(max(0, mean cosine)): does not depend on n.
    mean_cosine: Float[np.ndarray, " b"]
    kappa: Float[np.ndarray, " b"]  #: The paper's estimate of the concentration parameter.
    kappa_mle: Float[np.ndarray, " b"]  #: Its exact maximum-likelihood estimate.
    norm_ratio: Float[np.ndarray, " b"]  #: |E g| / E |g|.
    usable: Bool[np.ndarray, " b"]  #: Whether all n gradients have a direction.

    @property
    def summary(self) -> str:
        numbers = f"kappa {median(self.kappa)}, rho {median(self.rho)} (debiased {median(self.rho_debiased)})"
        return f"concentration of {self.n} gradients, medians: {numbers}, |E g|/E|g| {median(self.norm_ratio)}"


class GradientNoiseRecord(MeasurementRecord, kind="gradient-noise", named_by=("norm", "epsilon")):
    """How noisy the margin's gradients are, at x0 and where a short attack leads: how many draws an adversary needs."""

    n: int  #: Gradients in each of two independent means.
    norm: str = "Linf"  #: Norm of the short attack.
    epsilon: float
    rho: Float[np.ndarray, "b 2"]  #: Debiased mean resultant length, at x0 and at the attacked point; likewise below.
    mean_length: Float[np.ndarray, "b 2"]  #: |mu|, the length of the mean gradient.
    trace: Float[np.ndarray, "b 2"]  #: tr Cov of the gradients.
    q: Float[np.ndarray, "b 2"]  #: |mu|^2 / tr Cov.
    predicted: Float[np.ndarray, "b 2"]  #: 1 / (1 + 1 / (n q)): the cosine of two means that q predicts.
    measured: Float[np.ndarray, "b 2"]  #: The cosine that they have.

    @property
    def summary(self) -> str:
        parts = [
            f"{place}: rho {median(self.rho[:, i])}, q {median(self.q[:, i])}, cosine of two means of {self.n} "
            f"{median(self.measured[:, i])} (predicted {median(self.predicted[:, i])})"
            for i, place in enumerate(("at x0", "at the attacked x"))
        ]
        return "noise of gradients, medians, " + "; ".join(parts)


class NearbyRecord(MeasurementRecord, kind="nearby", named_by=("epsilon",)):
    """How concentrated the soft margin's gradients are at growing distances from each example."""

    n: int  #: Gradients at each point.
    epsilon: float  #: The greatest distance.
    distances: list[float]  #: l_inf distances, the first of them 0.
    mean_cosine: Float[np.ndarray, "b distances"]  #: Mean over pairs of gradients; NaN where one has no direction.
    length: Float[np.ndarray, "b distances"]  #: Mean length of a gradient.

    @property
    def rho(self) -> Float[np.ndarray, "b distances"]:
        """sqrt(max(0, mean cosine)), the debiased mean resultant length."""
        return np.asarray(np.sqrt(np.maximum(self.mean_cosine, 0.0)))

    @property
    def summary(self) -> str:
        found = zip(self.rho.T, self.length.T, self.distances, strict=True)
        places = [f"{median(rho)} (length {median(length)}) at {far:.3g}" for rho, length, far in found]
        return f"rho of {self.n} gradients at distances from x, medians: {', '.join(places)}"


class GradientsRecord(MeasurementRecord, kind="gradients"):
    """The unit gradients themselves, at the first examples."""

    n: int
    p: int
    gradients: Float[np.ndarray, "b n p"]
    cosines: Float[np.ndarray, "b n n"]
    images: Float[np.ndarray, "b ..."]


class LossIncreaseRecord(MeasurementRecord, kind="loss-increase", named_by=("epsilon",)):
    """What EOT-PGD adds to the loss, beside Theorem 1's bound on the first-order part."""

    epsilon: float
    n: int
    m: int
    alpha: float
    fresh: int  #: Sample models, unseen by the attack, on which the increase is measured.
    gradients: int  #: Gradients from which the bound is estimated.
    increase: Float[np.ndarray, " b"]
    first_order: Float[np.ndarray, " b"]  #: epsilon |E g|_1.
    theorem: Float[np.ndarray, " b"]  #: epsilon M_X rho_1: the bound on it.
    tightness: Float[np.ndarray, " b"]
    holds: Bool[np.ndarray, " b"]
    excess: Float[np.ndarray, " b"]

    @property
    def summary(self) -> str:
        bound = f"bound {median(self.theorem)}, holds for {100 * self.holds.mean():.1f} %"
        return f"loss increase at epsilon {self.epsilon:.4g}, medians: {median(self.increase)}; Theorem 1's {bound}"


class RotationRecord(MeasurementRecord, kind="rotation", named_by=("norm", "epsilon")):
    """What PGD still achieves when each gradient is turned by an angle."""

    norm: str
    epsilon: float
    m: int
    alpha: float
    angles: list[float]
    increase: Float[np.ndarray, "b angles"]
    right: Bool[np.ndarray, "b angles"]
    loss: Float[np.ndarray, " b"]
    right_clean: Bool[np.ndarray, " b"]

    @property
    def summary(self) -> str:
        gains = ", ".join(f"{gain:.3g}" for gain in self.increase.mean(0))
        turned = f"{self.angles[0]:.0f} to {self.angles[-1]:.0f} degrees"
        return f"loss increase, {self.norm}, gradients turned by {turned}: {gains}"


class TransferSummary(NamedTuple):
    """The success of attacks on one sample model against others."""

    matrix: Float[np.ndarray, "k k"]  #: Accuracy of the target (column) on the adversarial images of the source (row).
    mean: float
    low: float
    high: float  #: Mean, least and greatest accuracy off the diagonal: where the target is not the source.
    own: float  #: Mean of the diagonal: each sample model's accuracy under an attack on itself.


class TransferRecord(MeasurementRecord, kind="transfer", named_by=("epsilon",)):
    """Whether sample model j is right on the image that PGD made to fool sample model i."""

    k: int  #: Sample models asked for, each of them source and target; a small ensemble has fewer, and `right` with it.
    epsilon: float
    m: int
    alpha: float
    right: Bool[np.ndarray, "b models models"]

    @property
    def accuracies(self) -> TransferSummary:
        """The matrix of accuracies, and what it says off the diagonal."""
        matrix = self.right.mean(0)
        others = matrix[~np.eye(len(matrix), dtype=bool)]
        own = float(matrix.diagonal().mean())
        return TransferSummary(matrix, float(others.mean()), float(others.min()), float(others.max()), own)

    @property
    def summary(self) -> str:
        found = self.accuracies
        others = f"{100 * found.mean:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f})"
        return f"accuracy on images made for another sample model: {others}; on its own: {100 * found.own:.1f} %"


class BoundaryRecord(MeasurementRecord, kind="boundary", named_by=("epsilon",)):
    """The classes that sample models, and last the ensemble, name on a plane around each of the first examples."""

    epsilon: float
    n: int
    m: int
    models: int
    coordinates: list[float]  #: Coordinates of the grid along both axes, in lengths of the first perturbation.
    regions: UInt8[np.ndarray, "b answers grid grid"]
    axes: Float[np.ndarray, "b plane ..."]  #: The two perturbations that span the plane.
    images: Float[np.ndarray, "b ..."]


class EnsembleSizeRecord(MeasurementRecord, kind="ensemble-size"):
    """Whether the ensemble of the first 1, 2, .. n sample models is right on the clean image."""

    n: int
    right: Bool[np.ndarray, "b n"]

    @property
    def summary(self) -> str:
        accuracy = 100 * self.right.mean(0)
        sizes = sorted({1, *(size for size in (2, 5, 10, 20, 50) if size < len(accuracy)), len(accuracy)})
        return "accuracy of so many models: " + ", ".join(f"{accuracy[k - 1]:.1f} % of {k}" for k in sizes)


class AttackedEnsembleRecord(EnsembleSizeRecord, kind="ensemble-size-attacked", named_by=("epsilon",)):
    """The same on images that EOT-PGD made of other models."""

    epsilon: float
    m: int
    models: int  #: Models at each step of the attack.


class CertificateRecord(MeasurementRecord, kind="certificate"):
    """The winner of the vote, and the l_2 radius within which it is proved to win, at level 1 - alpha each."""

    draws: int  #: Sample models that bound the share of the winner.
    choosing: int  #: Others that choose it.
    alpha: float
    sigma: float  #: Standard deviation of the noise that certifies; 0 where the network has none, and all radii are 0.
    label: Int[np.ndarray, " b"]  #: The winner; -1 where the vote abstains.
    share: Float[np.ndarray, " b"]  #: A lower bound on the share of its votes.
    radius: Float[np.ndarray, " b"]
    correct: Bool[np.ndarray, " b"]  #: Whether the winner is the true class; False where the vote abstains.

    def accuracy(self, radius: float = 0.0) -> float:
        """The share of examples that are right and certified to stay so within an l_2 radius."""
        return float((self.correct & (self.radius >= radius)).mean())

    @property
    def summary(self) -> str:
        radii = (0.25, 0.5, 1.0) if self.sigma else ()
        right = f"vote of {self.draws} models: {100 * self.accuracy():.1f} % right"
        certified = "".join(f", {100 * self.accuracy(r):.1f} % proved at l2 radius {r:g}" for r in radii)
        abstained = 100 * float((self.label < 0).mean())
        return f"{right}, {abstained:.1f} % abstained{certified}"


class JudgementRecord(MeasurementRecord, kind="judgement", named_by=("of",)):
    """Whether many sample models, and ensembles of them, are right on images that were made without them."""

    of: str  #: Which images: clean or attacked.
    images: str  #: sha256 of these images.
    outcomes: int  #: How many values the noise has, where there are finitely many; else 0.
    right: Bool[np.ndarray, "b draws"]  #: Whether each sample model is right.
    correct: Bool[np.ndarray, "b ensembles"]  #: Whether each ensemble of n_ensemble of them is.
    share: Float[np.ndarray, " b"]  #: Probability that a draw is right: exact for finitely many, else the mean.

    @property
    def summary(self) -> str:
        per_draw, ensemble = 100 * self.share.mean(), 100 * self.correct.mean()
        return f"{self.of} images: {per_draw:.1f} % per draw, {ensemble:.1f} % of ensembles of {self.n_ensemble}"


class TrajectoryRecord(MeasurementRecord, kind="trajectory", named_by=("epsilon",)):
    """EOT-PGD step by step: the loss on draws that are the same at every step, and when it fools them."""

    norm: str
    epsilon: float
    n: int
    m: int
    alpha: float
    loss: Float[np.ndarray, "b steps"]  #: Before the first step and after each, on the common draws.
    fooled: Bool[np.ndarray, "b steps"]  #: Whether the ensemble of the common draws is wrong.
    fooled_seen: Bool[np.ndarray, " b"]  #: Whether the ensemble of the last step's draws is wrong at the end.
    fooled_fresh: Bool[np.ndarray, " b"]  #: Whether an ensemble of fresh draws is wrong at the end.

    @property
    def summary(self) -> str:
        return f"EOT-PGD in {self.m} steps: {100 * self.fooled_fresh.mean():.1f} % fooled"
