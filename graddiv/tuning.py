"""Cross-validation of lambda and of the regularizer: under EOT-PGD on the validation split, never on test data."""

import csv
import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from graddiv import store
from graddiv.attacks import EOT, PGD
from graddiv.data import Dataset, load
from graddiv.errors import GradDivError, unknown
from graddiv.evaluation.prediction import predict
from graddiv.experiment import Experiment
from graddiv.networks import RandomizedNetwork
from graddiv.performance import channels_last
from graddiv.recipes import LAMBDAS
from graddiv.registries import REGULARIZERS
from graddiv.runs import Run
from graddiv.seeding import fold
from graddiv.training import train
from graddiv.training.loop import DivergedError, Listener

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, Trial

MOST = 1000.0
"""No lambda is as large."""
BATCH = 250
OWNED = ".trial"
"""The lock of a run directory's trial: from before its training until its result is known."""

SAMPLERS = ("grid", "tpe", "random")


@dataclass(frozen=True)
class Search:
    """What is tried: every pair of a lambda and a regularizer, or `trials` points between the extreme lambdas."""

    regularizers: tuple[str, ...]
    lambdas: tuple[float, ...] = LAMBDAS
    sampler: str = "grid"
    trials: int = 20

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise unknown("sampler", self.sampler, SAMPLERS)
        for name in self.regularizers:
            if name not in REGULARIZERS:
                raise unknown("regularizer", name, REGULARIZERS)
        if not self.regularizers or not self.lambdas or self.trials < 1:
            raise GradDivError("there is nothing to try: expected a regularizer, a lambda and at least one trial")
        for lam in self.lambdas:
            if not MOST > lam > 0:
                raise GradDivError(f"a lambda is {lam}, expected a number above 0 and below {MOST:.0f}")

    @property
    def size(self) -> int:
        """How many trials that makes."""
        return len(self.regularizers) * len(self.lambdas) if self.sampler == "grid" else self.trials


@dataclass(frozen=True)
class Judge:
    """Robust accuracy under EOT-PGD with n sample models at each of m steps, on the first validation examples."""

    epsilon: float
    n: int = 10
    m: int = 20
    examples: int = 500

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0):
            raise GradDivError(f"epsilon is {self.epsilon}, expected a number of at least 0")
        for name in ("n", "m", "examples"):
            if (value := getattr(self, name)) < 1:
                raise GradDivError(f"{name} is {value}, expected at least 1")

    def __call__(self, F: RandomizedNetwork, data: Dataset, seed: int) -> tuple[float, float]:
        """The shares of the examples, clean and attacked, that the ensemble of fresh sample models gets right."""
        clean = robust = 0
        for start in range(0, len(data), BATCH):
            rows = slice(start, start + BATCH)
            x, y = (t.to(F.device) for t in data.batch(rows))
            x, ids = channels_last(x), data.ids[rows].to(F.device)
            view = EOT(F, self.n, seed=fold(seed, "tuning", "attack"))
            x_adv = PGD(m=self.m)(view, x, y, self.epsilon, ids=ids)
            right = [predict(F, z, seed=fold(seed, "tuning", "ensemble")).label == y for z in (x, x_adv)]
            clean, robust = clean + int(right[0].sum()), robust + int(right[1].sum())
        return clean / len(data), robust / len(data)


class Result(NamedTuple):
    """One trial: accuracies on validation data; None if training diverged."""

    regularizer: str
    lam: float
    clean: float | None
    robust: float | None
    rho: float | None
    """Concentration of the gradients on the training probe at the end."""


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
    being trained is taken up where it stood.  `listener` makes one for the trial of a name.
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
    queue = _Queue(experiment, out, search, judge, storage)
    while True:
        with queue.next() as trial:
            if trial is None:
                return queue.results()
            regularizer, lam = trial.params["regularizer"], trial.params["lam"]
            name = _name(regularizer, lam)
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


def _name(regularizer: str, lam: float) -> str:
    return f"{regularizer}-{lam:.6g}"


