"""Cross-validation of lambda and the regularizer, on validation data only.  In the paper: docs/equations.md."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle, product
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

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

__all__ = ["Judge", "Result", "Search", "own_regularizer", "tune", "write"]

BATCH = 250  #: Examples that are attacked at once.
SAMPLERS = ("grid", "tpe", "random")
OWNED = ".trial"  #: The lock of a trial's run directory: from before its training until its result is known.
VALUES = ("clean", "robust", "rho")  #: Attributes of a finished trial.


@dataclass(frozen=True)
class Search:
    """The points to try: every pair of a lambda and a regularizer, or `trials` points between the extreme lambdas."""

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
            if not inf > lam > 0:
                raise GradDivError(f"a lambda is {lam}, expected a number above 0")

    @property
    def size(self) -> int:
        return len(self.regularizers) * len(self.lambdas) if self.sampler == "grid" else self.trials


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
    data_root: str | Path | None = None, device: str | None = None, listener: Callable[[str], Listener] | None = None,
) -> list[Result]:  # fmt: skip
    """Train and judge every trial that is left, each in a run directory below `out`; return all results, best first.

    Killed at any moment, the same call resumes, also the trial that was being trained.  `storage` is the URL of an
    Optuna study from which several machines take trials; by default it is a file in `out`.
    """
    own_regularizer(experiment)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise GradDivError(
            "graddiv tune was started by torchrun: start it several times with one --storage instead, "
            "and each process takes trials of its own"
        )
    data = load(experiment.data.source, "validation", data_root)
    if judge.examples > len(data):
        raise GradDivError(f"examples is {judge.examples}, but there are only {len(data)} validation examples")
    data = data.take(slice(0, judge.examples))
    store.make_directory(out)
    queue = Queue(experiment, out, search, judge, storage)
    while True:
        with queue.next() as trial:
            if trial is None:
                return queue.results()
            (regularizer, lam), directory = point_of(trial), queue.directory(trial)
            tried = experiment.with_graddiv(regularizer=regularizer, lam=lam)
            listeners = [listener(directory.name)] if listener is not None else []
            try:
                F = train(tried, directory, data_root=data_root, device=device, listeners=listeners)
            except DivergedError as error:
                queue.tell(trial, diverged=str(error))
                continue
            clean, robust = judge(F, data, experiment.seed)
            queue.tell(trial, clean=clean, robust=robust, rho=Run(directory).epochs[-1].get("rho"))


class Queue:
    """The trials as an Optuna study, which several processes may share.

    A trial is RUNNING from its choice on.  It is abandoned if nobody holds the lock of its run directory.  One that
    diverged is PRUNED, and one that FAILed counts as never chosen.
    """

    def __init__(self, experiment: Experiment, out: Path, search: Search, judge: Judge, storage: str | None) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.out, self.search, self.shared = out, search, storage is not None
        self.url, name = storage or f"sqlite:///{(out / 'study.db').resolve()}", _study_name(experiment, search, judge)
        with self._alone():
            # connections are closed after use: Python 3.13 warns of open ones
            database = optuna.storages.RDBStorage(self.url, engine_kwargs={"poolclass": NullPool})
            self.study = optuna.create_study(
                storage=database, study_name=name, direction="maximize", load_if_exists=True
            )
            # another seed each time: the same one would suggest the same points to every process
            seed = fold(len(self.study.trials), *search.regularizers) % 2**32
        sampler = optuna.samplers.TPESampler if search.sampler == "tpe" else optuna.samplers.RandomSampler
        self.study.sampler = sampler(seed=seed)

    @contextmanager
    def next(self) -> Iterator[Trial | None]:
        """A trial that is reserved for this process as long as the context lasts."""
        with ExitStack() as stack:
            with self._alone():  # a trial that runs and that nobody owns would be taken for abandoned
                trial = self._abandoned() or self._new()
                if trial is not None:
                    store.make_directory(self.directory(trial))
                    stack.enter_context(store.file_lock(self.directory(trial) / OWNED))
            yield trial

    def tell(self, trial: Trial, **values: float | str | None) -> None:
        """Store the values of a trial; one without the value `robust` diverged, and is not repeated."""
        with _storage_errors(self.url):
            for key, value in values.items():
                trial.set_user_attr(key, value)
            ended = {"values": values["robust"]} if "robust" in values else {"state": TrialState.PRUNED}
            self.study.tell(trial, **ended)

    def results(self) -> list[Result]:
        """One for each point that was tried to its end, the best first."""
        ended = {point_of(trial): trial.user_attrs for trial in self._trials("COMPLETE", "PRUNED")}
        return sorted((Result(*point, *map(values.get, VALUES)) for point, values in ended.items()), key=_rank)

    def directory(self, trial: Trial | FrozenTrial) -> Path:
        regularizer, lam = point_of(trial)
        return self.out / f"{regularizer}-{lam:.6g}"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other process is choosing a trial in this directory."""
        with store.file_lock(self.out / ".queue", wait=True), _storage_errors(self.url):
            yield

    def _trials(self, *states: str) -> list[FrozenTrial]:
        """The trials in these states whose point is known: a process may die before it stores it."""
        trials = self.study.get_trials(deepcopy=False)
        return [trial for trial in trials if trial.state.name in states and None not in point_of(trial)]

    def _abandoned(self) -> Trial | None:
        """A trial of a process that died; one without a directory here is another machine's, if there are others."""
        for trial in self._trials("RUNNING"):
            directory = self.directory(trial)
            if (self.shared and not directory.exists()) or store.is_locked(directory, OWNED):
                continue
            if self.study.trials[trial.number].state.name == "RUNNING":  # it may have ended in the meantime
                return Trial(self.study, trial._trial_id)
        return None

    def _new(self) -> Trial | None:
        """A trial that nobody has begun, if one is left."""
        search, begun = self.search, ("RUNNING", "COMPLETE", "PRUNED")
        if search.sampler != "grid":
            lam = FloatDistribution(min(search.lambdas), max(search.lambdas), log=True)
            space = {"regularizer": CategoricalDistribution(search.regularizers), "lam": lam}
            return self.study.ask(space) if len(self._trials(*begun)) < search.trials else None
        while True:
            taken = [point_of(trial) for trial in self._trials(*begun)]
            left = [point for point in product(search.regularizers, search.lambdas) if point not in taken]
            if not left:
                return None
            self.study.enqueue_trial({}, user_attrs={"regularizer": left[0][0], "lam": left[0][1]})
            trial = self.study.ask()
            if [t.number for t in self._trials(*begun) if point_of(t) == point_of(trial)][:1] == [trial.number]:
                return trial
            self.study.tell(trial, state=TrialState.FAIL)  # another machine was faster


