"""From an experiment to what it trains: the examples and the network."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from graddiv.errors import GradDivError

if TYPE_CHECKING:
    from graddiv.data import Dataset
    from graddiv.experiment.schema import Experiment
    from graddiv.networks import RandomizedNetwork


def training_set(experiment: "Experiment", root: str | None) -> "Dataset":
    """The examples it trains on; `root` is the folder of the official files, by default looked for."""
    from graddiv.data import load

    data = load(experiment.data.name, "train", root)
    wanted = experiment.data.examples
    if wanted is not None and wanted > len(data):
        raise GradDivError(f"data.examples is {wanted}, but {experiment.data.name} has {len(data)} training examples")
    return data if wanted is None else data.take(slice(0, wanted))


def validation_set(experiment: "Experiment", root: str | None) -> "Dataset":
    """The examples held out from training."""
    from graddiv.data import load

    return load(experiment.data.name, "validation", root)


def untrained_network(experiment: "Experiment", examples: "Callable[[], Dataset]") -> "RandomizedNetwork":
    """F as it is before training; `examples` reads the training set if the network needs it."""
    from torch import nn

    from graddiv.data import lookup
    from graddiv.networks import architecture
    from graddiv.seeding import fold

    network = experiment.network
    addresses = [("init",), *(("init", i) for i in range(1, experiment.defense.members))]
    members = [architecture(network.architecture, network.width, seed=fold(experiment.seed, *a)) for a in addresses]
    module = members[0] if len(members) == 1 else nn.ModuleList(members)
    return experiment.defense.build(module, lookup(experiment.data.name).shape, examples)
