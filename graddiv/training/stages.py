"""The stages of an experiment in steps, and what each of them minimizes.  See docs/equations.md."""

from typing import NamedTuple

from graddiv.diversity import GradDiv
from graddiv.experiment import Experiment, GradDivSection, StageSection
from graddiv.networks import RandomizedNetwork
from graddiv.objective import Objective
from graddiv.seeding import fold


class Stage(NamedTuple):
    """A part of training with its own learning rate and regularizer; steps and epochs count through all stages."""

    settings: StageSection
    first_step: int
    first_epoch: int
    batch: int
    steps_per_epoch: int

    @property
    def last_step(self) -> int:
        return self.first_step + self.settings.epochs * self.steps_per_epoch

    def place(self, step: int) -> tuple[int, int]:
        """The epoch, counted from 0 through all stages, and the index of the batch in it."""
        epoch, within = divmod(step - self.first_step, self.steps_per_epoch)
        return self.first_epoch + epoch, within

    def learning_rate(self, step: int) -> float:
        """lr * decay^(number of decays up to this step), the decays in epochs since the stage began."""
        epoch = (step - self.first_step) / self.steps_per_epoch
        return self.settings.lr * self.settings.decay ** sum(epoch >= after for after in self.settings.decays)

    def ramp(self, g: GradDivSection) -> tuple[int, int]:
        """The step at which lam begins to grow, and the number of steps in which it reaches its value."""
        begins, lasts = round(g.warmup * self.steps_per_epoch), round(g.rampup * self.steps_per_epoch)
        return self.first_step + begins, max(0, lasts - begins) if g.rampup_from == "start" else lasts

    @property
    def settled(self) -> int:
        """The step from which lam is constant, so that networks can be compared; at most the last step."""
        g = self.settings.graddiv
        return self.first_step if g is None else min(sum(self.ramp(g)), self.last_step)


def stages_of(experiment: Experiment, examples: int) -> list[Stage]:
    """The stages of training; an epoch leaves out the examples that fill no batch, different ones each time."""
    found: list[Stage] = []
    step = epoch = 0
    for settings in experiment.schedule:
        batch = settings.batch or experiment.training.batch
        found.append(Stage(settings, step, epoch, batch, examples // batch))
        step, epoch = found[-1].last_step, epoch + settings.epochs
    return found


def objective_of(F: RandomizedNetwork, experiment: Experiment, examples: int, stage: Stage | None = None) -> Objective:
    """The objective of a stage of the experiment, by default the first, for a training set of this size."""
    stages = stages_of(experiment, examples)
    stage = stage or stages[0]
    g, adversary = stage.settings.graddiv, experiment.adversary_of(stage.settings)
    diversity = None
    if g is not None:
        warmup, rampup = stage.ramp(g)
        periods = {"warmup": warmup, "rampup": rampup, "seed": fold(experiment.seed, "R")}
        diversity = GradDiv(g.regularizer, g.lam, g.n, low_memory=g.low_memory, **periods)
    return Objective(
        F,
        examples=examples,
        adversary=adversary,
        diversity=diversity,
        at="clean" if g is None else g.at,
        seed=experiment.seed,
        rules=experiment.rules,
        steps=stages[-1].last_step,
    )
