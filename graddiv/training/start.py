"""The start of training: another network, finished first stages, or a checkpoint with the moments of Adam."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graddiv import store
from graddiv.errors import GradDivError, GradDivWarning
from graddiv.experiment import Experiment, StartSection
from graddiv.networks import RandomizedNetwork
from graddiv.runs import Run, TrainingPosition, check_tensor, load_state, network_of, state_hash

WEIGHTS = ("alpha_kl", "kl_scope")  #: Settings of a defense that weigh its loss but do not change its noise.


def moments_of(optimizer: torch.optim.Adam, module: nn.Module) -> dict[str, Tensor]:
    """Adam's moments of every parameter that it has moved, by name."""
    states = {name: optimizer.state.get(parameter, {}) for name, parameter in module.named_parameters()}
    return {f"adam.{moment}.{name}": value for name, state in states.items() for moment, value in state.items()}


def restore_moments(optimizer: torch.optim.Adam, module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Give the optimizer the moments that the checkpoint at `path` holds, all of them for each parameter it moved."""
    for name, parameter in module.named_parameters():
        wanted = {"step": torch.zeros(()), "exp_avg": parameter, "exp_avg_sq": parameter}
        found = {moment: tensors[key] for moment in wanted if (key := f"adam.{moment}.{name}") in tensors}
        for moment, like in wanted.items() if found else ():
            check_tensor(f"adam.{moment}.{name}", found.get(moment), like, path)
            optimizer.state[parameter][moment] = torch.empty_like(like).copy_(found[moment])
    if not optimizer.state:
        raise GradDivError(f"{path} lacks the moments of Adam: training cannot go on from it")


def take_over(experiment: Experiment, run: Run) -> None:
    """Copy the first stages from a finished run beside this one that trained only them: the bits are the same."""
    if (other := first_stages_beside(experiment, run)) is None:
        return
    log_size = TrainingPosition.of(store.read_tensors(other.last_checkpoint)[1], other.last_checkpoint).log_size
    store.write(run.log_file, store.read(other.log_file)[:log_size])
    for path in sorted(other.checkpoints.glob("epoch-*.safetensors")):  # those that the recipe keeps
        store.write(run.checkpoints / path.name, store.read(path))
    store.write(run.last_checkpoint, store.read(other.last_checkpoint))  # last: from here on this run has begun


def first_stages_beside(experiment: Experiment, run: Run) -> Run | None:
    """The finished run beside this one that trained only its first stages, as many of them as possible."""
    for before in experiment.first_stages:
        for other in (Run(path) for path in sorted(run.path.parent.glob(f"*-{before.digest}"))):
            finished = other.last_checkpoint.exists() and not store.is_locked(other.path)
            if other != run and finished and other.epochs_done == before.epochs and _can_go_on(other, run):
                return other
    return None


def _can_go_on(other: Run, run: Run) -> bool:
    """Whether its data are the same, and its checkpoint is of an epoch's end and has moments, which archives lack."""
    # a run that has not begun, of which an estimate is made, has no data to compare yet
    if run.data_file.exists() and store.read_json(other.data_file) != store.read_json(run.data_file):
        return False
    tensors, state = store.read_tensors(other.last_checkpoint)
    at_an_end = not TrainingPosition.of(state, other.last_checkpoint).sums
    return at_an_end and any(name.startswith("adam.") for name in tensors)


def starting_state(start: StartSection) -> dict[str, Tensor]:
    """The network to start from, if it is the one that the recipe means."""
    if not Path(start.path).exists():
        raise GradDivError(
            f"network.from: there is no {start.path}: copy the run that training starts from there, or use --from"
        )
    state = network_of(Path(start.path))
    if (found := state_hash(state)) != start.sha256:
        raise GradDivError(
            f"network.from: {start.path} holds another network than the recipe was made for (sha256 {found[:10]}, "
            f"expected {start.sha256[:10]}): write network.from = {start.path!r} to start from this one"
        )
    return state


def load_start(F: RandomizedNetwork, state: Mapping[str, Tensor], experiment: Experiment, start: StartSection) -> None:
    """Give F the network to start from; the error says which network was expected, and which one is there."""
    try:
        load_state(F, state, Path(start.path))
    except GradDivError as error:
        there = f", and {start.path} is {_described(source)}" if (source := _source(start)) is not None else ""
        raise GradDivError(f"{error}: network.from needs {_described(experiment)}, as the recipe has{there}") from None


def provenance(experiment: Experiment) -> dict[str, Any]:
    """The log's entry for the run that training starts from, not for a file; warn of other settings of the noise."""
    start = experiment.network.start
    if start is None or (source := _source(start)) is None:
        return {}
    before, now = (
        {f"{name}.{key}": value for name, of in e.defense_sections.items() for key, value in of if key not in WEIGHTS}
        for e in (source, experiment)
    )
    if changes := store.differences(before, now):
        told = ", ".join(f"{key} was {was} and is {is_now} now" for key, was, is_now in changes)
        warnings.warn(f"network.from: {start.path} was trained otherwise: {told}", GradDivWarning, stacklevel=2)
    return {"from": {"run": source.run_name, "seed": source.seed}}


def _source(start: StartSection) -> Experiment | None:
    """The settings of the run to start from; None for a file."""
    path = Path(start.path)
    return Run(path).experiment if store.is_directory(path) else None


def _described(experiment: Experiment) -> str:
    """Describe the network, such as: mnist_cnn of width 0.25, gaussian."""
    network, defense = experiment.network, next(iter(experiment.defense_sections), "deterministic")
    return f"{network.architecture} of width {network.width:g}, {defense}"
