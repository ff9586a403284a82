"""The paper's figures from our records, one function each; importing this registers them with `output.draws`."""

from graddiv.report.figures import accuracy, gradients, matrices, training

__all__ = ["accuracy", "gradients", "matrices", "training"]
