"""The paper's figures from our records, one function each: `FIGURES[name](comparison)`."""

from graddiv.report.figures import accuracy, directions, epsilon, matrices, nearby, sensitivity, training
from graddiv.report.figures.common import FIGURES

__all__ = ["FIGURES", "accuracy", "directions", "epsilon", "matrices", "nearby", "sensitivity", "training"]
