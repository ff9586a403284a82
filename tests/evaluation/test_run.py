import itertools
import os
import random
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from graddiv import store
from graddiv.distributed import ALONE, Process, Value, join_processes
from graddiv.errors import GradDivError
from graddiv.evaluation import attack_all
from graddiv.evaluation.jobs import concentration_job
from graddiv.evaluation.robustness import attack_job
from graddiv.evaluation.run import IN_MEMORY, Job, Session, _Files
from graddiv.records import Record
from tests.dying import die_at
from tests.evaluation.common import assert_same, contents, forked, small_cells, small_target, wait_or_kill
from tests.fake_records import COMMON


class CountRecord(Record, kind="count"):
    """A record of nothing but its examples."""

    of: list[int]
    alpha: float | None = None


def counted(start: int, stop: int) -> dict[str, np.ndarray]:
    return {"ids": np.arange(start, stop), "labels": np.zeros(stop - start, np.int64)}


def counting_job(
    seen: list[slice], examples: int = 7, batch: int = 3, file: str = "a.record", **settings: object
) -> Job[CountRecord]:
    def compute(rows: slice, advance: object) -> dict[str, np.ndarray]:
        seen.append(rows)
        return counted(rows.start, rows.stop)

    description = {"kind": "count", "of": (1, 2), **COMMON, "examples": examples, **settings}
    return Job(CountRecord, "count", description, file, examples, batch, 1.0, compute)


def test_batches_cover_every_example_once_with_and_without_a_file(tmp_path: Path) -> None:
    for session in (IN_MEMORY, Session(tmp_path)):
        [record] = session.run([counting_job([])])
        assert record.ids.tolist() == list(range(7))
        assert record.of == [1, 2], "as JSON has it, wherever it comes from"


def test_a_finished_record_is_not_made_again(tmp_path: Path) -> None:
    Session(tmp_path).run([counting_job([])])
    seen: list[slice] = []
    Session(tmp_path).run([counting_job(seen)])
    assert seen == []
    assert list(contents(tmp_path)) == ["a.record"], "no parts are left"


@pytest.mark.parametrize(("batch", "written"), [(7, 1), (3, 4)])
def test_each_record_is_written_once_and_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, written: int
) -> None:
    """Batches that are not the last one of a record are files of their own, which nobody reads."""
    calls: list[str] = []
    for name in ("read_arrays", "write_arrays"):
        original = getattr(store, name)
        monkeypatch.setattr(store, name, lambda *a, name=name, original=original: calls.append(name) or original(*a))
    made = Session(tmp_path).run([counting_job([], batch=batch)])
    assert calls == ["write_arrays"] * written
    calls.clear()
    found = Session(tmp_path).run([counting_job([], batch=batch)])
    assert calls == ["read_arrays"]
    assert_same(found, made)


def test_only_missing_batches_are_made(tmp_path: Path) -> None:
    job = counting_job([])
    _Files(job, tmp_path).keep(1, {**counted(3, 6), "ids": np.array([30, 40, 50])})
    seen: list[slice] = []
    [record] = Session(tmp_path).run([counting_job(seen)])
    assert record.ids.tolist() == [0, 1, 2, 30, 40, 50, 6]
    assert [rows.start for rows in seen] == [0, 6]


@pytest.mark.parametrize("finished", [True, False])
def test_another_evaluation_in_the_same_place_is_refused_with_the_key(tmp_path: Path, finished: bool) -> None:
    job = counting_job([], alpha=0.1)
    if finished:
        Session(tmp_path).run([job])
    else:
        _Files(job, tmp_path).keep(0, counted(0, 3))
    with pytest.raises(GradDivError, match=r"a\.record was made with alpha = 0\.1, now it is 0\.2"):
        Session(tmp_path).run([counting_job([], alpha=0.2)])


def test_parts_left_by_a_kill_after_the_record_was_written_are_removed(tmp_path: Path) -> None:
    job = counting_job([])
    Session(tmp_path).run([job])
    _Files(job, tmp_path).keep(0, counted(0, 3))
    Session(tmp_path).run([job])
    assert list(contents(tmp_path)) == ["a.record"]


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    job = counting_job([])
    _Files(job, tmp_path).keep(0, counted(0, 3))
    part = tmp_path / "a.parts" / "00000"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(GradDivError, match="00000 is damaged"):
        Session(tmp_path).run([job])


def test_what_a_batch_lacks_is_told_before_a_record_is_written(tmp_path: Path) -> None:
    job = replace(counting_job([]), compute=lambda rows, advance: {"ids": np.arange(7)[rows]})
    with pytest.raises(GradDivError, match=r"a\.record lacks the array 'labels'"):
        Session(tmp_path).run([job])
    assert not (tmp_path / "a.record").exists()


