"""Training: objectives, schedules and a loop that never loses work."""

from graddiv.training.loop import train
from graddiv.training.stages import objective_of

__all__ = ["objective_of", "train"]
