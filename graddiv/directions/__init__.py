"""Directions of input gradients: how concentrated they are, what that means for an attack, and how to spread them."""

from graddiv.directions.bounds import BoundReport, loss_increase, theorem1
from graddiv.directions.diversity import GradDiv, ramp
from graddiv.directions.gradients import Directions, MeanGradient, directions, input_gradient, mean_gradient
from graddiv.directions.regularizers import regularizer
from graddiv.registries import REGULARIZERS

__all__ = [
    "REGULARIZERS",
    "BoundReport",
    "Directions",
    "GradDiv",
    "MeanGradient",
    "directions",
    "input_gradient",
    "loss_increase",
    "mean_gradient",
    "ramp",
    "regularizer",
    "theorem1",
]