class _Queue:
    """The trials as an Optuna study; a point is (regularizer, lambda)."""

    def __init__(self, experiment: Experiment, out: Path, search: Search, judge: Judge, storage: str | None) -> None:
        self.out, self.search, self.alone = out, search, storage is None
        with self._alone_in_directory():
            self.study = _study(
                storage or f"sqlite:///{(out / 'study.db').resolve()}", _study_name(experiment, search, judge), search
            )
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
            with self._alone_in_directory():  # a trial that runs and that nobody owns would be taken for abandoned
                self._take_up_abandoned()
                trial = self._ask()
                if trial is not None:
                    directory = self.out / _name(trial.params["regularizer"], trial.params["lam"])
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
        for key in ("clean", "robust", "rho"):
            trial.set_user_attr(key, getattr(result, key))
        self.study.tell(trial, result.robust)

    def diverged(self, trial: "Trial", reason: str) -> None:
        """The trial has no result and would have none the next time."""
        from optuna.trial import TrialState

        trial.set_user_attr("diverged", reason)
        self.study.tell(trial, state=TrialState.FAIL)

    def results(self) -> list[Result]:
        """One for each point that was tried to its end, the best first."""
        found = {}
        for trial in self._trials():
            if trial.state.is_finished() and (point := _point(trial)) is not None:
                found[point] = Result(*point, *(trial.user_attrs.get(key) for key in ("clean", "robust", "rho")))
        return sorted(found.values(), key=lambda r: (r.robust is None, -(r.robust or 0.0), -(r.clean or 0.0), r.lam))

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
            directory = self.out / _name(*point) if point is not None else None
            here = directory is not None and directory.exists()
            if (here or self.alone) and not (directory is not None and here and store.is_locked(directory, OWNED)):
                now = self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
                ended = now.state is not TrialState.FAIL or "diverged" in now.user_attrs  # since the list was read
                if point is not None and not ended:
                    self._enqueue(point)

    def _enqueue(self, point: tuple[str, float]) -> None:
        planned = dict(zip(("regularizer", "lam"), point, strict=True))
        self.study.enqueue_trial(planned, user_attrs=planned)


def _point(trial: "FrozenTrial") -> tuple[str, float] | None:
    known = {**trial.user_attrs, **trial.params}
    return (known["regularizer"], known["lam"]) if "lam" in known and "regularizer" in known else None


def _study(url: str, name: str, search: Search) -> "Study":
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(storage=url, study_name=name, direction="maximize", load_if_exists=True)
    except (SQLAlchemyError, ImportError, optuna.exceptions.StorageInternalError) as error:
        raise GradDivError(f"cannot use the storage {url!r}: {str(error).splitlines()[0]}") from None
    # another seed each time: the same one would suggest the same points to every process
    seed = fold(len(study.trials), *search.regularizers) % 2**32
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    study.sampler = samplers.get(search.sampler, optuna.samplers.RandomSampler)(seed=seed)
    return study


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


def write_table(results: Sequence[Result], path: Path) -> None:
    """Write the results as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Result._fields)
    writer.writerows(results)
    store.write(path, text.getvalue().encode())


LOOKS = (("#0072B2", "o"), ("#E69F00", "s"), ("#009E73", "^"), ("#D55E00", "D"), ("#CC79A7", "v"))
"""Colours (Okabe and Ito's, which the colour-blind tell apart) and markers, in the order of the regularizers."""


def plot(results: Sequence[Result], judge: Judge, stem: Path) -> None:
    """Draw accuracy against lambda as stem.svg and stem.png: solid lines attacked, dotted ones clean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 3.4), layout="constrained")
    axes = figure.add_subplot()
    tried = {r.regularizer for r in results}
    for name, (colour, marker) in zip([*REGULARIZERS, *sorted(tried - REGULARIZERS.keys())], cycle(LOOKS)):
        if name not in tried:
            continue
        found = sorted((r.lam, r.robust, r.clean) for r in results if r.regularizer == name and r.robust is not None)
        lam, robust, clean = zip(*found, strict=True) if found else ((), (), ())
        style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4}
        axes.plot(lam, robust, label=f"R_{name}", **style)
        axes.plot(lam, clean, linestyle=":", **style)
    axes.set_xscale("log")
    axes.set_xlabel("$\\lambda$")
    axes.set_ylabel("accuracy on validation data")
    axes.set_title(
        f"EOT-PGD, n = {judge.n}, m = {judge.m}, $\\epsilon$ = {judge.epsilon:.3g} (dotted: clean)", fontsize=9
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    for kind in ("svg", "png"):
        content = io.BytesIO()
        figure.savefig(content, format=kind, dpi=150)
        store.write(stem.with_suffix(f".{kind}"), content.getvalue())
