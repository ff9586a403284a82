"""Where a training starts that does not start from scratch."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graddiv import store
from graddiv.errors import GradDivError, GradDivWarning
from graddiv.experiment import DEFENSES, Experiment, StartSection
from graddiv.runs import Run, TrainingPosition, load_state, network_of, state_hash

if TYPE_CHECKING:
    from torch import Tensor

    from graddiv.networks import RandomizedNetwork


def take_over(experiment: Experiment, run: Run) -> None:
    """Copy the first stages from a finished run beside this one that trained just them: the bits would be the same."""
    other = first_stages_beside(experiment, run)
    if other is None:
        return
    tensors, state = store.read_tensors(other.last_checkpoint)
    position = TrainingPosition.of(state, other.last_checkpoint)
    store.write(run.log_file, store.read(other.log_file)[: position.log_size])
    for epoch in range(1, other.epochs_done + 1):
        if other.checkpoint(epoch).exists():  # those that the recipe keeps
            store.write(run.checkpoint(epoch), store.read(other.checkpoint(epoch)))
    store.write_tensors(run.last_checkpoint, tensors, state)


def first_stages_beside(experiment: Experiment, run: Run) -> Run | None:
    """The finished run beside this one that trained just its first stages, as many of them as possible."""
    for before in experiment.first_stages:
        for other in (Run(path) for path in sorted(run.path.parent.glob(f"*-{before.digest}"))):
            if other != run and _has_finished(other, before) and _same_data(other, run) and _can_go_on(other):
                return other
    return None


def _has_finished(run: Run, experiment: Experiment) -> bool:
    return run.last_checkpoint.exists() and not run.is_locked and run.epochs_done == experiment.epochs


def _same_data(other: Run, run: Run) -> bool:
    """A run that has not begun, of which an estimate is made, has no data to compare yet."""
    return not run.data_file.exists() or bool(store.read_json(other.data_file) == store.read_json(run.data_file))


def _can_go_on(run: Run) -> bool:
    """Whether its checkpoint is of the end of an epoch, and no archived copy, in half precision without moments."""
    tensors, state = store.read_tensors(run.last_checkpoint)
    at_an_end = not TrainingPosition.of(state, run.last_checkpoint).sums
    return at_an_end and any(name.startswith("adam.") for name in tensors)


def starting_state(start: StartSection) -> "dict[str, Tensor]":
    """The network to start from, if it is the one that the recipe means."""
    state = network_of(Path(start.path))
    if (found := state_hash(state)) != start.sha256:
        raise GradDivError(
            f"network.from: {start.path} holds another network than the recipe was made for (sha256 {found[:10]}, "
            f"expected {start.sha256[:10]}): write network.from = {start.path!r} to start from this one"
        )
    return state


def load_start(
    F: "RandomizedNetwork", state: "Mapping[str, Tensor]", experiment: Experiment, start: StartSection
) -> None:
    """Give F the network to start from; the error says which network was expected, and which one is there."""
    try:
        load_state(F, state, Path(start.path))
    except GradDivError as error:
        source = _source(start)
        there = f", and {start.path} is {_described(source)}" if source is not None else ""
        raise GradDivError(f"{error}: network.from needs {_described(experiment)}, as the recipe has{there}") from None


def warn_of_changes(experiment: Experiment, start: StartSection) -> None:
    """Tell of settings of the noise that fit the network, but are not those it was trained with, such as its prior."""
    if (source := _source(start)) is not None:
        before, now = _noise(source), _noise(experiment)
        keys = [key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key)]
        changes = ", ".join(f"{key} was {before.get(key)} and is {now.get(key)} now" for key in keys)
        if changes:
            warnings.warn(f"network.from: {start.path} was trained otherwise: {changes}", GradDivWarning, stacklevel=2)


def provenance(start: StartSection | None) -> dict[str, Any]:
    """What the log says of the run that training starts from; nothing of a file, of which the recipe has the hash."""
    source = _source(start) if start is not None else None
    return {} if source is None else {"from": {"run": source.run_name, "seed": source.seed}}


def _source(start: StartSection) -> Experiment | None:
    """The settings of the run to start from; None for a file."""
    path = Path(start.path)
    return Run(path).experiment if store.is_directory(path) else None


WEIGHTS = ("alpha_kl", "kl_scope")
"""Settings of a defense that weigh its loss and leave the noise as it is; on fewer examples they differ on purpose."""


def _noise(experiment: Experiment) -> dict[str, Any]:
    """The settings of its defense: gaussian.prior_sigma and so on."""
    settings = experiment.dump()
    sections = {name: settings.get(name) or {} for name in DEFENSES}
    return {f"{name}.{key}": value for name in sections for key, value in sections[name].items() if key not in WEIGHTS}


def _described(experiment: Experiment) -> str:
    """mnist_cnn of width 0.25, gaussian."""
    network, settings = experiment.network, experiment.dump()
    defense = next((name for name in DEFENSES if settings.get(name) is not None), "deterministic")
    return f"{network.architecture} of width {network.width:g}, {defense}"
