"""Cross-validation of lambda and of the regularizer: under EOT-PGD on the validation split, never on test data.

In the paper: docs/equations.md.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from graddiv import store
from graddiv.attacks.pgd import eot_pgd_accuracy
from graddiv.data import Dataset, load
from graddiv.diversity import REGULARIZERS
from graddiv.errors import GradDivError, unknown
from graddiv.experiment import Experiment
from graddiv.networks import RandomizedNetwork
from graddiv.progress import Listener
from graddiv.recipes import LAMBDAS
from graddiv.registries import Count, NotNegative, check_fields
from graddiv.runs import Run
from graddiv.seeding import fold
from graddiv.training import train
from graddiv.training.loop import DivergedError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial, Trial

__all__ = ["Judge", "Result", "Search", "own_regularizer", "tune", "write"]

MOST = 1000.0  #: Every lambda is smaller.
BATCH = 250  #: Examples that are attacked at once.
SAMPLERS = ("grid", "tpe", "random")
OWNED = ".trial"  #: The lock of a trial's run directory: from before its training until its result is known.
VALUES = ("clean", "robust", "rho")  #: Attributes of a finished trial.


@dataclass(frozen=True)
class Search:
    """What is tried: every pair of a lambda and a regularizer, or `trials` points between the extreme lambdas."""

    regularizers: tuple[str, ...]
    lambdas: tuple[float, ...] = LAMBDAS
    sampler: str = "grid"
    trials: Count = 20

    def __post_init__(self) -> None:
        check_fields(self)
        if self.sampler not in SAMPLERS:
            raise unknown("sampler", self.sampler, SAMPLERS)
        for name in self.regularizers:
            _ = REGULARIZERS[name]  # an unknown one is an error
        if not self.regularizers or not self.lambdas:
            raise GradDivError("there is nothing to try: expected at least one regularizer and one lambda")
        for lam in self.lambdas:
            if not MOST > lam > 0:
                raise GradDivError(f"a lambda is {lam}, expected a number above 0 and below {MOST:.0f}")

    @property
    def size(self) -> int:
        """The number of trials."""
        return len(self.regularizers) * len(self.lambdas) if self.sampler == "grid" else self.trials

    @property
    def space(self) -> "dict[str, BaseDistribution]":
        """The points among which Optuna chooses; in a study of grids, also those that are asked for later."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution

        if self.sampler == "grid":
            return {"regularizer": CategoricalDistribution(tuple(REGULARIZERS)), "lam": FloatDistribution(0.0, MOST)}
        lam = FloatDistribution(min(self.lambdas), max(self.lambdas), log=True)
        return {"regularizer": CategoricalDistribution(self.regularizers), "lam": lam}


@dataclass(frozen=True)
class Judge:
    """Robust accuracy under EOT-PGD with n sample models at each of m steps, on the first validation examples."""

    epsilon: NotNegative
    n: Count = 10
    m: Count = 20
    examples: Count = 500

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, F: RandomizedNetwork, data: Dataset, seed: int) -> tuple[float, float]:
        """The shares of the examples, clean and attacked, that the ensemble of fresh sample models gets right."""
        batches, seeds = data.batches(BATCH, F.device), [fold(seed, "tuning", role) for role in ("attack", "ensemble")]
        return eot_pgd_accuracy(F, batches, self.epsilon, n=self.n, m=self.m, seed=seeds[0], judged_by=seeds[1])


class Result(NamedTuple):
    """One trial: accuracies on validation data; None if training diverged."""

    regularizer: str
    lam: float
    clean: float | None
    robust: float | None
    rho: float | None  #: Concentration of the gradients on the training probe at the end.


def own_regularizer(experiment: Experiment) -> str:
    """The regularizer that the recipe names."""
    if experiment.regularization is None:
        method = experiment.method
        raise GradDivError(f"{method} has no section graddiv, hence no lambda to tune: try {method}+graddiv")
    return experiment.regularization.regularizer


