"""The trials as an Optuna study, from which several processes and machines may take theirs."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from graddiv import store
from graddiv.errors import GradDivError
from graddiv.experiment import Experiment
from graddiv.registries import REGULARIZERS
from graddiv.seeding import fold
from graddiv.tuning.search import MOST, Judge, Result, Search

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial, Trial

OWNED = ".trial"
"""The lock of a run directory's trial: from before its training until its result is known."""


def trial_name(regularizer: str, lam: float) -> str:
    """The name of a trial's run directory."""
    return f"{regularizer}-{lam:.6g}"


class Queue:
    """The trials as an Optuna study; a point is (regularizer, lambda)."""

    def __init__(self, experiment: Experiment, out: Path, search: Search, judge: Judge, storage: str | None) -> None:
        self.out, self.search, self.alone = out, search, storage is None
        self.url = storage or f"sqlite:///{(out / 'study.db').resolve()}"
        with self._alone_in_directory(), _storage_errors(self.url):
            self.study = _study(self.url, _study_name(experiment, search, judge), search)
            if search.sampler == "grid":
                known = {_point(trial) for trial in self._trials()}
                grid = [(regularizer, lam) for regularizer in search.regularizers for lam in search.lambdas]
                for point in grid:
                    if point not in known:
                        self._enqueue(point)

    @contextmanager
    def next(self) -> "Iterator[Trial | None]":
        """A trial for this process to do, and for no other as long as the context lasts."""
        with ExitStack() as stack:
            with (
                self._alone_in_directory(),
                _storage_errors(self.url),
            ):  # a trial that runs and that nobody owns would be taken for abandoned
                self._take_up_abandoned()
                trial = self._ask()
                if trial is not None:
                    directory = self.out / trial_name(trial.params["regularizer"], trial.params["lam"])
                    store.make_directory(directory)
                    stack.enter_context(store.file_lock(directory / OWNED))
            yield trial

    def _alone_in_directory(self) -> AbstractContextManager[None]:
        """Wait until no other process is choosing a trial."""
        return store.file_lock(self.out / ".queue", wait=True)

    def _ask(self) -> "Trial | None":
        from optuna.trial import TrialState

        while True:
            trials = self._trials()
            waiting = any(trial.state is TrialState.WAITING for trial in trials)
            if not waiting and (self.search.sampler == "grid" or len(trials) >= self.search.trials):
                return None
            trial = self.study.ask(_distributions(self.search))
            if self.search.sampler != "grid" or trial.user_attrs:
                return trial
            self.study.tell(trial, state=TrialState.FAIL)  # another machine took the last one that waited

    def done(self, trial: "Trial", result: Result) -> None:
        """The trial was judged."""
        with _storage_errors(self.url):
            for key in ("clean", "robust", "rho"):
                trial.set_user_attr(key, getattr(result, key))
            self.study.tell(trial, result.robust)

    def diverged(self, trial: "Trial", reason: str) -> None:
        """The trial has no result and would have none the next time."""
        from optuna.trial import TrialState

        with _storage_errors(self.url):
            trial.set_user_attr("diverged", reason)
            self.study.tell(trial, state=TrialState.FAIL)

    def results(self) -> list[Result]:
        """One for each point that was tried to its end, the best first."""
        found = {}
        for trial in self._trials():
            if trial.state.is_finished() and (point := _point(trial)) is not None:
                found[point] = Result(*point, *(trial.user_attrs.get(key) for key in ("clean", "robust", "rho")))
        return sorted(found.values(), key=_rank)

    def _trials(self) -> "list[FrozenTrial]":
        """All but those that failed through no fault of their point."""
        from optuna.trial import TrialState

        trials = self.study.get_trials(deepcopy=False)
        return [trial for trial in trials if trial.state is not TrialState.FAIL or "diverged" in trial.user_attrs]

    def _take_up_abandoned(self) -> None:
        """Put the points of processes that died back into the queue; their run directories go on from there.

        A living process holds the lock of its trial.  Without a storage of several machines, a directory that is not
        here was never made.
        """
        from optuna.trial import TrialState

        for trial in self._trials():
            if trial.state is not TrialState.RUNNING:
                continue
            point = _point(trial)
            directory = self.out / trial_name(*point) if point is not None else None
            here = directory is not None and directory.exists()
            if (here or self.alone) and not (directory is not None and here and store.is_locked(directory, OWNED)):
                now = self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
                ended = now.state is not TrialState.FAIL or "diverged" in now.user_attrs  # since the list was read
                if point is not None and not ended:
                    self._enqueue(point)

    def _enqueue(self, point: tuple[str, float]) -> None:
        planned = dict(zip(("regularizer", "lam"), point, strict=True))
        self.study.enqueue_trial(planned, user_attrs=planned)


def _rank(r: Result) -> tuple[object, ...]:
    """The best first; equals by their settings, since the order in which trials ran may change after a kill."""
    return r.robust is None, -(r.robust or 0.0), -(r.clean or 0.0), r.lam, r.regularizer


def _point(trial: "FrozenTrial") -> tuple[str, float] | None:
    known = {**trial.user_attrs, **trial.params}
    return (known["regularizer"], known["lam"]) if "lam" in known and "regularizer" in known else None


def storage_of(url: str) -> "RDBStorage":
    """The storage of studies; it closes each connection after use, of which Python 3.13 reminds those who do not."""
    import optuna
    from sqlalchemy.pool import NullPool

    return optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})


def _study(url: str, name: str, search: Search) -> "Study":
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(storage=storage_of(url), study_name=name, direction="maximize", load_if_exists=True)
    # another seed each time: the same one would suggest the same points to every process
    seed = fold(len(study.trials), *search.regularizers) % 2**32
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    study.sampler = samplers.get(search.sampler, optuna.samplers.RandomSampler)(seed=seed)
    return study


@contextmanager
def _storage_errors(url: str) -> Iterator[None]:
    """Turn what a storage raises into an error that names it, without the password."""
    from optuna.exceptions import OptunaError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except GradDivError:
        raise
    except (SQLAlchemyError, OptunaError, ImportError, ValueError) as error:
        # the error of the database itself, such as a full disk, is behind the one of Optuna
        cause = error.__cause__ if isinstance(error.__cause__, SQLAlchemyError) else error
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        raise GradDivError(f"cannot use the storage {_without_password(url)!r}: {_without_password(reason)}") from None


def _without_password(text: str) -> str:
    """Replace the password in URLs such as postgresql://user:password@host/name."""
    return re.sub(r"(://[^/\s:@]*):[^/\s]*@", r"\1:***@", text)


def _distributions(search: Search) -> "dict[str, BaseDistribution]":
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if search.sampler == "grid":  # whatever is asked for later fits too
        return {"regularizer": CategoricalDistribution(tuple(REGULARIZERS)), "lam": FloatDistribution(0.0, MOST)}
    low, high = min(search.lambdas), max(search.lambdas)
    return {"regularizer": CategoricalDistribution(search.regularizers), "lam": FloatDistribution(low, high, log=True)}


def _study_name(experiment: Experiment, search: Search, judge: Judge) -> str:
    """Settings under which accuracies compare share a study; a grid may grow, the bounds of a sampler may not."""
    space = "" if search.sampler == "grid" else repr((search.sampler, search.regularizers, search.lambdas))
    settings = json.dumps([experiment.with_graddiv(regularizer="mean", lam=1.0).digest, asdict(judge), space])
    return f"{experiment.data.name}-{experiment.method}-{hashlib.sha256(settings.encode()).hexdigest()[:10]}"