def test_nothing_to_evaluate_is_an_error() -> None:
    with pytest.raises(GradDivError, match="0 examples in batches of 3"):
        counting_job([], examples=0)
    with pytest.raises(GradDivError, match="7 examples in batches of 0"):
        counting_job([], batch=0)


def test_two_evaluations_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GradDivError, match=r"both be written to a\.record"):
        Session(tmp_path).run([counting_job([]), counting_job([], alpha=1.0)])


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    def work() -> None:
        with pytest.raises(GradDivError, match="is being written by"), Session.open(tmp_path):
            pass

    with Session.open(tmp_path):
        assert wait_or_kill(forked(work))


def test_progress_counts_what_is_left_and_never_goes_back(tmp_path: Path) -> None:
    target, wanted = small_target(), small_cells()
    attack_all(target, wanted[:2], Session(tmp_path))
    heard: list[tuple[float, float, str]] = []
    attack_all(target, wanted, Session(tmp_path, progress=lambda *news: heard.append(news)))
    totals = {total for _, total, _ in heard}
    left = sum(cell.work(target) for cell in wanted[2:]) * 4  # batches
    assert totals == {left}
    assert [done for done, _, _ in heard] == sorted(done for done, _, _ in heard)
    assert heard[-1][0] == pytest.approx(left)
    assert heard[-1][2] == "EOT-PGD"


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    target, wanted = small_target(), small_cells()[:3]

    def work(directory: Path) -> None:
        with Session.open(directory) as session:
            session.run([*(attack_job(target, cell) for cell in wanted), concentration_job(target, n=3)])

    work(tmp_path / "whole")
    rng, kills, longest = random.Random(0), 0, 0.02
    while not wait_or_kill(forked(lambda: work(tmp_path / "cut")), rng.uniform(0, longest)):
        kills += 1
        longest *= 1.2  # however slow this machine is, it comes to an end
    assert kills > 1, "it was never interrupted"
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_killed_at_every_file_operation_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    target, wanted = small_target(), small_cells()[:2]

    def work(directory: Path) -> None:
        with Session.open(directory) as session:
            attack_all(target, wanted, session)

    def fatal(directory: Path, number: int) -> None:
        die_at(number)
        work(directory)

    work(tmp_path / "whole")
    for number in itertools.count(1):
        directory = tmp_path / f"cut-{number}"
        _, status = os.waitpid(forked(partial(fatal, directory, number)), 0)
        if status == 0:
            break
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        assert wait_or_kill(forked(partial(work, directory)))
        assert contents(directory) == contents(tmp_path / "whole")
    print(f"killed before each of {number - 1} operations")
    assert number > 30


def test_two_processes_make_what_one_makes(tmp_path: Path) -> None:
    target, wanted = small_target(b=11), small_cells()[:3]
    alone = attack_all(target, wanted, Session(tmp_path / "one"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def work(rank: int) -> None:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with join_processes("cpu") as process, Session.open(tmp_path / "two", process) as session:
            assert_same(attack_all(target, wanted, session), alone)

    children = [forked(lambda rank=rank: work(rank)) for rank in range(2)]  # type: ignore[misc]
    assert all(wait_or_kill(child) for child in children)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_without_a_shared_directory_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lonely(Process):
        def broadcast(self, value: Value) -> Value:
            return value

        def wait(self) -> None:
            pass

    monkeypatch.setattr("graddiv.evaluation.run.PATIENCE", 0.2)
    job = counting_job([])
    with pytest.raises(GradDivError, match=r"batch 1 of .*a\.record and 0 others are missing .* all processes share"):
        Session(tmp_path, Lonely(0, 2, ALONE.device)).run([job])


def test_work_is_dealt_out_over_all_jobs(tmp_path: Path) -> None:
    """Cells of a single batch are shared too: the first process takes one, the second the next."""
    everybody = threading.Barrier(2)

    class Thread(Process):
        def broadcast(self, value: Value) -> Value:
            everybody.wait(60)
            return value

        def wait(self) -> None:
            everybody.wait(60)

    def work(rank: int) -> list[int]:
        seen: list[list[slice]] = [[], [], []]
        jobs = [counting_job(seen[i], examples=2, file=f"{i}.record") for i in range(3)]
        records = Session(tmp_path, Thread(rank, 2, ALONE.device)).run(jobs)
        assert [record.ids.tolist() for record in records] == [[0, 1]] * 3
        return [len(slices) for slices in seen]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, range(2))) == [[1, 0, 1], [0, 1, 0]]