def tune(
    experiment: Experiment, out: Path, search: Search, judge: Judge, *, storage: str | None = None,
    data_root: str | None = None, device: str | None = None, listener: Callable[[str], Listener] | None = None,
) -> list[Result]:  # fmt: skip
    """Train and judge every trial that is left; return the results of all, the best one first.

    Each trial is an ordinary run directory below `out`.  The list of trials is an Optuna study: a file in `out`, or
    `storage`, from which several machines may take trials.  Killed at any moment, the same call resumes; a trial that
    was being trained is resumed, too.

    search, judge: what is tried, and the attack on validation data by which it is compared.
    storage: an Optuna URL; by default a file in `out`, which processes of one machine may share.
    data_root: the folder of the official data files; by default the usual places are searched.
    device: such as "cpu" or "cuda:1"; by default CUDA if there is any.
    listener: returns the training listener of the trial of this name.
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
            name, tried = trial_name(regularizer, lam), experiment.with_graddiv(regularizer=regularizer, lam=lam)
            listeners = [listener(name)] if listener is not None else []
            try:
                F = train(tried, out / name, data_root=data_root, device=device, listeners=listeners)
            except DivergedError as error:
                queue.tell(trial, diverged=str(error))
                continue
            clean, robust = judge(F, data, experiment.seed)
            queue.tell(trial, clean=clean, robust=robust, rho=Run(out / name).epochs[-1].get("rho"))


def trial_name(regularizer: str, lam: float) -> str:
    """The name of a trial's run directory."""
    return f"{regularizer}-{lam:.6g}"


