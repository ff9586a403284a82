"""Evaluation: every number is stored as a record, example by example."""

from graddiv.attacks.registry import suite
from graddiv.evaluation.cell import Cell, cells, papers_cells
from graddiv.evaluation.elimination import attack_until_fooled
from graddiv.evaluation.in_memory import evaluate, evaluate_total
from graddiv.evaluation.prediction import predict
from graddiv.evaluation.robustness import attack_all, attack_cell, strong_cells, sweep
from graddiv.evaluation.target import Target, target_of

__all__ = [
    "Cell",
    "Target",
    "attack_all",
    "attack_cell",
    "attack_until_fooled",
    "cells",
    "evaluate",
    "evaluate_total",
    "papers_cells",
    "predict",
    "strong_cells",
    "suite",
    "sweep",
    "target_of",
]
