"""An experiment as typed settings: what is trained, on what, how.  Its hash names the run."""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model, model_validator

from graddiv.data import SOURCES
from graddiv.experiment.build import training_set, untrained_network, validation_set
from graddiv.experiment.cost import duration, training_work
from graddiv.experiment.defense import Defense, Deterministic
from graddiv.experiment.defenses import DEFENSES
from graddiv.experiment.fields import (
    Count,
    Epochs,
    Name,
    NotNegative,
    Period,
    Positive,
    Section,
    Share,
    Whole,
    Width,
    listed_in,
)
from graddiv.experiment.speed import listed_speed
from graddiv.registries import ARCHITECTURES, REGULARIZERS

if TYPE_CHECKING:
    from graddiv.data import Dataset
    from graddiv.networks import RandomizedNetwork


class DataSection(Section):
    """Which examples are trained on."""

    name: Annotated[str, listed_in(SOURCES)]
    examples: Count | None = Field(None, description="the first so many training examples; all if absent")


class StartSection(Section):
    """The trained network that training starts from."""

    path: str = Field(description="a run directory, or a safetensors file of parameters by name")
    sha256: str = Field(description="of its parameters: another network at the same path is refused")


class NetworkSection(Section):
    """The architecture, before any noise."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    architecture: Annotated[str, listed_in(ARCHITECTURES)]
    width: Width = Field(1.0, description="multiplies the number of channels")
    start: StartSection | None = Field(None, alias="from", description="a trained network to start from")


class TrainingSection(Section):
    """Adam and its schedule."""

    epochs: Count
    batch: Count = 128
    lr: Positive = 1e-3
    decays: tuple[Period, ...] = Field((), description="after these epochs the learning rate is multiplied by decay")
    decay: Positive = 0.1
    select: Literal["last", "best"] = Field(
        "last", description="the network of the last epoch, or of the epoch that does best on attacked validation data"
    )
    checkpoint_every: Epochs = Field(0, description="keep a checkpoint of every so many epochs; 0: the last one alone")


class AdversarySection(Section):
    """The inner PGD of adversarial training: on fresh weights at each step, from the original image."""

    epsilon: NotNegative
    m: Count = 10
    alpha: Positive = Field(0.25, description="step size as a share of epsilon")
    random_start: bool = False
    clean_weight: Share = Field(0.0, description="weight of the clean loss, the rest is the adversarial one's")
    n: Count = Field(1, description="fresh sample models at each step, whose mean gradient it follows")


class GradDivSection(Section):
    """lam R_GradDiv(X; theta)."""

    regularizer: Annotated[str, listed_in(REGULARIZERS)]
    lam: NotNegative
    n: Annotated[Count, Field(ge=2)] = 3
    warmup: Period = Field(0, description="epochs with lam = 0")
    rampup: Period = Field(0, description="epochs in which lam grows to its value")
    rampup_from: Literal["warmup", "start"] = Field(
        "warmup", description="whether rampup counts from the end of the warm-up, or from the start (so is an end)"
    )
    at: Literal["clean", "adversarial"] = Field("clean", description="the x at which gradients are compared")
    low_memory: bool = False


class StageSection(Section):
    """A further stage of training: it goes on from the network of the stage before, with Adam anew."""

    epochs: Count
    lr: Positive = 1e-3
    decays: tuple[Period, ...] = Field((), description="epochs since the stage began")
    decay: Positive = 0.1
    adversary_n: Count | None = Field(None, description="adversary.n in this stage, where it is another one")
    graddiv: GradDivSection | None = None


class Experiment(Section):
    """What `graddiv train` does, all of it: two experiments that are equal end in the same bits.

    `parse` makes one; its model also has a field for each registered defense, which is that section of the recipe.
    """

    method: Name = Field("custom", description="the name of the defense in tables")
    scale: Name = Field("custom", description="paper, quick, demo: at which scale the paper's setting is followed")
    seed: Whole = 0
    data: DataSection
    network: NetworkSection
    training: TrainingSection
    adversary: AdversarySection | None = None
    graddiv: GradDivSection | None = None
    stages: tuple[StageSection, ...] = Field((), description="stages of training after the first")

    @model_validator(mode="after")
    def _fits_together(self) -> "Experiment":
        noise = self._defenses
        if len(noise) > 1:
            raise ValueError(f"the sections {' and '.join(noise)} exclude each other: a network has one defense")
        for g in (stage.graddiv for stage in self.schedule if stage.graddiv is not None):
            if not self.random:
                random = [name for name, section in DEFENSES.items() if section.random]
                raise ValueError(f"graddiv needs a randomized network: add one of the sections {', '.join(random)}")
            if g.at == "adversarial" and self.adversary is None:
                raise ValueError("graddiv.at is 'adversarial', which needs the section adversary")
        if self.adversary is None and any(stage.adversary_n is not None for stage in self.stages):
            raise ValueError("a stage has adversary_n, which needs the section adversary")
        return self

    @property
    def _defenses(self) -> dict[str, Defense]:
        """The sections of defenses that the recipe has."""
        found = {name: getattr(self, name, None) for name in DEFENSES}
        return {name: section for name, section in found.items() if section is not None}

    @property
    def defense(self) -> Defense:
        """The settings of what makes the network random; `Deterministic` if nothing does."""
        return next(iter(self._defenses.values()), Deterministic())

    @property
    def random(self) -> bool:
        """Whether the network has noise."""
        return self.defense.random

    @property
    def schedule(self) -> tuple[StageSection, ...]:
        """All stages; the first is what the sections training and graddiv say."""
        t = self.training
        first = StageSection(
            epochs=t.epochs, lr=t.lr, decays=t.decays, decay=t.decay, adversary_n=None, graddiv=self.graddiv
        )
        return (first, *self.stages)

    @property
    def first_stages(self) -> list["Experiment"]:
        """The trainings of its first stages alone, the longest first: one that is there is taken over, bit for bit."""
        return [self.model_copy(update={"stages": self.stages[:count]}) for count in reversed(range(len(self.stages)))]

    def adversary_of(self, stage: StageSection) -> AdversarySection | None:
        """The adversary of training in one of the stages."""
        if self.adversary is None or stage.adversary_n is None:
            return self.adversary
        return self.adversary.model_copy(update={"n": stage.adversary_n})

    @property
    def epochs(self) -> int:
        """Of all stages together."""
        return sum(stage.epochs for stage in self.schedule)

    @property
    def regularization(self) -> GradDivSection | None:
        """GradDiv as the last stage that has it trains with it."""
        return next((stage.graddiv for stage in reversed(self.schedule) if stage.graddiv is not None), None)

    @property
    def lam(self) -> float:
        """The weight of GradDiv in training; 0 without it."""
        return self.regularization.lam if self.regularization is not None else 0.0

    def with_graddiv(self, **changes: Any) -> "Experiment":
        """The same with other settings of GradDiv, in the stage that has it."""
        values = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        tables = [values, *values["stages"]]
        table = next(table for table in reversed(tables) if "graddiv" in table)
        table["graddiv"] |= changes
        return type(self).model_validate(values)

    def dump(self) -> dict[str, Any]:
        """All settings, as JSON has them."""
        return self.model_dump(mode="json", by_alias=True)

    @property
    def digest(self) -> str:
        """Names the run: the same training, the same digest, whatever it is called and wherever it starts from lies.

        Settings at their defaults are left out, so that a new setting does not rename old runs.
        """
        labels: Any = {"method": True, "scale": True, "network": {"start": {"path"}}}
        values = self.model_dump(mode="json", exclude_defaults=True, exclude=labels)
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]

    @property
    def run_name(self) -> str:
        """The directory of the run below --out, if it is not given another one."""
        return f"{self.data.name}-{self.method}-{self.scale}-{self.digest}"

    @property
    def work(self) -> float:
        """Multiplications that training takes, about."""
        return training_work(self)

    @property
    def cost(self) -> str:
        """The time training takes, about, for lists: here if the network was tried here, else on two CPU cores."""
        return duration(self.work / listed_speed(self))

    def to_toml(self) -> str:
        """The recipe, complete: what is absent is off."""
        values = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        last = {key: values.pop(key) for key in ("graddiv", "stages") if key in values}  # after the defense it needs
        return _toml(values | last).lstrip("\n")

    def training_set(self, root: str | None = None) -> "Dataset":
        """The examples it trains on; `root` is the folder of the official files, by default looked for."""
        return training_set(self, root)

    def validation_set(self, root: str | None = None) -> "Dataset | None":
        """The examples by which the best epoch is chosen; None where the last one is taken."""
        return validation_set(self, root) if self.training.select == "best" else None

    def build(self, data: "Dataset | None" = None, root: str | None = None) -> "RandomizedNetwork":
        """F as it is before training.

        `data` is the training set, from which mixup inference takes its partners; where it is not given it is read
        from `root`, and only if the network needs it.
        """
        return untrained_network(self, lambda: training_set(self, root) if data is None else data)


def experiment_model() -> type[Experiment]:
    """Experiment with a section for each defense that is registered by now."""
    return _with_sections(tuple(DEFENSES.items()))


@cache
def _with_sections(defenses: tuple[tuple[str, type[Defense]], ...]) -> type[Experiment]:
    sections: dict[str, Any] = {name: (section | None, None) for name, section in defenses}
    return create_model("Experiment", __base__=Experiment, __doc__=Experiment.__doc__, **sections)


def _toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """A table as TOML: its values, then the tables in it."""
    nested = {k: v for k, v in table.items() if isinstance(v, dict) or (v and isinstance(v, list) and _is_table(v[0]))}
    lines = [f"{key} = {_toml_value(value)}\n" for key, value in table.items() if key not in nested and value != []]
    for key, value in nested.items():
        name = f"{prefix}{key}"
        for part in value if isinstance(value, list) else [value]:
            heading = f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
            lines.append(f"\n{heading}\n{_toml(part, f'{name}.')}")
    return "".join(lines)


def _toml_value(value: object) -> str:
    """A value that is no table, which TOML writes as JSON does."""
    text = json.dumps(value, ensure_ascii=False)  # TOML knows no pairs of escapes for one character
    return text.replace("\x7f", "\\u007f")  # the one control character that JSON leaves as it is


def _is_table(value: object) -> bool:
    return isinstance(value, dict)
