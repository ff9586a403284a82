"""An experiment as typed settings: what is trained, on what, how.  Its hash names the run."""

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, create_model, model_validator
from pydantic_core import PydanticCustomError
from torch import nn

import graddiv.data
from graddiv import store
from graddiv.data import SOURCES, Dataset, Source
from graddiv.data.own import is_own, own_source
from graddiv.diversity import REGULARIZERS
from graddiv.errors import GradDivError, GradDivWarning, expected
from graddiv.experiment.cost import TWO_CORES, duration, training_work
from graddiv.networks import ARCHITECTURES, DEFENSES, Defense, Dirac, RandomizedNetwork, Rules, architecture
from graddiv.objective import Adversary, Place
from graddiv.references import source_digest
from graddiv.registries import MOST, Count, NotNegative, Positive, Range, Real, Whole, number
from graddiv.seeding import fold

Epochs = Annotated[int | float, BeforeValidator(number), Field(ge=0, le=MOST, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[\w.+-]+$")]  #: part of the name of a directory


def listed_in(registry: Mapping[str, object]) -> AfterValidator:
    """Validate that a string is a name in the registry, which may be registered later, or that of a file."""

    def check(name: str, info: Any) -> str:  # pydantic's, with the values of the fields above
        if name not in registry and info.data.get("file") is None:
            raise PydanticCustomError("unlisted", "unknown name", {"known": list(registry)})
        return name

    return AfterValidator(check)


class Section(BaseModel):
    """One table of a recipe: frozen, and with no other keys than these."""

    model_config = {"frozen": True, "extra": "forbid", "populate_by_name": True}


class FileSection(Section):
    """A file or folder of the user's own; a recipe may name the path alone."""

    path: str  #: a reference, such as xs.npz or models.py:make; in a file, as seen from there
    sha256: str  #: of what it holds


class OwnDataSection(FileSection):
    """Data of the user's own, and what was found out about them."""

    shape: tuple[int, int, int]
    classes: Annotated[int, Range(ge=2, le=MOST)]


class StartSection(FileSection):
    """The trained network that training starts from: a run directory, or a safetensors file of parameters by name."""


class DataSection(Section):
    """The training examples."""

    file: OwnDataSection | None = None  #: data of the user's own, instead of a registered data set
    file_test: FileSection | None = None  #: those of the test split; a tenth of the examples if absent
    name: Annotated[Name, listed_in(SOURCES)]  #: the data set; 'graddiv data list' shows all
    examples: Count | None = None  #: how many of the first ones are used; all if absent

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return SOURCES[self.name].shape if self.file is None else self.file.shape

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(SOURCES[self.name].classes) if self.file is None else self.file.classes

    @property
    def source(self) -> Source:
        """The source of the examples; files of the user's own must hold what they held."""
        if self.file is None:
            return SOURCES[self.name]
        files = [self.file] if self.file_test is None else [self.file, self.file_test]
        for file in files:
            if not is_own(file.path):
                raise GradDivError(f"data.file: there is no {file.path}: put it there, or name it by --set data.file=")
        source = own_source(self.name, *(file.path for file in files))
        for file, sha256 in zip(files, source.sha256s, strict=False):  # an archive may hold its test split itself
            if file.sha256 != sha256:
                told = f"(sha256 {sha256[:10]}, expected {file.sha256[:10]})"
                raise GradDivError(f"data.file: {file.path} holds other examples than the recipe was made for {told}")
        return source


class NetworkSection(Section):
    """The architecture, before any noise."""

    file: FileSection | None = None  #: a function of the user's own that makes it
    architecture: Annotated[str, listed_in(ARCHITECTURES)]  #: its name
    width: Annotated[float, Range(ge=1e-3, le=64)] = 1.0  #: multiplies the number of channels
    start: StartSection | None = Field(None, alias="from")  #: a trained network to start from

    def module(self, data: DataSection, seed: int = 0) -> nn.Module:
        """The architecture for these data, freshly initialized."""
        if self.file is not None and source_digest(self.file.path) != self.file.sha256:
            told = "is not as it was when the recipe was made, and may make another network"
            warnings.warn(f"network.file: {self.file.path} {told}", GradDivWarning, stacklevel=2)
        return architecture(self.reference, self.width, seed=seed, shape=data.shape, classes=data.classes)

    @property
    def reference(self) -> str:
        """The name of the architecture, or what it is made by."""
        return self.architecture if self.file is None else self.file.path


class Schedule(Section):
    """The epochs and the learning rate of Adam."""

    epochs: Count  #: how many there are
    lr: Positive = 1e-3  #: the learning rate of Adam
    decays: tuple[Epochs, ...] = ()  #: epochs of the stage after which the rate is multiplied by decay
    decay: Positive = 0.1  #: the factor of the learning rate at each of decays


class TrainingSection(Schedule):
    """The schedule of the first stage, and what all stages share."""

    batch: Count = 128  #: images of a step
    select: Literal["last", "best"] = "last"  #: the last epoch, or the best one on attacked validation data
    checkpoint_every: Annotated[int, Range(ge=0, le=MOST)] = 0  #: epochs between checkpoints; 0: the last one alone


class GradDivSection(Section):
    """lam R(X; theta), the regularizer GradDiv."""

    regularizer: Annotated[str, listed_in(REGULARIZERS)]  #: R
    lam: NotNegative  #: lambda, the weight of R
    n: Annotated[int, Range(ge=2, le=MOST)] = 3  #: sample models whose gradients are compared
    warmup: Epochs = 0  #: epochs with lam = 0
    rampup: Epochs = 0  #: epochs in which lam grows to its value
    rampup_from: Literal["warmup", "start"] = "warmup"  #: from where rampup counts
    at: Place = "clean"  #: the x at which gradients are compared
    low_memory: bool = False  #: the same gradient with the memory of one graph, in about 1.3 times the time


class StageSection(Schedule):
    """A further stage of training: it continues with the network of the stage before, and a new Adam."""

    batch: Count | None = None  #: images of a step in this stage; training.batch if not given
    adversary_n: Count | None = None  #: adversary.n in this stage, where it is another one
    graddiv: GradDivSection | None = None


class Experiment(Section):
    """All settings of a training; equal ones give identical bits.  `parse` adds a field for each defense."""

    method: Name = "custom"  #: the name of the defense in tables
    scale: Name = "custom"  #: paper, quick, demo: at which scale the paper's setting is followed
    seed: Whole = 0  #: the seed of everything random
    data: DataSection
    network: NetworkSection
    training: TrainingSection
    adversary: Adversary | None = None
    graddiv: GradDivSection | None = None
    stages: tuple[StageSection, ...] = ()  #: stages of training after the first

    @model_validator(mode="after")
    def _fits_together(self) -> "Experiment":
        if len(self.defense_sections) > 1:
            names = " and ".join(self.defense_sections)
            raise ValueError(f"the sections {names} exclude each other: a network has one defense")
        for g in (stage.graddiv for stage in self.schedule if stage.graddiv is not None):
            if not self.random:
                random = [name for name, defense in DEFENSES.items() if defense.random]
                raise ValueError(f"graddiv needs a randomized network: add one of the sections {', '.join(random)}")
            if g.at != "clean" and self.adversary is None:
                raise ValueError(f"graddiv.at is {g.at!r}, which needs the section adversary")
        if self.adversary is None and any(stage.adversary_n is not None for stage in self.stages):
            raise ValueError("a stage has adversary_n, which needs the section adversary")
        return self

    @property
    def defense_sections(self) -> dict[str, Section]:
        """The sections of defenses that the recipe has."""
        return {name: section for name in DEFENSES if (section := getattr(self, name, None)) is not None}

    @property
    def _defense(self) -> tuple[Defense, dict[str, Any]]:
        """The defense and its settings."""
        found = [(DEFENSES[name], dict(section)) for name, section in self.defense_sections.items()]
        return found[0] if found else (Defense(Dirac, random=False), {})

    @property
    def random(self) -> bool:
        return self._defense[0].random

    @property
    def rules(self) -> Rules:
        return Defense.rules_of(*self._defense)

    @property
    def schedule(self) -> tuple[StageSection, ...]:
        """All stages; the sections training and graddiv make the first."""
        own = {name: getattr(self.training, name) for name in Schedule.model_fields}
        return (StageSection(**own, graddiv=self.graddiv), *self.stages)

    @property
    def first_stages(self) -> list["Experiment"]:
        """Trainings of only its first stages, the longest first; a finished one is reused, bit for bit."""
        return [self.model_copy(update={"stages": self.stages[:count]}) for count in reversed(range(len(self.stages)))]

    def adversary_of(self, stage: StageSection) -> Adversary | None:
        """The adversary of training in one of the stages."""
        if self.adversary is None or stage.adversary_n is None:
            return self.adversary
        return replace(self.adversary, n=stage.adversary_n)

    @property
    def epochs(self) -> int:
        """The epochs of all stages together."""
        return sum(stage.epochs for stage in self.schedule)

    @property
    def regularization(self) -> GradDivSection | None:
        """GradDiv as the last stage that has it trains with it."""
        return next((stage.graddiv for stage in reversed(self.schedule) if stage.graddiv is not None), None)

    @property
    def lam(self) -> float:
        """The weight of GradDiv in training; 0 without it."""
        return self.regularization.lam if self.regularization else 0.0

    def with_graddiv(self, **changes: Any) -> "Experiment":
        """The experiment with other settings of GradDiv, in the stage that has it."""
        values = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        table = next(table for table in reversed([values, *values["stages"]]) if "graddiv" in table)
        table["graddiv"] |= changes
        return type(self).model_validate(values)

    def dump(self) -> dict[str, Any]:
        """All settings, as JSON has them."""
        return self.model_dump(mode="json", by_alias=True)

    @property
    def digest(self) -> str:
        """Names the run: equal trainings have equal digests; names and the path they start from do not count."""
        # without defaults, so that a new setting does not rename old runs
        labels: Any = {"method": True, "scale": True, "network": {"start": {"path"}, "file": {"path"}}}
        labels |= {"data": {"file": {"path"}, "file_test": {"path"}}}
        values = self.model_dump(mode="json", exclude_defaults=True, exclude=labels)
        return store.digest(json.dumps(values, sort_keys=True))[:10]

    @property
    def run_name(self) -> str:
        """The directory of the run below --out, if it is not given another one."""
        return f"{self.data.name}-{self.method}-{self.scale}-{self.digest}"

    @property
    def cost(self) -> str:
        """The approximate time of training on two CPU cores."""
        return duration(training_work(self) / TWO_CORES)

    def to_toml(self) -> str:
        """The complete recipe as TOML; sections that are absent are off."""
        values = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        last = {key: values.pop(key) for key in ("graddiv", "stages") if key in values}  # after the defense it needs
        return _toml(values | last).lstrip("\n")

    def training_set(self, root: str | Path | None = None) -> Dataset:
        """The examples it trains on; `root` is the folder of the official files, by default looked for."""
        data, wanted = graddiv.data.load(self.data.source, "train", root), self.data.examples
        if wanted is not None and wanted > len(data) and self.data.file is None:  # else: at most so many
            raise GradDivError(f"data.examples is {wanted}, but {self.data.name} has {len(data)} training examples")
        return data if wanted is None else data.take(slice(0, wanted))

    def validation_set(self, root: str | Path | None = None) -> Dataset | None:
        """The held-out examples by which the best epoch is chosen; None where the last one is taken."""
        return graddiv.data.load(self.data.source, "validation", root) if self.training.select == "best" else None

    def build(self, data: Dataset | None = None, root: str | Path | None = None) -> RandomizedNetwork:
        """Build F, untrained; some need `data`, the training set, which is read from `root` if it is not given."""

        def members(k: int) -> list[Any]:
            addresses = [("init",), *(("init", i) for i in range(1, k))]
            return [self.network.module(self.data, fold(self.seed, *address)) for address in addresses]

        defense, settings = self._defense
        provided = {
            **{"module": lambda: members(1)[0], "members": lambda: members},
            "input_shape": lambda: self.data.shape,
            "examples": lambda: self.training_set(root) if data is None else data,
        }
        return defense.build(settings, provided)


@cache
def _with_sections(defenses: tuple[tuple[str, Defense], ...]) -> type[Experiment]:
    """Experiment with a section for each defense: its settings, as its factory's and rules' signatures have them."""
    sections: dict[str, Any] = {}
    for name, defense in defenses:
        fields: dict[str, Any] = {}
        for p in defense.settings().values():
            annotation = {float: Real, int: Whole, Parameter.empty: Any}.get(p.annotation, p.annotation)
            fields[p.name] = (annotation, ... if p.default is Parameter.empty else p.default)
        sections[name] = (create_model(name, __base__=Section, **fields) | None, None)
    return create_model("Experiment", __base__=Experiment, __doc__=Experiment.__doc__, **sections)


def _toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """A table as TOML: its values, which TOML writes as JSON does, then the tables and lists of tables in it."""
    values, tables = [], []
    for key, value in table.items():
        parts = value if isinstance(value, list) else [value]
        if parts and isinstance(parts[0], dict):
            heading = f"[[{prefix}{key}]]" if isinstance(value, list) else f"[{prefix}{key}]"
            tables += [f"\n{heading}\n{_toml(part, f'{prefix}{key}.')}" for part in parts]
        elif parts:
            text = json.dumps(value, ensure_ascii=False)  # TOML knows no pairs of escapes for one character
            values.append(f"{key} = {text}\n".replace("\x7f", "\\u007f"))  # the one control character that JSON keeps
    return "".join(values + tables)


def parse(values: Mapping[str, Any], source: str) -> Experiment:
    """Make an experiment of these tables, or raise an error that lists all mistakes."""
    model = _with_sections(tuple(DEFENSES.items()))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        mistakes = [_explained(dict(e), model) for e in error.errors()]
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        raise GradDivError("\n  ".join([f"{source} has {count}:", *mistakes])) from None


def _explained(error: dict[str, Any], model: type[Experiment]) -> str:
    """Describe a mistake in tables that should make this model: where, what was found, what was expected."""
    where, found = ".".join(map(str, error["loc"])), repr(error["input"])
    found = found if len(found) <= 200 else f"{found[:200]}..."
    match error["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            known = map(str, _fields(model, error["loc"][:-1]))
            return f"{where}: there is no such key, {expected(str(error['loc'][-1]), known)}"
        case "missing":
            return f"{where}: is missing"
        case "literal_error":
            choices = get_args(_fields(model, error["loc"][:-1])[error["loc"][-1]])
            return f"{where} is {found}, {expected(str(error['input']), choices)}"
        case "unlisted":
            return f"{where} is {found}, {expected(str(error['input']), error['ctx']['known'])}"
        case "value_error":
            return f"{where}: {error['ctx']['error']}" if where else str(error["ctx"]["error"])
        case _:
            return f"{where} is {found}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _fields(model: Any, location: Iterable[str | int]) -> dict[str | int, Any]:
    """The keys and their types of the table at this location in the model."""
    fields = {f.alias or name: f.annotation for name, f in model.model_fields.items()}
    for key in (part for part in location if not isinstance(part, int)):  # the position in a list of tables
        table = next(iter(get_args(fields[key])), fields[key])  # "Section | None", "tuple[Section, ...]" or "Section"
        found = getattr(table, "model_fields", None) or table.__dataclass_fields__
        fields = {getattr(f, "alias", None) or name: getattr(f, "annotation", None) for name, f in found.items()}
    return fields
