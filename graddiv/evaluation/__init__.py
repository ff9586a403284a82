"""Evaluation: every number is stored as a record, example by example."""
# isort: skip_file
# fmt: off

from graddiv.attacks.suites import suite
from graddiv.evaluation import jobs, mechanism  # noqa: F401 -- they register measurements
from graddiv.evaluation.in_memory import evaluate, evaluate_total
from graddiv.evaluation.robustness import Cell, attack_all, attack_cell, attack_until_fooled, cells, papers_cells
from graddiv.evaluation.robustness import strong_cells
from graddiv.evaluation.run import Session
from graddiv.evaluation.target import Target, target_of
from graddiv.networks.prediction import predict

__all__ = [
    "Cell", "Session", "Target", "attack_all", "attack_cell", "attack_until_fooled", "cells", "evaluate",
    "evaluate_total", "papers_cells", "predict", "strong_cells", "suite", "target_of",
]
