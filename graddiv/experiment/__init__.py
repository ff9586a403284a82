"""Experiments as typed settings; read, named and estimated without torch, which `training_set` and `build` import."""

from graddiv.experiment.cost import TWO_CORES, duration, forward_work
from graddiv.experiment.defense import Defense
from graddiv.experiment.defenses import DEFENSES
from graddiv.experiment.mistakes import parse
from graddiv.experiment.schema import AdversarySection, Experiment, GradDivSection, StageSection, StartSection

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
    "parse",
]
