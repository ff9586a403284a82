"""Evaluation: every number is stored as a record, example by example."""

from graddiv.evaluation.prediction import predict
from graddiv.evaluation.robustness import Cell, attack_all, attack_cell, cells, evaluate, suite, sweep
from graddiv.evaluation.target import Target

__all__ = ["Cell", "Target", "attack_all", "attack_cell", "cells", "evaluate", "predict", "suite", "sweep"]
