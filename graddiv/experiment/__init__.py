"""Experiments as typed settings: read, named, estimated and built."""

from graddiv.experiment.cost import TWO_CORES, duration, forward_work, multiplications_per_second, training_seconds
from graddiv.experiment.settings import Experiment, GradDivSection, StageSection, StartSection, parse

__all__ = [
    "TWO_CORES", "Experiment", "GradDivSection", "StageSection", "StartSection", "duration", "forward_work",
    "multiplications_per_second", "parse", "training_seconds",
]  # fmt: skip
