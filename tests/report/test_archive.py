import shutil
import zipfile
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from graddiv.attacks import PGD
from graddiv.errors import GradDivError
from graddiv.evaluation import attack_all, cells, target_of
from graddiv.evaluation.run import Session
from graddiv.recipes import recipe
from graddiv.records import AttackRecord
from graddiv.report.page import Choices, plan_for, render
from graddiv.report.plan import PACKED, RUNS, Plan, archive, copy_run
from graddiv.runs import Run
from graddiv.training import train

SMALL = ("network.width=0.05", "training.epochs=1", "training.batch=8", "training.decays=[]", "data.examples=8")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A tiny trained run that was attacked."""
    experiment, found = recipe("mnist-mini/adv-bnn", "demo", SMALL), Run(tmp_path_factory.mktemp("runs") / "run")
    F = train(experiment, found.path)
    target = target_of(experiment, F, examples=5, batch=5)
    attack_all(target, cells([PGD(m=2)], [0.2], n=2), Session(found.records))
    return found


@pytest.mark.parametrize("networks", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_report_drawn_from_its_archive_has_the_same_numbers(run: Run, networks: bool, tmp_path: Path) -> None:
    plan = plan_for([run.path], Choices())
    render(plan, tmp_path / "before")
    render(archive(plan, tmp_path / "results", networks=networks), tmp_path / "results")
    assert bool(list(tmp_path.glob("results/**/*.safetensors"))) == networks
    moved = tmp_path / "moved"
    (tmp_path / "results").rename(moved)
    shutil.rmtree(moved / RUNS)
    render(Plan.load(moved), tmp_path / "after")
    tables = sorted(path.name for path in (tmp_path / "before").glob("*.csv"))
    assert tables
    for name in tables:
        assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "after" / name).read_bytes()


def test_images_and_the_optimizer_are_left_out(run: Run, tmp_path: Path) -> None:
    plan = archive(plan_for([run.path], Choices()), tmp_path)
    copy = Run(Path(next(iter(plan.runs.values())).path))
    records = [AttackRecord.load(path) for path in copy.records.glob("pgd*.record")]
    assert records
    assert all(len(record.images) == 0 for record in records)
    assert copy.last_checkpoint.stat().st_size < run.last_checkpoint.stat().st_size / 2
    for name, tensor in run.network().state_dict().items():
        assert torch.equal(copy.network().state_dict()[name], tensor)


def test_a_copy_that_was_killed_is_not_finished(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*arguments: object) -> NoReturn:
        raise KeyboardInterrupt

    target = Run(tmp_path / "copy")
    monkeypatch.setattr("graddiv.report.plan._copy_network", killed)
    with pytest.raises(KeyboardInterrupt):
        copy_run(run, target)
    assert not target.finished
    monkeypatch.undo()
    copy_run(run, target)
    assert target.finished
    target.network()


def test_networks_of_some_runs_are_kept_and_what_has_none_is_archived_again(run: Run, tmp_path: Path) -> None:
    plan = plan_for([run.path], Choices())
    (key,) = plan.runs
    for wanted, there in (([key], True), (["another"], False)):
        copied = archive(plan, tmp_path / str(there), networks=wanted)
        assert Run(Path(copied.runs[key].path)).last_checkpoint.exists() == there
    again = archive(copied, tmp_path / "again")
    assert not Run(Path(again.runs[key].path)).last_checkpoint.exists()


def test_equal_runs_give_equal_archives_and_files_beside_what_is_unpacked_stay(run: Run, tmp_path: Path) -> None:
    plan = plan_for([run.path], Choices())
    for name in ("one", "other"):
        archive(plan, tmp_path / name).save(tmp_path / name)
    packed = (tmp_path / "one" / PACKED).read_bytes()
    assert packed == (tmp_path / "other" / PACKED).read_bytes()
    ours, record = tmp_path / "one" / RUNS / "mine", next((tmp_path / "one" / RUNS).rglob("clean*.record"))
    ours.touch()
    record.write_bytes(b"mine, too")
    Plan.load(tmp_path / "one")
    assert record.read_bytes() == b"mine, too", "the archive is unpacked once"
    archive(plan, tmp_path / "third", networks=False)
    shutil.copy(tmp_path / "third" / PACKED, tmp_path / "one" / PACKED)
    Plan.load(tmp_path / "one")
    AttackRecord.load(record)
    assert ours.exists()


@pytest.mark.parametrize(("content", "told"), [(b"PK damaged", "as an archive of runs"), (None, "is no file of a run")])
def test_an_archive_that_is_none_or_reaches_elsewhere_is_refused(
    run: Run, tmp_path: Path, content: bytes | None, told: str
) -> None:
    archive(plan_for([run.path], Choices()), tmp_path / "kept").save(tmp_path / "kept")
    packed = tmp_path / "kept" / PACKED
    if content is not None:
        packed.write_bytes(content)
    else:
        with zipfile.ZipFile(packed, "a") as file:
            file.writestr("../../elsewhere", "")
    with pytest.raises(GradDivError, match=told):
        Plan.load(tmp_path / "kept")
    assert not (tmp_path / "elsewhere").exists()
