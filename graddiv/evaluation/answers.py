"""The answers by which a directory of records knows its network again."""

import hashlib
import json
from pathlib import Path

import numpy as np

from graddiv import store
from graddiv.errors import GradDivError
from graddiv.evaluation.prediction import predict
from graddiv.evaluation.target import Target
from graddiv.seeding import isolated

ASKED = 4
"""Images on which the answers are compared, the first ones."""
RELATIVE, ABSOLUTE = 1e-3, 0.05
"""By how much the logarithm of a probability may differ: devices differ by less, and trained networks by more.

The probabilities themselves would not do, since a network that is sure of an image says 1 with most kinds of noise.
"""
LEAST = 1e-30
"""Probabilities below this count as equal: some devices round the smallest numbers to 0."""


def answers_file(target: Target, directory: Path) -> Path:
    """Where a directory that may hold several targets keeps the answers of this one."""
    digest = hashlib.sha256(json.dumps(target.describe()).encode()).hexdigest()[:8]
    return directory / f"answers-{digest}.json"


def check_answers(target: Target, path: Path) -> None:
    """Refuse to go on beside records of a network that answers otherwise; without the file, write it.

    Its parameters tell networks apart; that the code around them, or a number in it such as sigma, was changed only
    its answers can tell.
    """
    x = target.examples(slice(0, ASKED))[0]
    with isolated(target.seed):  # a module that draws by itself draws the same again
        answers = predict(target.F, x, n=1, seed=target.seed).scores.tolist()
    if not path.exists():
        store.write_json(path, {"answers": answers})
        return
    found = store.read_json(path).get("answers")
    try:
        before, now = (np.log(np.array(values, float).clip(LEAST)) for values in (found, answers))
    except (TypeError, ValueError):
        raise GradDivError(f"{path} says answers = {found!r:.80}, expected probabilities for each image") from None
    if before.shape != now.shape or not np.allclose(before, now, RELATIVE, ABSOLUTE):
        raise GradDivError(f"{path.parent} holds records of a network that answers otherwise: choose another directory")
