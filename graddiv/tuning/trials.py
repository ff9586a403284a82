"""Train and judge trial after trial."""

import os
from collections.abc import Callable
from pathlib import Path

from graddiv import store
from graddiv.data import load
from graddiv.errors import GradDivError
from graddiv.experiment import Experiment
from graddiv.runs import Run
from graddiv.training import train
from graddiv.training.loop import DivergedError, Listener
from graddiv.tuning.queue import Queue, trial_name
from graddiv.tuning.search import Judge, Result, Search


def own_regularizer(experiment: Experiment) -> str:
    """The regularizer that the recipe names."""
    if experiment.regularization is None:
        method = experiment.method
        raise GradDivError(f"{method} has no section graddiv, hence no lambda to tune: try {method}+graddiv")
    return experiment.regularization.regularizer


def tune(
    experiment: Experiment,
    out: Path,
    search: Search,
    judge: Judge,
    *,
    storage: str | None = None,
    data_root: str | None = None,
    device: str | None = None,
    listener: Callable[[str], Listener] | None = None,
) -> list[Result]:
    """Train and judge every trial that is left; return the results of all, the best one first.

    Each trial is an ordinary run directory below `out`.  The list of trials is an Optuna study: a file in `out`, or
    `storage`, from which several machines may pull.  Killed at any moment, the same call goes on; a trial that was
    being trained is taken up where it stood.

    out: the directory of all trials.
    search, judge: what is tried, and the attack on validation data by which it is compared.
    storage: an Optuna URL; a file in `out` if None, which processes of one machine may share.
    data_root: the folder of the official data files, by default looked for.
    device: such as "cpu" or "cuda:1"; CUDA if there is any.
    listener: makes the listener that is told of the training of the trial of this name.
    """
    own_regularizer(experiment)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise GradDivError(
            "graddiv tune was started by torchrun: start it several times with one --storage instead, "
            "and each process takes trials of its own"
        )
    data = load(experiment.data.name, "validation", data_root)
    if judge.examples > len(data):
        raise GradDivError(f"examples is {judge.examples}, but there are only {len(data)} validation examples")
    data = data.take(slice(0, judge.examples))
    store.make_directory(out)
    queue = Queue(experiment, out, search, judge, storage)
    while True:
        with queue.next() as trial:
            if trial is None:
                return queue.results()
            regularizer, lam = trial.params["regularizer"], trial.params["lam"]
            name = trial_name(regularizer, lam)
            try:
                F = train(
                    experiment.with_graddiv(regularizer=regularizer, lam=lam),
                    out / name,
                    data_root=data_root,
                    device=device,
                    listeners=[listener(name)] if listener is not None else [],
                )
            except DivergedError as error:
                queue.diverged(trial, str(error))
                continue
            clean, robust = judge(F, data, experiment.seed)
            rho = Run(out / name).epochs[-1].get("rho")
            queue.done(trial, Result(regularizer, lam, clean, robust, rho))
