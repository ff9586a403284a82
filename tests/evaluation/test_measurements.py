"""The registry of measurements: what it promises of each entry."""

from pathlib import Path

import pytest

from graddiv.errors import GradDivError
from graddiv.evaluation.batches import run
from graddiv.evaluation.measurements import MEASUREMENTS, MeasurementSettings, measurement
from graddiv.records import MeasurementRecord
from graddiv.records.record import KINDS
from tests.evaluation.common import small_target

SETTINGS = MeasurementSettings(epsilon=8 / 255, gradients=3, n=2, m=1, models=2, grid=3, draws=5)


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_an_entry_keeps_its_promises(name: str, tmp_path: Path) -> None:
    target, entry = small_target(b=2, batch=2), measurement(name)
    jobs = entry.jobs(target, tmp_path, SETTINGS)
    assert [job.path.name for job in jobs if job.path] == entry.files(SETTINGS, target.pixels)
    for job, record in zip(jobs, run(jobs), strict=True):
        assert type(record) is entry.record is job.record
        assert job.path is not None
        assert type(MeasurementRecord.load(job.path)) is entry.record
        assert any(character.isdigit() for character in record.summary) or record.kind in record.summary
    assert {path.name for path in tmp_path.iterdir()} == set(entry.files(SETTINGS, target.pixels))


def test_every_kind_of_measurement_is_there_once() -> None:
    measured = [known for known in KINDS.values() if issubclass(known, MeasurementRecord)]
    kinds = [known for known in measured if known.__module__ != "graddiv.records.audits"]
    assert sorted(kinds, key=str) == sorted((entry.record for entry in MEASUREMENTS.values()), key=str)


def test_file_names_tell_measurements_apart() -> None:
    files = [name for entry in MEASUREMENTS.values() for name in entry.files(SETTINGS, 64)]
    assert len(set(files)) == len(files)
    elsewhere = MeasurementSettings(epsilon=0.3)
    both = [name for name in files if name in {n for e in MEASUREMENTS.values() for n in e.files(elsewhere, 64)}]
    assert both == ["concentration.record", "gradients.record", "ensemble-size.record", "certificate.record"], (
        "no radius is theirs"
    )


def test_an_unknown_measurement_is_told_with_the_nearest_one() -> None:
    with pytest.raises(GradDivError, match="unknown measurement 'rotations', did you mean 'rotation'"):
        measurement("rotations")