def _rank(r: Result) -> tuple[object, ...]:
    """The best first; equals by their settings, since the order in which trials ran may change after a kill."""
    return r.robust is None, -(r.robust or 0.0), -(r.clean or 0.0), r.lam, r.regularizer


def point_of(trial: Trial | FrozenTrial) -> tuple[Any, Any]:
    """Regularizer and lambda: a sampler keeps them as parameters, a grid as attributes."""
    known = {**trial.user_attrs, **trial.params}
    return known.get("regularizer"), known.get("lam")


def _study_name(experiment: Experiment, search: Search, judge: Judge) -> str:
    """Settings under which accuracies compare share a study; a grid may grow, the bounds of a sampler may not."""
    space = "" if search.sampler == "grid" else repr((search.sampler, search.regularizers, search.lambdas))
    settings = json.dumps([experiment.with_graddiv(regularizer="mean", lam=1.0).digest, asdict(judge), space])
    return f"{experiment.data.name}-{experiment.method}-{store.digest(settings)[:10]}"


@contextmanager
def _storage_errors(url: str) -> Iterator[None]:
    """Turn what a storage raises into an error that names it, without the password."""
    try:
        yield
    except GradDivError:
        raise
    except (SQLAlchemyError, optuna.exceptions.OptunaError, ImportError, ValueError) as error:
        # the error of the database itself, such as a full disk, is behind the one of Optuna
        cause = error.__cause__ if isinstance(error.__cause__, SQLAlchemyError) else error
        text = f"cannot use the storage {url!r}: {(str(cause).splitlines() or [type(cause).__name__])[0]}"
        # postgresql://user:password@host/name
        raise GradDivError(re.sub(r"(://[^/\s:@]*):[^/\s]*@", r"\1:***@", text)) from None


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
