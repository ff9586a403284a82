import csv
from itertools import permutations
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from graddiv import store, tuning
from graddiv.errors import GradDivError
from graddiv.recipes import radius, recipe
from graddiv.training.loop import DivergedError
from graddiv.tuning import Judge, Queue, Result, Search, tune
from tests.helpers import room
from tests.training.helpers import random_data, tiny
from tests.tuned import EXPERIMENT, GRID, JUDGE, Watch


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


@pytest.mark.slow
def test_a_grid_that_is_interrupted_goes_on_and_grows(watch: Watch, tmp_path: Path) -> None:
    watch.fails = {"kappa-1": KeyboardInterrupt}
    with pytest.raises(KeyboardInterrupt):
        tune(EXPERIMENT, tmp_path, GRID, JUDGE)
    assert watch.trained == ["kappa-0.1", "kappa-1"]
    watch.trained, watch.fails = [], {"dpp-1": DivergedError}
    results = tune(EXPERIMENT, tmp_path, GRID, JUDGE)
    assert sorted(watch.trained) == ["dpp-0.1", "dpp-1", "kappa-1"]  # the finished one is not repeated
    assert {(r.regularizer, r.lam) for r in results} == {(r, lam) for r in ("kappa", "dpp") for lam in (0.1, 1.0)}
    assert results[-1] == Result("dpp", 1.0, None, None, None)
    assert [r.robust for r in results[:-1]] == sorted([r.robust for r in results[:-1]], reverse=True)
    assert all(r.clean is not None and r.rho is not None for r in results[:-1])
    assert set(watch.splits) == {"train", "validation"}  # never test
    watch.trained = []
    larger = tune(EXPERIMENT, tmp_path, Search(("kappa",), (0.1, 1.0, 3.0)), JUDGE)
    assert watch.trained == ["kappa-3"]
    assert len(larger) == 5
    assert store.read_json(tmp_path / "kappa-3" / "experiment.json")["graddiv"]["lam"] == 3.0
    other = tune(EXPERIMENT, tmp_path, Search(("kappa",), (0.1,)), Judge(epsilon=0.2, n=2, m=2, examples=6))
    assert len(other) == 1  # accuracies under another attack do not compare


def test_a_living_process_keeps_its_trial(watch: Watch, tmp_path: Path) -> None:
    watch.fails = {"kappa-0.1": KeyboardInterrupt}
    with pytest.raises(KeyboardInterrupt):
        tune(EXPERIMENT, tmp_path, Search(("kappa",), (0.1,)), JUDGE)
    with store.file_lock(tmp_path / "kappa-0.1" / tuning.OWNED):
        assert tune(EXPERIMENT, tmp_path, Search(("kappa",), (0.1,)), JUDGE) == []


