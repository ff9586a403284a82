"""The results of evaluations, example by example, and the statistics of tables."""
# isort: skip_file
# fmt: off

from pathlib import Path

from graddiv.errors import GradDivError
from graddiv.records.intervals import Interval, Summary, html_table, summary, wilson
from graddiv.records.kinds import AttackedEnsembleRecord, AttackRecord, BoundaryRecord, CertificateRecord
from graddiv.records.kinds import ConcentrationRecord, EnsembleSizeRecord, GradientNoiseRecord, GradientsRecord
from graddiv.records.kinds import JudgementRecord, LossIncreaseRecord, MeasurementRecord, NearbyRecord
from graddiv.records.kinds import RotationRecord, TotalRecord, TrajectoryRecord, TransferRecord
from graddiv.records.mechanism import ContrastRecord, ExplainedRecord, FiltersRecord, PathRecord
from graddiv.records.record import DataIdentity, Record
from graddiv.records.statistics import ALL_TOTAL, CROSS_FITTED_TOTAL, MODE_PREFIXES, PAPER_ATTACKS, PAPER_ROWS
from graddiv.records.statistics import PAPERS_TOTAL, Flips, Row, accuracy, as_rows, by_value
from graddiv.records.statistics import cross_fitted_total, curve, flips, over_trainings, table
from graddiv.records.statistics import table_per_epsilon, total

__all__ = [
    "ALL_TOTAL", "CROSS_FITTED_TOTAL", "MODE_PREFIXES", "PAPERS_TOTAL", "PAPER_ATTACKS", "PAPER_ROWS", "AttackRecord",
    "AttackedEnsembleRecord", "BoundaryRecord", "CertificateRecord", "ConcentrationRecord", "ContrastRecord",
    "DataIdentity", "EnsembleSizeRecord", "ExplainedRecord", "FiltersRecord", "Flips",
    "GradientNoiseRecord", "GradientsRecord", "Interval", "JudgementRecord",
    "LossIncreaseRecord", "MeasurementRecord", "NearbyRecord", "PathRecord", "Record", "RotationRecord", "Row",
    "Summary", "TotalRecord", "TrajectoryRecord", "TransferRecord", "accuracy", "as_rows", "by_value",
    "cross_fitted_total", "curve", "flips", "html_table", "over_trainings", "read_all", "summary", "table",
    "table_per_epsilon", "total", "wilson",
]


def read_all(directory: Path) -> list[Record]:
    """Every finished record below a directory, in the order of their names."""
    paths = sorted(path for path in directory.rglob("*.record") if not path.name.startswith("."))
    if not paths:
        raise GradDivError(f"there are no records below {directory}: 'graddiv attack' makes them, of runs and models")
    return [Record.load(path) for path in paths]
