"""The registry of measurements: by name the job that computes each, and the record that it becomes.

What a record stores, the name of its file and the line that sums it up are declared with its class in graddiv.records.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from graddiv.errors import unknown
from graddiv.evaluation.batches import Job
from graddiv.evaluation.boundary import boundary_job
from graddiv.evaluation.certificate import certificate_job
from graddiv.evaluation.concentration import (
    concentration_job,
    gradients_job,
    l2_radius,
    loss_increase_job,
    rotation_job,
)
from graddiv.evaluation.ensemble import ensemble_size_job
from graddiv.evaluation.nearby import nearby_job
from graddiv.evaluation.strong import gradient_noise_job
from graddiv.evaluation.target import Target
from graddiv.evaluation.transfer import transfer_job
from graddiv.geometry import L2
from graddiv.records import (
    BoundaryRecord,
    CertificateRecord,
    ConcentrationRecord,
    EnsembleSizeRecord,
    GradientNoiseRecord,
    GradientsRecord,
    LossIncreaseRecord,
    MeasurementRecord,
    NearbyRecord,
    RotationRecord,
    TransferRecord,
)


@dataclass(frozen=True)
class MeasurementSettings:
    """Where measurements look, and what is spent on them; each takes what concerns it."""

    epsilon: float
    """The l_inf radius of attacks."""
    gradients: int = 100
    """Gradients at each example, and models of the largest ensemble: the paper's number."""
    n: int = 20
    """Sample models at each iteration of EOT."""
    m: int = 20
    """Iterations of attacks."""
    models: int = 50
    """Sample models of the transfer matrix: the paper's number."""
    grid: int = 41
    """Points along a side of the decision regions."""
    draws: int = 1000
    """Sample models whose votes make a certificate."""


Jobs = Callable[[Target, Path | None, MeasurementSettings], Sequence[Job[Any]]]


class Measurement(NamedTuple):
    """One entry of the registry."""

    record: type[MeasurementRecord]
    jobs: Jobs
    """What computes its records."""
    named: Callable[[MeasurementSettings, int], list[Mapping[str, Any]]] = lambda settings, pixels: [{}]
    """The settings that name its files, for images of so many pixels."""
    of_random_networks_only: bool = False

    def files(self, settings: MeasurementSettings, pixels: int) -> list[str]:
        """The names of its records, before they are made."""
        return [self.record.file_name(named) for named in self.named(settings, pixels)]


def _at_epsilon(settings: MeasurementSettings, pixels: int) -> list[Mapping[str, Any]]:
    return [{"epsilon": settings.epsilon}]


def _in_both_norms(settings: MeasurementSettings, pixels: int) -> list[Mapping[str, Any]]:
    l2 = {"norm": "L2", "epsilon": l2_radius(settings.epsilon, pixels)}
    return [{"norm": "Linf", "epsilon": settings.epsilon}, l2]


def _rotation_jobs(target: Target, directory: Path | None, s: MeasurementSettings) -> Sequence[Job[Any]]:
    return [
        rotation_job(target, directory, epsilon=s.epsilon, m=s.m),
        rotation_job(target, directory, epsilon=l2_radius(s.epsilon, target.pixels), geometry=L2(), m=s.m),
    ]


MEASUREMENTS: dict[str, Measurement] = {
    "concentration": Measurement(
        ConcentrationRecord, lambda target, out, s: [concentration_job(target, out, n=s.gradients)]
    ),
    "gradients": Measurement(GradientsRecord, lambda target, out, s: [gradients_job(target, out, n=s.gradients)]),
    "gradient-noise": Measurement(
        GradientNoiseRecord,
        lambda target, out, s: [gradient_noise_job(target, out, epsilon=s.epsilon, n=s.n)],
        _at_epsilon,
        of_random_networks_only=True,
    ),
    "nearby": Measurement(
        NearbyRecord,
        lambda target, out, s: [nearby_job(target, out, epsilon=s.epsilon, n=s.n)],
        _at_epsilon,
        of_random_networks_only=True,
    ),
    "increase": Measurement(
        LossIncreaseRecord,
        lambda target, out, s: [loss_increase_job(target, out, epsilon=s.epsilon, n=s.n, m=s.m, gradients=s.gradients)],
        _at_epsilon,
    ),
    "rotation": Measurement(RotationRecord, _rotation_jobs, _in_both_norms),
    "boundary": Measurement(
        BoundaryRecord,
        lambda target, out, s: [boundary_job(target, out, epsilon=s.epsilon, grid=s.grid)],
        _at_epsilon,
    ),
    "ensemble": Measurement(EnsembleSizeRecord, lambda target, out, s: [ensemble_size_job(target, out, n=s.gradients)]),
    "transfer": Measurement(
        TransferRecord,
        lambda target, out, s: [transfer_job(target, out, epsilon=s.epsilon, k=s.models, m=s.m)],
        _at_epsilon,
        of_random_networks_only=True,
    ),
    "certificate": Measurement(
        CertificateRecord,
        lambda target, out, s: [certificate_job(target, out, draws=s.draws)],
        of_random_networks_only=True,
    ),
}


def measurement(name: str) -> Measurement:
    """The measurement of that name."""
    if name not in MEASUREMENTS:
        raise unknown("measurement", name, MEASUREMENTS)
    return MEASUREMENTS[name]
