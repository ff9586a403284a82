"""The target of an evaluation: a network and the examples on which it is judged."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.benchmark import Timer

from graddiv import store
from graddiv.data import Dataset, load
from graddiv.errors import GradDivError
from graddiv.evaluation.examples import Bounds, Examples, examples_of, unscaled
from graddiv.evaluation.models import Model, dtype_of, load_model, network_of, rescaled
from graddiv.evaluation.run import Advance, Job
from graddiv.networks import RandomizedNetwork, running_statistics
from graddiv.networks.inputs import check_takes, naming_the_shape
from graddiv.networks.prediction import N_ENSEMBLE, models_of, predict
from graddiv.performance import channels_last
from graddiv.records import AttackRecord, MeasurementRecord, Record
from graddiv.seeding import isolated

if TYPE_CHECKING:
    from graddiv.experiment import Experiment

R = TypeVar("R", bound=Record)

#: (images, labels, ids, advance) -> arrays by name, whose first axis is the example.
Measure = Callable[[Tensor, Tensor, Tensor, Advance], Mapping[str, Tensor]]
KEPT_IMAGES = 20  #: How many adversarial images a report shows at most.
ASKED = 4  #: The number of first images on which the answers of two networks are compared.
RELATIVE, ABSOLUTE = 1e-3, 0.05  #: Of log-probabilities: other devices differ by less, other networks by more.
TIMED = 32  #: The number of images whose passes are timed.
LEAST = 1e-30  #: Probabilities below this count as equal: some devices round the smallest numbers to 0.


@dataclass(frozen=True)
class Target:
    """A network, the examples on which it is judged, and the settings that all measurements of it share."""

    F: RandomizedNetwork
    data: Dataset | Examples
    name: str = "network"  #: What the network is called in records and reports.
    n_ensemble: int = N_ENSEMBLE  #: How many sample models the ensemble that judges has; 20 as in the paper.
    seed: int = 0  #: Addresses every random choice of the evaluation.
    batch: int = 100  #: How many examples are evaluated at a time.
    kept_images: int = KEPT_IMAGES  #: How many adversarial images a record stores.
    facts: Mapping[str, Any] = field(default_factory=dict)  #: Further entries of records, such as method and lam.

    @classmethod
    def of(
        cls, model: Model, x: object, y: object = None, bounds: Bounds | None = None,
        device: torch.device | None = None, **settings: Any,
    ) -> "Target":  # fmt: skip
        """Make a target of a model in memory; arguments as for `evaluate`, settings are fields such as `seed`."""
        model = load_model(str(model)) if isinstance(model, str | Path) else model
        if isinstance(x, Dataset) and y is None and bounds is None:
            data: Dataset | Examples = x
            F = network_of(model, x.batch(slice(0, 2))[0], device=device).F
        else:
            data = examples_of(x, y, bounds, dtype=dtype_of(model))
            F = rescaled(network_of(model, unscaled(data.x[:2], data.bounds), device=device).F, data.bounds)
        target = cls(F, data, **settings)
        first = target.examples(slice(0, 1))[0]  # a network that cannot take it is refused before any work is done
        with naming_the_shape(first), torch.no_grad(), running_statistics(F), isolated(0):
            check_takes(F, first)
            next(models_of(F, 1, seed=0))(first)
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
            **{name: getattr(self, name) for name in ("n_ensemble", "seed", "batch")},
        }

    def examples(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return images, labels and ids at these rows, on the network's device."""
        x, y, ids = (part.to(self.F.device) for part in (*self.data.batch(rows), self.data.ids[rows]))
        return channels_last(x), y, ids

    @property
    def pixels(self) -> int:
        """The dimension of an image."""
        return self.data.batch(slice(0, 1))[0].numel()

    def take(self, rows: slice | Int64[Tensor, " k"]) -> "Target":
        """The same target on these examples alone."""
        return replace(self, data=self.data.take(rows))

    def job(
        self, record: type[R], settings: Mapping[str, Any], measure: Measure, *, work: float, file: str = "",
        label: str = "",
    ) -> Job[R]:  # fmt: skip
        """Return the job that measures something on every example; `work` is the cost of a batch in forwards."""

        def compute(rows: slice, advance: Advance) -> dict[str, np.ndarray]:
            x, y, ids = self.examples(rows)
            found = {"ids": ids, "labels": y, **measure(x, y, ids, advance)}
            # in float32 at most: nothing measured is known to more digits
            found = {name: t.float() if t.dtype == torch.float64 else t for name, t in found.items()}
            return {name: t.cpu().contiguous().numpy() for name, t in found.items()}

        kind = {} if record is AttackRecord else {"kind": record.kind}  # the first kind, whose files name none
        description = {**kind, **settings, **self.describe()}
        file = record.file_name(settings) if issubclass(record, MeasurementRecord) else file
        return Job(record, label or record.kind, description, file, len(self.data), self.batch, work, compute)

    def seconds(self, passes: float) -> float:
        """An estimate of the time of so many forward passes of all examples; a batch of them is timed here."""
        x = self.examples(slice(0, min(self.batch, TIMED)))[0]
        names = {"torch": torch, "F": self.F, "x": x.requires_grad_()}
        # a forward pass and a backward pass to the input, about two forward passes
        statement = "torch.autograd.grad(F.bind(F.draw(0))(x).sum(), x, allow_unused=True)"
        with running_statistics(self.F):
            timer = Timer(statement, globals=names, num_threads=torch.get_num_threads())
            return timer.blocked_autorange(min_run_time=0.2).mean / 2 / len(x) * len(self.data) * passes

    def check_answers(self, path: Path) -> None:
        """Refuse to mix records of different networks: compare answers with those in the file, or write it."""
        x = self.examples(slice(0, ASKED))[0]
        with isolated(self.seed):  # a module that draws by itself draws the same again
            answers = predict(self.F, x, n=1, seed=self.seed).scores.tolist()
        if not path.exists():
            return store.write_json(path, {"answers": answers})
        found = store.read_json(path).get("answers")
        try:
            before, now = (np.log(np.array(values, float).clip(LEAST)) for values in (found, answers))
        except (TypeError, ValueError):
            raise GradDivError(f"{path} says answers = {found!r:.80}, expected probabilities for each image") from None
        if before.shape != now.shape or not np.allclose(before, now, RELATIVE, ABSOLUTE):
            other = "records of a network that answers otherwise"
            raise GradDivError(f"{path.parent} holds {other}: choose another directory")

    @property
    def answers_file(self) -> str:
        """The name of the file with the answers of this target, in a directory of several."""
        return f"answers-{store.digest(json.dumps(self.describe()))[:8]}.json"


