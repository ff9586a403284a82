"""When what happens in training: the stages of an experiment in steps.

In the paper: docs/equations.md.
"""

from typing import NamedTuple

from graddiv.experiment import Experiment, GradDivSection, StageSection


class Stage(NamedTuple):
    """A part of training with its own learning rate and regularizer; steps and epochs count through all stages."""

    settings: StageSection
    first_step: int
    steps_per_epoch: int

    @property
    def last_step(self) -> int:
        """The step at which the stage is over."""
        return self.first_step + self.settings.epochs * self.steps_per_epoch

    def learning_rate(self, step: int) -> float:
        """lr * decay^(number of decays up to this step), the decays in epochs since the stage began."""
        epoch = (step - self.first_step) / self.steps_per_epoch
        return self.settings.lr * self.settings.decay ** sum(epoch >= after for after in self.settings.decays)

    def ramp(self, g: GradDivSection) -> tuple[int, int]:
        """The step at which lam begins to grow, and the number of steps in which it reaches its value."""
        begins = round(g.warmup * self.steps_per_epoch)
        lasts = round(g.rampup * self.steps_per_epoch)
        if g.rampup_from == "start":
            lasts = max(0, lasts - begins)
        return self.first_step + begins, lasts

    @property
    def settled(self) -> int:
        """The step from which lam has its value, so that networks can be compared; at the latest the last one."""
        g = self.settings.graddiv
        return self.first_step if g is None else min(sum(self.ramp(g)), self.last_step)


def stages_of(experiment: Experiment, examples: int) -> list[Stage]:
    """The stages of training on so many examples; those left over in an epoch change from epoch to epoch."""
    found: list[Stage] = []
    for settings in experiment.schedule:
        first = found[-1].last_step if found else 0
        found.append(Stage(settings, first, examples // experiment.training.batch))
    return found
