"""Evaluation: every number is stored as a record, example by example."""

from graddiv.evaluation.prediction import predict
from graddiv.evaluation.robustness import Cell, Target, attack_all, cells, evaluate, suite

__all__ = ["Cell", "Target", "attack_all", "cells", "evaluate", "predict", "suite"]