def target_of(
    experiment: "Experiment", F: RandomizedNetwork, *, data: str | Dataset | Examples | None = None,
    split: str = "test", examples: int | None = None, batch: int = 100, seed: int = 0,
    data_root: str | Path | None = None, device: torch.device | None = None,
) -> Target:  # fmt: skip
    """The network of an experiment, moved to its device, on examples of the data set it is trained on.

    data: other images of the same shape, by name or loaded.
    examples: how many of the first examples of the split are used; all if None.
    """
    judged_on = data or experiment.data.source
    if not isinstance(judged_on, Dataset | Examples):
        judged_on = load(judged_on, split, data_root)
    if examples is not None and not 1 <= examples <= len(judged_on):
        raise GradDivError(f"examples is {examples}, expected 1 to {len(judged_on)}, the size of the {split} split")
    F.to(device)
    channels_last(F)
    judged_on = judged_on if examples is None else judged_on.take(slice(0, examples))
    facts = {"method": experiment.method, "lam": experiment.lam}
    return Target(F, judged_on, experiment.run_name, seed=seed, batch=batch, facts=facts)


def fingerprint(F: RandomizedNetwork) -> str:
    """sha256 of the class, parameters and buffers, as records hold it; `runs.state_hash` knows no class."""
    return store.digest(type(F).__name__, *(part for entry in F.state_dict().items() for part in entry))
