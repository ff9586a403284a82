"""Where a training starts that does not start from scratch."""

from pathlib import Path
from typing import TYPE_CHECKING

from graddiv import store
from graddiv.errors import GradDivError
from graddiv.experiment import Experiment, StartSection
from graddiv.runs import Run, TrainingPosition, network_of, state_hash

if TYPE_CHECKING:
    from torch import Tensor


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
