"""What evaluations found, example by example, and the statistics of tables made of it; read without torch."""

from pathlib import Path

from graddiv.errors import GradDivError
from graddiv.records.attack import AttackRecord
from graddiv.records.audits import JudgementRecord, TrajectoryRecord
from graddiv.records.elimination import TotalRecord
from graddiv.records.measurements import (
    BoundaryRecord,
    CertificateRecord,
    ConcentrationRecord,
    EnsembleSizeRecord,
    GradientNoiseRecord,
    GradientsRecord,
    LossIncreaseRecord,
    MeasurementRecord,
    NearbyRecord,
    RotationRecord,
    TransferRecord,
)
from graddiv.records.record import DataIdentity, Record
from graddiv.records.statistics import (
    Flips,
    Interval,
    Summary,
    accuracy,
    by_value,
    cross_fitted_total,
    curve,
    flips,
    over_trainings,
    summary,
    total,
    wilson,
)
from graddiv.records.tables import (
    ALL_TOTAL,
    CROSS_FITTED_TOTAL,
    MODE_PREFIXES,
    PAPER_ATTACKS,
    PAPER_ROWS,
    PAPERS_TOTAL,
    Row,
    as_rows,
    table,
    table_per_epsilon,
)

__all__ = [
    "ALL_TOTAL",
    "CROSS_FITTED_TOTAL",
    "MODE_PREFIXES",
    "PAPERS_TOTAL",
    "PAPER_ATTACKS",
    "PAPER_ROWS",
    "AttackRecord",
    "BoundaryRecord",
    "CertificateRecord",
    "ConcentrationRecord",
    "DataIdentity",
    "EnsembleSizeRecord",
    "Flips",
    "GradientNoiseRecord",
    "GradientsRecord",
    "Interval",
    "JudgementRecord",
    "LossIncreaseRecord",
    "MeasurementRecord",
    "NearbyRecord",
    "Record",
    "RotationRecord",
    "Row",
    "Summary",
    "TotalRecord",
    "TrajectoryRecord",
    "TransferRecord",
    "accuracy",
    "as_rows",
    "by_value",
    "cross_fitted_total",
    "curve",
    "flips",
    "over_trainings",
    "read_all",
    "summary",
    "table",
    "table_per_epsilon",
    "total",
    "wilson",
]


def read_all(directory: Path) -> list[Record]:
    """Every finished record below a directory, in the order of their names."""
    paths = sorted(path for path in directory.rglob("*.record") if not path.name.startswith("."))
    found = [Record.load(path) for path in paths]
    if not found:
        raise GradDivError(f"there are no records below {directory}: 'graddiv attack RUN' makes them")
    return found
