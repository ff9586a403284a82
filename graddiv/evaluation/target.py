"""What is evaluated: a network and the examples on which it is judged."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from graddiv.data import Dataset, load
from graddiv.errors import GradDivError
from graddiv.evaluation.batches import Advance, Job
from graddiv.evaluation.examples import Examples, Images, Labels
from graddiv.evaluation.prediction import N_ENSEMBLE, predict
from graddiv.networks import Dirac, RandomizedNetwork
from graddiv.networks.inputs import check_takes, naming_the_shape
from graddiv.performance import channels_last
from graddiv.records import MeasurementRecord

if TYPE_CHECKING:
    from graddiv.experiment import Experiment

M = TypeVar("M", bound=MeasurementRecord)

IMAGES = 20
"""The number of adversarial images that a report shows at most."""


@dataclass(frozen=True)
class Target:
    """A network, the examples on which it is judged, and the settings that all measurements of it share."""

    F: RandomizedNetwork
    """The network."""
    data: Dataset | Examples
    """The examples."""
    name: str = "network"
    """What the network is called in records and reports."""
    n_ensemble: int = N_ENSEMBLE
    """How many sample models the ensemble that judges has; 20 as in the paper."""
    seed: int = 0
    """Addresses every random choice of the evaluation."""
    batch: int = 100
    """How many examples are evaluated at a time."""
    kept_images: int = IMAGES
    """Of so many first examples records keep the adversarial images."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else every record should say, such as the method and its lam."""

    @classmethod
    def of(
        cls,
        F: RandomizedNetwork | nn.Module,
        x: Images,
        y: Labels = None,
        **settings: Any,
    ) -> "Target":
        """Make a target of a network in memory.

        F: the network; a plain module is taken as deterministic.
        x, y: images in [0, 1] and labels; or x is a data set or a DataLoader of both, and y is left out.
        settings: the other fields of the target, such as `seed`.
        """
        if isinstance(x, Dataset) and y is not None:
            raise GradDivError("y is given and x is a data set, which has its own labels: leave y out")
        network = F if isinstance(F, RandomizedNetwork) else Dirac(F)
        target = cls(network, x if isinstance(x, Dataset) else Examples.of(x, y), **settings)
        _try_out(target)
        return target

    @property
    def random(self) -> bool:
        """Whether there is more than one sample model."""
        return self.F.random

    def describe(self) -> dict[str, Any]:
        """Return the part of a record's description that is the same for all records of this target."""
        return {
            "target": self.name,
            **self.facts,
            **({"proxy_gradient": True} if self.F.proxy_gradient else {}),
            "parameters": fingerprint(self.F),
            "examples": len(self.data),  # before their checksum, because errors name the first difference
            "data": {"name": self.data.name, "split": self.data.split, "sha256": self.data.checksum},
            "n_ensemble": self.n_ensemble,
            "seed": self.seed,
            "batch": self.batch,
        }

    def examples(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return images, labels and ids at these rows, on the network's device."""
        x, y = self.data.batch(rows)
        device = self.F.device
        return channels_last(x.to(device)), y.to(device), self.data.ids[rows].to(device)

    @property
    def pixels(self) -> int:
        """The dimension of an image."""
        return self.data.batch(slice(0, 1))[0].numel()

    @property
    def shows_images(self) -> bool:
        """Whether inputs have channels, height and width."""
        return self.data.batch(slice(0, 1))[0].dim() == 4

    def first(self, count: int) -> "Target":
        """Return the same target on its first `count` examples alone."""
        return self.take(slice(0, count))

    def take(self, rows: slice | Int64[Tensor, " k"]) -> "Target":
        """Return the same target on these examples alone."""
        return replace(self, data=self.data.take(rows))

    def job(
        self,
        record: type[M],
        settings: Mapping[str, Any],
        directory: Path | None,
        measure: "Measure",
        *,
        work: float,
    ) -> Job[M]:
        """Return the job that measures something on every example and stores it as a record.

        record: the kind of record that it becomes, which also names the file.
        settings: the settings of the measurement, which are stored there too.
        directory: where the record is stored; None for nowhere.
        measure: computes the arrays of one batch.
        work: the rough cost of one batch in forward-equivalents.
        """

        def compute(rows: slice, advance: Advance) -> dict[str, np.ndarray]:
            x, y, ids = self.examples(rows)
            found = {"ids": ids, "labels": y, **measure(x, y, ids, advance)}
            return {key: _to_float32(value).cpu().contiguous().numpy() for key, value in found.items()}

        description = {"kind": record.kind, **settings, **self.describe()}
        path = None if directory is None else directory / record.file_name(settings)
        return Job(record, record.kind, description, path, len(self.data), self.batch, work, compute)


def target_of(
    experiment: "Experiment",
    F: RandomizedNetwork,
    *,
    data: str | None = None,
    split: str = "test",
    examples: int | None = None,
    batch: int = 100,
    seed: int = 0,
    data_root: str | None = None,
    device: torch.device | None = None,
) -> Target:
    """The network of an experiment, moved to its device, on examples of the data set it is trained on.

    data: another data set to be judged on, of images of the same shape.
    split: "test", or "validation" to choose settings without looking at test data.
    examples: how many of the split, from its first on; all if None.
    batch: how many images are looked at together; it decides over memory and time.
    seed: of the adversary and of the models that judge.
    data_root: the folder of the official data files, by default looked for.
    device: where the network goes; it stays where it is if None.
    """
    judged_on = load(data or experiment.data.name, split, data_root)
    if examples is not None and not 1 <= examples <= len(judged_on):
        raise GradDivError(f"examples is {examples}, expected 1 to {len(judged_on)}, the size of the {split} split")
    F.to(device)
    channels_last(F)
    facts = {"method": experiment.method, "lam": experiment.lam}
    judged_on = judged_on if examples is None else judged_on.take(slice(0, examples))
    return Target(F, judged_on, experiment.run_name, seed=seed, batch=batch, facts=facts)


def _try_out(target: Target) -> None:
    """Call the network with the first image, so that one that cannot take it is refused before any work is done."""
    if not len(target.data):
        return
    x = target.examples(slice(0, 1))[0]
    check_takes(target.F, x)
    with naming_the_shape(x):
        predict(target.F, x, n=1)


Measure = Callable[[Tensor, Tensor, Tensor, Advance], Mapping[str, Tensor]]
"""(images, labels, ids, advance) -> arrays by name, whose first axis is the example."""


def _to_float32(values: Tensor) -> Tensor:
    """Return float64 values as float32, as records store them: nothing measured is known to more digits."""
    return values.float() if values.dtype == torch.float64 else values


def fingerprint(F: RandomizedNetwork) -> str:
    """Return a sha256 of parameters and buffers, by which records of another network are told from this one's."""
    digest = hashlib.sha256(type(F).__name__.encode())
    for name, tensor in F.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()
