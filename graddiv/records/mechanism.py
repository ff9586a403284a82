"""Records that ask what a gradient is worth, and where robustness beyond the radius of training comes from."""

import numpy as np
from jaxtyping import Bool, Float

from graddiv.records.intervals import median
from graddiv.records.kinds import MeasurementRecord


class ContrastRecord(MeasurementRecord, kind="contrast"):
    """What n sample models say of images whose contrast is lost: d + (1 - 2d) x, without any attack."""

    n: int  #: Sample models that answer together.
    distances: list[float]  #: Values of d, the l_inf distance of a black or white pixel; the first is 0.
    margin: Float[np.ndarray, "b distances"]  #: Mean soft margin of the models: negative where they are right.
    right: Bool[np.ndarray, "b distances"]  #: Whether the mean of their softmax is right.

    @property
    def summary(self) -> str:
        shares = zip(self.distances, 100 * self.right.mean(0), strict=True)
        return "accuracy without contrast: " + ", ".join(f"{share:.1f} % at {d:g}" for d, share in shares)


SPARE = 0.05  #: A filter whose removal costs at most this share of accuracy is not what the network works with.


class FiltersRecord(MeasurementRecord, kind="filters", named_by=("epsilon",)):
    """What each filter of the first layer is for: gradients and accuracy under EOT-PGD of the network without it."""

    n: int  #: Gradients at each image, and models at each step of the attack.
    m: int  #: Steps of the attack.
    epsilon: float
    mean_cosine: Float[np.ndarray, "b networks"]  #: At the clean image: of the whole network, then without each filter.
    right: Bool[np.ndarray, "b networks"]  #: Whether the ensemble is right on the image attacked; in the same order.

    @property
    def rho(self) -> Float[np.ndarray, " networks"]:
        """sqrt(max(0, mean cosine)) over all images."""
        return np.asarray(np.sqrt(np.maximum(np.nanmean(self.mean_cosine, 0), 0)))

    @property
    def spare(self) -> int:
        """The filter without which gradients agree most, of those that accuracy under attack does not need."""
        accuracy = self.right.mean(0)
        spare = accuracy[1:] >= min(accuracy[0] - SPARE, accuracy[1:].max())
        return int(np.where(spare, self.rho[1:], -1).argmax())

    @property
    def summary(self) -> str:
        rho, accuracy, k = self.rho, 100 * self.right.mean(0), self.spare
        whole = f"rho {rho[0]:.2f}, {accuracy[0]:.1f} % right under EOT-PGD"
        return f"{whole}; without filter {k} of the first layer rho {rho[k + 1]:.2f}, {accuracy[k + 1]:.1f} % right"


class PathRecord(MeasurementRecord, kind="path", named_by=("epsilon",)):
    """How concentrated and how long the soft margin's gradients are at steps of EOT-PGD, and the margin there."""

    n: int  #: Gradients at each point, and models at each step of the attack.
    epsilon: float
    steps: list[int]  #: Steps of the attack, the first of them 0: the clean image.
    mean_cosine: Float[np.ndarray, "b steps"]  #: Mean over pairs of gradients; NaN where one has no direction.
    length: Float[np.ndarray, "b steps"]  #: Mean length of a gradient.
    margin: Float[np.ndarray, "b steps"]  #: Mean soft margin: negative where models are right.

    @property
    def summary(self) -> str:
        rho = np.sqrt(np.maximum(self.mean_cosine, 0.0))
        places = ", ".join(f"{median(rho[:, i])} after {step}" for i, step in enumerate(self.steps))
        return f"rho of {self.n} gradients after steps of EOT-PGD, medians: {places}"


class ExplainedRecord(MeasurementRecord, kind="explained", named_by=("of", "epsilon")):
    """How much of the change of the margin a gradient predicts, up to the radius of the attack."""

    of: str  #: Whose gradients: the network's own, or those of a surrogate.
    images: str  #: sha256 of the ends of the paths along attacks.
    norm: str
    epsilon: float
    shifts: int  #: Shifts of the image over which both changes are averaged; 1 where the image stays.
    along: Float[np.ndarray, " b"]  #: The share on the way to attacked images; NaN where nothing changes.
    across: Float[np.ndarray, " b"]  #: In random directions, fine and coarse.

    @property
    def summary(self) -> str:
        shares = (
            f"{np.nanmean(share):.2f} {where}" for share, where in ((self.along, "along"), (self.across, "across"))
        )
        return f"share of the margin's change that the gradient of the {self.of} explains: {', '.join(shares)}"
