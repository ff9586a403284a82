"""What training starts from: another network, finished first stages, or a checkpoint with the moments of Adam."""

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

MOMENTS = ("step", "exp_avg", "exp_avg_sq")  #: What Adam keeps of each parameter.
WEIGHTS = ("alpha_kl", "kl_scope")  #: Settings of a defense that weigh its loss and leave the noise as it is.


def moments_of(optimizer: torch.optim.Adam, module: nn.Module) -> dict[str, Tensor]:
    """Adam's moments of every parameter that it has moved, by name."""
    states = {name: optimizer.state.get(parameter, {}) for name, parameter in module.named_parameters()}
    return {f"adam.{moment}.{name}": value for name, state in states.items() for moment, value in state.items()}


def restore_moments(
    optimizer: torch.optim.Adam, module: nn.Module, tensors: Mapping[str, Tensor], about: Mapping[str, Any], path: Path
) -> None:
    """Give the optimizer the moments that the checkpoint at `path` holds; `about`, its description, lists them."""
    listed = about.get("moments")
    expected = set(map(str, listed)) if isinstance(listed, list) else set()
    found = {name for name in tensors if name.startswith("adam.")}
    if odd := sorted(found ^ expected):
        raise GradDivError(f"{path} is damaged: the moments of Adam are not complete, see {', '.join(odd[:3])}")
    for name, parameter in module.named_parameters():
        wanted = {"step": torch.zeros(()), "exp_avg": parameter, "exp_avg_sq": parameter}
        moments = {moment: tensors[key] for moment in MOMENTS if (key := f"adam.{moment}.{name}") in found}
        for moment, value in moments.items():
            check_tensor(f"adam.{moment}.{name}", value, wanted[moment], path)
            if moment != "step":
                moments[moment] = torch.empty_like(parameter).copy_(value)
        if moments:
            optimizer.state[parameter] = moments


def take_over(experiment: Experiment, run: Run) -> None:
    """Copy the first stages from a finished run beside this one that trained just them: the bits would be the same."""
    if (other := first_stages_beside(experiment, run)) is None:
        return
    tensors, state = store.read_tensors(other.last_checkpoint)
    log_size = TrainingPosition.of(state, other.last_checkpoint).log_size
    store.write(run.log_file, store.read(other.log_file)[:log_size])
    for epoch in range(1, other.epochs_done + 1):
        if other.checkpoint(epoch).exists():  # those that the recipe keeps
            store.write(run.checkpoint(epoch), store.read(other.checkpoint(epoch)))
    store.write_tensors(run.last_checkpoint, tensors, state)


def first_stages_beside(experiment: Experiment, run: Run) -> Run | None:
    """The finished run beside this one that trained just its first stages, as many of them as possible."""
    for before in experiment.first_stages:
        for other in (Run(path) for path in sorted(run.path.parent.glob(f"*-{before.digest}"))):
            finished = other.last_checkpoint.exists() and not other.is_locked and other.epochs_done == before.epochs
            if other != run and finished and _same_data(other, run) and _can_go_on(other):
                return other
    return None


def _same_data(other: Run, run: Run) -> bool:
    """A run that has not begun, of which an estimate is made, has no data to compare yet."""
    return not run.data_file.exists() or bool(store.read_json(other.data_file) == store.read_json(run.data_file))


def _can_go_on(run: Run) -> bool:
    """Whether its checkpoint is of the end of an epoch and has moments, which archived copies lack."""
    tensors, state = store.read_tensors(run.last_checkpoint)
    at_an_end = not TrainingPosition.of(state, run.last_checkpoint).sums
    return at_an_end and any(name.startswith("adam.") for name in tensors)


def starting_state(start: StartSection) -> dict[str, Tensor]:
    """The network to start from, if it is the one that the recipe means."""
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
        source = _source(start)
        there = f", and {start.path} is {_described(source)}" if source is not None else ""
        raise GradDivError(f"{error}: network.from needs {_described(experiment)}, as the recipe has{there}") from None


def warn_of_changes(experiment: Experiment, start: StartSection) -> None:
    """Warn of settings of the noise that fit the network, but differ from those it was trained with."""
    if (source := _source(start)) is not None:
        before, now = _noise(source), _noise(experiment)
        keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        changes = ", ".join(f"{key} was {before.get(key)} and is {now.get(key)} now" for key in keys)
        if changes:
            warnings.warn(f"network.from: {start.path} was trained otherwise: {changes}", GradDivWarning, stacklevel=2)


def provenance(start: StartSection | None) -> dict[str, Any]:
    """The log's entry for the run that training starts from; none for a file, whose hash is in the recipe."""
    source = _source(start) if start is not None else None
    return {} if source is None else {"from": {"run": source.run_name, "seed": source.seed}}


def _source(start: StartSection) -> Experiment | None:
    """The settings of the run to start from; None for a file."""
    path = Path(start.path)
    return Run(path).experiment if store.is_directory(path) else None


def _noise(experiment: Experiment) -> dict[str, Any]:
    """The settings of its defense: gaussian.prior_sigma and so on."""
    sections = experiment.defense_sections.items()
    return {f"{name}.{key}": value for name, of in sections for key, value in of if key not in WEIGHTS}


def _described(experiment: Experiment) -> str:
    """mnist_cnn of width 0.25, gaussian."""
    network, defense = experiment.network, next(iter(experiment.defense_sections), "deterministic")
    return f"{network.architecture} of width {network.width:g}, {defense}"