@pytest.mark.parametrize("moment", ["train", "Judge.__call__"])
def test_a_trial_is_not_stolen_from_its_first_moment_to_its_last(
    moment: str, watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process looks for work before training has begun, or after it, when its lock is free again."""
    search, work, seen = Search(("kappa",), (0.1,)), attrgetter(moment)(tuning), []

    def looked_at(*arguments: Any, **rest: Any) -> Any:
        monkeypatch.setattr(f"graddiv.tuning.{moment}", work)
        seen.append(tune(EXPERIMENT, tmp_path, search, JUDGE))
        return work(*arguments, **rest)

    monkeypatch.setattr(f"graddiv.tuning.{moment}", looked_at)
    assert len(tune(EXPERIMENT, tmp_path, search, JUDGE)) == 1
    assert seen == [[]]
    assert watch.trained == ["kappa-0.1"]


def test_a_trial_that_ends_while_it_is_looked_at_is_not_repeated(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search(("kappa",), (0.1,))
    watch.fails = {"kappa-0.1": KeyboardInterrupt}
    with pytest.raises(KeyboardInterrupt):
        tune(EXPERIMENT, tmp_path, search, JUDGE)

    study = Queue(EXPERIMENT, tmp_path, search, JUDGE, None).study

    def ends(*_: object) -> bool:
        study.tell(0, 0.5)
        return False

    watch.fails = {}
    monkeypatch.setattr(store, "is_locked", ends)
    assert len(tune(EXPERIMENT, tmp_path, search, JUDGE)) == 1
    assert watch.trained == ["kappa-0.1"]


def test_machines_take_different_trials_of_a_grid(tmp_path: Path) -> None:
    url, queues = f"sqlite:///{tmp_path / 'shared.db'}", []
    for name in "ab":
        (tmp_path / name).mkdir()
        queues.append(Queue(EXPERIMENT, tmp_path / name, Search(("kappa",), (0.1, 1.0)), JUDGE, url))
    queues[0].study.enqueue_trial({}, user_attrs={"regularizer": "kappa", "lam": 0.1})  # of one that was killed
    with queues[0].next() as first, queues[1].next() as second, queues[0].next() as third:
        assert third is None
        assert first is not None
        assert second is not None
        assert [tuning.point_of(trial) for trial in (first, second)] == [("kappa", 0.1), ("kappa", 1.0)]


@pytest.mark.slow
def test_a_sampler_stays_between_the_lambdas(watch: Watch, tmp_path: Path) -> None:
    search = Search(("mean",), (0.1, 1.0), "tpe", trials=2)
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    results = tune(EXPERIMENT, tmp_path / "one", search, JUDGE, storage=url)
    assert len(results) == 2
    assert all(0.1 <= r.lam <= 1.0 and r.regularizer == "mean" for r in results)
    assert tune(EXPERIMENT, tmp_path / "two", search, JUDGE, storage=url) == results  # another machine


def test_the_judge_counts_on_both_sides() -> None:
    data = random_data("mnist", 8)
    F = EXPERIMENT.build(data).eval()
    clean, robust = Judge(epsilon=0.0, n=2, m=1)(F, data, 0)
    assert clean == robust
    assert Judge(epsilon=0.5, n=2, m=5)(F, data, 0)[1] <= clean


def test_table_and_plot(tmp_path: Path) -> None:
    results = [
        Result("dpp", 1.0, 0.9, 0.5, 0.25),
        Result("kappa", 0.1, 0.9, 0.4, None),
        Result("max", 3.0, *[None] * 3),
        Result("once-registered", 1.0, 0.9, 0.3, 0.5),
    ]
    tuning.write(results, JUDGE, tmp_path)
    rows = list(csv.DictReader((tmp_path / "tuning.csv").read_text().splitlines()))
    assert rows[0] == {"regularizer": "dpp", "lam": "1.0", "clean": "0.9", "robust": "0.5", "rho": "0.25"}
    assert rows[2]["robust"] == ""
    drawn = (tmp_path / "tuning.svg").read_text()
    assert all(f"R_{result.regularizer}" in drawn for result in results)
    assert "R_mean" not in drawn
    assert (tmp_path / "tuning.png").read_bytes().startswith(b"\x89PNG")


def test_the_radius_is_the_one_of_training() -> None:
    assert radius(recipe("mnist/adv-bnn+graddiv", "demo")) == 0.2
    assert radius(recipe("mnist/rse+graddiv", "demo")) == 0.2
    assert radius(recipe("cifar10/rse+graddiv", "paper")) == 8 / 255
    assert radius(recipe("mnist/rse+graddiv", "demo", ["scale=mine"])) == 0.3


def test_mistakes(watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        GradDivError, match=r"adv-bnn has no section graddiv, hence no lambda to tune: try adv-bnn\+gra"
    ):
        tune(tiny("mnist/adv-bnn"), tmp_path, GRID, JUDGE)
    with pytest.raises(GradDivError, match="examples is 9, but there are only 8 validation examples"):
        tune(EXPERIMENT, tmp_path, GRID, Judge(epsilon=0.1, examples=9))
    with pytest.raises(GradDivError, match="cannot use the storage 'nosql://x': Can't load plugin"):
        tune(EXPERIMENT, tmp_path, GRID, JUDGE, storage="nosql://x")
    with pytest.raises(GradDivError, match=r"unknown regularizer 'ddp', did you mean 'dpp'\?"):
        Search(("ddp",))
    with pytest.raises(GradDivError, match=r"a lambda is 0.0, expected a number above 0"):
        Search(("dpp",), (0.0, 1.0))
    with pytest.raises(GradDivError, match="unknown sampler 'gird', did you mean 'grid'"):
        Search(("dpp",), sampler="gird")
    for name in ("n", "m", "examples"):
        with pytest.raises(GradDivError, match=rf"^{name} is 0, expected a number >= 1$"):
            Judge(0.1, **{name: 0})
    for epsilon in (-0.1, float("inf"), float("nan")):
        with pytest.raises(GradDivError, match=rf"^epsilon is {epsilon}, expected a number >= 0$"):
            Judge(epsilon)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(GradDivError, match="was started by torchrun: start it several times with one --storage"):
        tune(EXPERIMENT, tmp_path, GRID, JUDGE)


@pytest.mark.parametrize(
    "url", ["redis://user:secret@localhost:6379", "mysql://user:secret@nowhere/name", "x://user:secret@h", "nonsense"]
)
def test_a_storage_that_cannot_be_used_is_named_without_its_password(url: str, watch: Watch, tmp_path: Path) -> None:
    with pytest.raises(GradDivError, match="cannot use the storage") as refused:
        tune(EXPERIMENT, tmp_path, GRID, JUDGE, storage=url)
    assert "secret" not in str(refused.value)


@pytest.mark.slow
def test_a_full_disk_is_told(watch: Watch, tmp_path: Path) -> None:
    with room(0), pytest.raises(GradDivError, match=r"cannot write .*\.queue: File too large"):
        tune(EXPERIMENT, tmp_path, GRID, JUDGE)
    tune(EXPERIMENT, tmp_path, Search(("kappa",), (0.1,)), JUDGE)
    with room(1000), pytest.raises(GradDivError, match=r"cannot use the storage 'sqlite:.*disk"):
        tune(EXPERIMENT, tmp_path, GRID, JUDGE)


def test_equals_are_ranked_by_their_settings() -> None:
    tied = [Result(name, lam, 0.9, 0.5, 0.1) for name, lam in (("mean", 0.1), ("dpp", 1.0), ("dpp", 0.1))]
    ranked = [Result("dpp", 0.1, 0.9, 0.5, 0.1), Result("mean", 0.1, 0.9, 0.5, 0.1), Result("dpp", 1.0, 0.9, 0.5, 0.1)]
    assert all(sorted(order, key=tuning._rank) == ranked for order in permutations(tied))
