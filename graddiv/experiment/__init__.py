"""Experiments as typed settings; read, named and estimated without torch, which `training_set` and `build` import."""

from graddiv.experiment.cost import duration, forward_work
from graddiv.experiment.defense import Defense
from graddiv.experiment.defenses import DEFENSES
from graddiv.experiment.mistakes import parse
from graddiv.experiment.schema import AdversarySection, Experiment, GradDivSection, StageSection, StartSection
from graddiv.experiment.speed import TWO_CORES, listed_speed

__all__ = [
    "DEFENSES",
    "TWO_CORES",
    "AdversarySection",
    "Defense",
    "Experiment",
    "GradDivSection",
    "StageSection",
    "StartSection",
    "duration",
    "forward_work",
    "listed_speed",
    "parse",
]
