"""Diversity of input gradients: how concentrated they are, what that means for an attack, and how to spread them."""

from graddiv.diversity.concentration import BoundReport, loss_increase, theorem1
from graddiv.diversity.graddiv import GradDiv, ramp
from graddiv.diversity.gradients import Directions, MeanGradient, directions, input_gradient, mean_gradient
from graddiv.diversity.regularizers import REGULARIZERS

__all__ = [
    "REGULARIZERS", "BoundReport", "Directions", "GradDiv", "MeanGradient", "directions", "input_gradient",
    "loss_increase", "mean_gradient", "ramp", "theorem1",
]  # fmt: skip
