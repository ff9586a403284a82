"""The registry of measurements: `@measurement` names the job, the record that it makes and what it spends."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from graddiv.errors import GradDivError
from graddiv.evaluation.budget import Budget
from graddiv.evaluation.run import Job
from graddiv.evaluation.target import Target
from graddiv.geometry import LINF, NORMS
from graddiv.networks import RandomizedNetwork
from graddiv.records import MeasurementRecord
from graddiv.registries import Registry

J = TypeVar("J", bound=Callable[..., Job[Any]])
Spends = Callable[[Budget], dict[str, Any]]


class Measurement(NamedTuple):
    """One entry of the registry."""

    record: type[MeasurementRecord]
    job: Callable[..., Job[Any]]  #: job(target, epsilon=..., **spends(budget)); epsilon where it names the file.
    spends: Spends  #: The arguments that it takes from a budget.
    in_both_norms: bool = False  #: Whether it is made in Linf and in L2, with geometry=...
    of_random_networks_only: bool = False
    on_request: bool = False  #: Whether it is measured only where it is named.
    made_for: type = object  #: It says something of networks of this class alone.

    @property
    def norms(self) -> list[str]:
        """The norms in which it is defined: all if its record names the norm, or has no radius."""
        named_by = self.record.named_by
        return list(NORMS) if "norm" in named_by or "epsilon" not in named_by else ["linf"]

    def suits(self, F: RandomizedNetwork, norm: str) -> bool:
        """Whether it is measured of the network where none is named."""
        fits = isinstance(F, self.made_for) and (F.random or not self.of_random_networks_only)
        return fits and norm in self.norms and not self.on_request

    def jobs(self, target: Target, epsilon: float, budget: Budget) -> list[Job[Any]]:
        places = self._places(epsilon, target.pixels, budget.norm)
        return [self.job(target, **at, **self.spends(budget)) for at in places]

    def files(self, epsilon: float, pixels: int, norm: str = "linf") -> list[str]:
        """The names of its records, before they are made, for images with this number of pixels."""
        places = self._places(epsilon, pixels, norm)
        return [self.record.file_name({**at, "norm": at["geometry"].name} if "geometry" in at else at) for at in places]

    def _places(self, epsilon: float, pixels: int, norm: str) -> list[dict[str, Any]]:
        if norm != "linf" and "norm" in self.record.named_by:
            return [{"epsilon": epsilon, "geometry": NORMS[norm]}]
        if self.in_both_norms:
            l2 = {"epsilon": l2_radius(epsilon, pixels), "geometry": NORMS["l2"]}
            return [{"epsilon": epsilon, "geometry": LINF}, l2]
        return [{"epsilon": epsilon}] if "epsilon" in self.record.named_by else [{}]


MEASUREMENTS: Registry[Measurement] = Registry("measurement", {})


def defined_in(name: str, norm: str) -> Measurement:
    """The measurement of that name, which must be defined in the norm."""
    found = MEASUREMENTS[name]
    if norm not in found.norms:
        raise GradDivError(f"{name} is measured in {' or '.join(found.norms)} only, but the norm is {norm}")
    return found


def measurement(name: str, record: type[MeasurementRecord], spends: Spends, **flags: Any) -> Callable[[J], J]:
    """Register the function below, which makes the job; the arguments are the fields of `Measurement`."""

    def register(job: J) -> J:
        MEASUREMENTS[name] = Measurement(record, job, spends, **flags)
        return job

    return register


def l2_radius(epsilon: float, p: int) -> float:
    """epsilon sqrt(p) / 4: an l_2 ball about as easy as the l_inf ball, for images."""
    return epsilon * math.sqrt(p) / 4
