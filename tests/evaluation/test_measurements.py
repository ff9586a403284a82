"""The registry of measurements: what it promises of each entry."""

from pathlib import Path

import pytest

from graddiv.errors import GradDivError
from graddiv.evaluation.budget import Budget
from graddiv.evaluation.measurements import MEASUREMENTS
from graddiv.evaluation.run import Session
from graddiv.records import ExplainedRecord, JudgementRecord, MeasurementRecord, TrajectoryRecord
from graddiv.records.record import KINDS
from tests.evaluation.common import small_target

EPSILON = 8 / 255
BUDGET = Budget(gradients=3, curve_n=(2,), m=1, models=2, grid=3, draws=5)


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_an_entry_keeps_its_promises(name: str, tmp_path: Path) -> None:
    target, entry = small_target(b=2, batch=2), MEASUREMENTS[name]
    jobs = entry.jobs(target, EPSILON, BUDGET)
    assert [job.file for job in jobs] == entry.files(EPSILON, target.pixels)
    for job, record in zip(jobs, Session(tmp_path).run(jobs), strict=True):
        assert type(record) is entry.record is job.record
        assert type(MeasurementRecord.load(tmp_path / job.file)) is entry.record
        assert any(character.isdigit() for character in record.summary) or record.kind in record.summary
    assert {path.name for path in tmp_path.iterdir()} == set(entry.files(EPSILON, target.pixels))


def test_every_kind_of_measurement_is_there_once() -> None:
    of_audits = (ExplainedRecord, JudgementRecord, TrajectoryRecord)
    kinds = [known for known in KINDS.values() if issubclass(known, MeasurementRecord) and known not in of_audits]
    assert sorted(kinds, key=str) == sorted((entry.record for entry in MEASUREMENTS.values()), key=str)


def test_file_names_tell_measurements_apart() -> None:
    files = [name for entry in MEASUREMENTS.values() for name in entry.files(EPSILON, 64)]
    assert len(set(files)) == len(files)
    both = [name for name in files if name in {n for e in MEASUREMENTS.values() for n in e.files(0.3, 64)}]
    without_radius = ["concentration", "gradients", "ensemble-size", "certificate", "contrast"]
    assert both == [f"{name}.record" for name in without_radius]


def test_an_unknown_measurement_is_told_with_the_nearest_one() -> None:
    with pytest.raises(GradDivError, match="unknown measurement 'rotations', did you mean 'rotation'"):
        MEASUREMENTS["rotations"]
