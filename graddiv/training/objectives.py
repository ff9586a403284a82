"""The objective of an experiment's stage, and which of its terms broke."""

import math

from graddiv.directions import GradDiv
from graddiv.experiment import Experiment
from graddiv.networks import RandomizedNetwork
from graddiv.objective import Adversary, Objective
from graddiv.seeding import fold
from graddiv.training.stages import Stage, stages_of


def objective_of(F: RandomizedNetwork, experiment: Experiment, examples: int, stage: Stage | None = None) -> Objective:
    """What a stage of the experiment (the first one by default) minimises on so many training examples."""
    stages = stages_of(experiment, examples)
    stage = stage or stages[0]
    g, adversary = stage.settings.graddiv, experiment.adversary_of(stage.settings)
    return Objective(
        F,
        examples=examples,
        adversary=None if adversary is None else Adversary(**adversary.model_dump()),
        diversity=_diversity(stage, experiment.seed),
        at="clean" if g is None else g.at,
        seed=experiment.seed,
        rules=experiment.defense,
        steps=stages[-1].last_step,
    )


def _diversity(stage: Stage, seed: int) -> GradDiv | None:
    """lam R with the periods of the stage in steps."""
    if (g := stage.settings.graddiv) is None:
        return None
    warmup, rampup = stage.ramp(g)
    return GradDiv(
        g.regularizer, g.lam, g.n, warmup=warmup, rampup=rampup, low_memory=g.low_memory, seed=fold(seed, "R")
    )


def first_nonfinite(parts: dict[str, float]) -> str | None:
    """The first term that is not finite; the sum itself is looked at last."""
    names = [*(name for name in parts if name != "loss"), "loss"]
    return next((name for name in names if not math.isfinite(parts[name])), None)