class Queue:
    """The trials as an Optuna study, which several processes may share; a point is (regularizer, lambda)."""

    def __init__(self, experiment: Experiment, out: Path, search: Search, judge: Judge, storage: str | None) -> None:
        self.out, self.search, self.alone = out, search, storage is None
        self.url = storage or f"sqlite:///{(out / 'study.db').resolve()}"
        with self._alone():
            self.study = _study(self.url, _study_name(experiment, search, judge), search)
            known = {_point(trial) for trial in self._trials()}
            for point in ((r, lam) for r in search.regularizers for lam in search.lambdas):
                if search.sampler == "grid" and point not in known:
                    self._enqueue(point)

    @contextmanager
    def next(self) -> "Iterator[Trial | None]":
        """A trial for this process to do, and for no other as long as the context lasts."""
        with ExitStack() as stack:
            with self._alone():  # a trial that runs and that nobody owns would be taken for abandoned
                self._take_up_abandoned()
                trial = self._ask()
                if trial is not None:
                    directory = self.out / trial_name(trial.params["regularizer"], trial.params["lam"])
                    store.make_directory(directory)
                    stack.enter_context(store.file_lock(directory / OWNED))
            yield trial

    def tell(self, trial: "Trial", **values: float | str | None) -> None:
        """Keep the values of a trial; one that diverged would do so again, and failed."""
        from optuna.trial import TrialState

        with _storage_errors(self.url):
            for key, value in values.items():
                trial.set_user_attr(key, value)
            failed = "diverged" in values
            self.study.tell(trial, None if failed else values["robust"], TrialState.FAIL if failed else None)  # type: ignore[arg-type]

    def results(self) -> list[Result]:
        """One for each point that was tried to its end, the best first."""
        found = {}
        for trial in self._trials():
            if trial.state.is_finished() and (point := _point(trial)) is not None:
                found[point] = Result(*point, *map(trial.user_attrs.get, VALUES))
        return sorted(found.values(), key=_rank)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other process is choosing a trial in this directory."""
        with store.file_lock(self.out / ".queue", wait=True), _storage_errors(self.url):
            yield

    def _ask(self) -> "Trial | None":
        from optuna.trial import TrialState

        while True:
            trials, grid = self._trials(), self.search.sampler == "grid"
            waiting = any(trial.state is TrialState.WAITING for trial in trials)
            if not waiting and (grid or len(trials) >= self.search.trials):
                return None
            trial = self.study.ask(self.search.space)
            if not grid or trial.user_attrs:
                return trial
            self.study.tell(trial, state=TrialState.FAIL)  # another machine took the last one that waited

    def _trials(self) -> "list[FrozenTrial]":
        """All trials but those that failed for a reason other than their settings."""
        from optuna.trial import TrialState

        trials = self.study.get_trials(deepcopy=False)
        return [trial for trial in trials if trial.state is not TrialState.FAIL or "diverged" in trial.user_attrs]

    def _take_up_abandoned(self) -> None:
        """Put the points of processes that died back into the queue; their run directories resume from there.

        A living process holds the lock of its trial.  Without a storage of several machines, a directory that is not
        here was never made.
        """
        from optuna.trial import TrialState

        for trial in self._trials():
            if trial.state is not TrialState.RUNNING:
                continue
            point = _point(trial)
            directory = None if point is None else self.out / trial_name(*point)
            here = directory is not None and directory.exists()
            owned = directory is not None and here and store.is_locked(directory, OWNED)
            if (here or self.alone) and not owned:
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
    """The storage of studies; it closes each connection after use, since Python 3.13 warns of open ones."""
    import optuna
    from sqlalchemy.pool import NullPool

    return optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})


def _study(url: str, name: str, search: Search) -> "Study":
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(storage=storage_of(url), study_name=name, direction="maximize", load_if_exists=True)
    # another seed each time: the same one would suggest the same points to every process
    seed = fold(len(study.trials), *search.regularizers) % 2**32
    sampler = optuna.samplers.TPESampler if search.sampler == "tpe" else optuna.samplers.RandomSampler
    study.sampler = sampler(seed=seed)
    return study


def _study_name(experiment: Experiment, search: Search, judge: Judge) -> str:
    """Settings under which accuracies compare share a study; a grid may grow, the bounds of a sampler may not."""
    space = "" if search.sampler == "grid" else repr((search.sampler, search.regularizers, search.lambdas))
    settings = json.dumps([experiment.with_graddiv(regularizer="mean", lam=1.0).digest, asdict(judge), space])
    return f"{experiment.data.name}-{experiment.method}-{hashlib.sha256(settings.encode()).hexdigest()[:10]}"


@contextmanager
def _storage_errors(url: str) -> Iterator[None]:
    """Turn what a storage raises into an error that names it, without the password."""
    from optuna.exceptions import OptunaError
    from sqlalchemy.exc import SQLAlchemyError

    def hidden(text: str) -> str:
        return re.sub(r"(://[^/\s:@]*):[^/\s]*@", r"\1:***@", text)  # postgresql://user:password@host/name

    try:
        yield
    except GradDivError:
        raise
    except (SQLAlchemyError, OptunaError, ImportError, ValueError) as error:
        # the error of the database itself, such as a full disk, is behind the one of Optuna
        cause = error.__cause__ if isinstance(error.__cause__, SQLAlchemyError) else error
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        raise GradDivError(f"cannot use the storage {hidden(url)!r}: {hidden(reason)}") from None


def write(results: Sequence[Result], judge: Judge, directory: Path) -> None:
    """Write the results as tuning.csv, and as a figure of accuracy against lambda: dotted lines are clean ones."""
    from graddiv.report.output import drawing, save
    from graddiv.report.style import DOTTED, SPARE, Sheet, plot

    with drawing():
        sheet = Sheet(1, 1, 5.0, 3.4)
        names = sorted({r.regularizer for r in results}, key=[*REGULARIZERS, *(r.regularizer for r in results)].index)
        for name, look in zip(names, cycle(SPARE)):
            found = sorted(r[1:4] for r in results if r.regularizer == name and r.robust is not None)
            lam, clean, robust = zip(*found, strict=True) if found else ((), (), ())
            sheet.entry(look, f"R_{name}")
            plot(sheet.axes[0], look, lam, robust)
            plot(sheet.axes[0], look, lam, clean, linestyle=DOTTED)
        attack = f"EOT-PGD, n = {judge.n}, m = {judge.m}, epsilon = {judge.epsilon:.3g} (dotted: clean)"
        sheet.axes[0].set(xscale="log", xlabel="lambda", ylabel="accuracy on validation data", title=attack)
        sheet.rows = list(results)
        caption = f"Accuracy on {judge.examples} validation examples under {attack}."
        figure = sheet.done(caption, name="tuning", title="Tuning", columns=Result._fields)
    save(figure, directory)
