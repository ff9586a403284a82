"""An experiment as typed settings: what is trained, on what, how.  Its hash names the run."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from graddiv import store
from graddiv.errors import GradDivError

if TYPE_CHECKING:
    from torch import Tensor

    from graddiv.data import Dataset
    from graddiv.networks import RandomizedNetwork

DataName = Literal["mnist-mini", "mnist", "cifar10", "stl10"]
Architecture = Literal["mnist_cnn", "vgg16", "stl10_cnn"]
RegularizerName = Literal["kappa", "mean", "dpp", "max", "smoothmax"]


def _fraction(value: object) -> object:
    """8/255 as people write it."""
    if isinstance(value, str) and "/" in value:
        try:
            return float(Fraction(value.replace(" ", "")))
        except (ValueError, ZeroDivisionError):
            return value
    return value


Real = Annotated[float, BeforeValidator(_fraction), Field(allow_inf_nan=False)]
Positive = Annotated[Real, Field(gt=0)]
NotNegative = Annotated[Real, Field(ge=0)]
Share = Annotated[Real, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Epochs = Annotated[int, Field(ge=0)]
Period = Annotated[int | float, BeforeValidator(_fraction), Field(ge=0, allow_inf_nan=False)]
"""A time in epochs, parts of epochs included."""
Name = Annotated[str, Field(pattern=r"^[\w.+-]+$")]
"""Part of the name of a directory."""


class Section(BaseModel):
    """One table of a recipe: frozen, and with no other keys than these."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataSection(Section):
    """Which examples are trained on."""

    name: DataName
    examples: Count | None = Field(None, description="the first so many training examples; all if absent")


class StartSection(Section):
    """The trained network that training starts from."""

    path: str = Field(description="a run directory, or a safetensors file of parameters by name")
    sha256: str = Field(description="of its parameters: another network at the same path is refused")


class NetworkSection(Section):
    """The architecture, before any noise."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    architecture: Architecture
    width: Positive = Field(1.0, description="multiplies the number of channels")
    start: StartSection | None = Field(None, alias="from", description="a trained network to start from")


class TrainingSection(Section):
    """Adam and its schedule."""

    epochs: Count
    batch: Count = 128
    lr: Positive = 1e-3
    decays: tuple[Period, ...] = Field((), description="after these epochs the learning rate is multiplied by decay")
    decay: Positive = 0.1
    checkpoint_every: Epochs = Field(0, description="keep a checkpoint of every so many epochs; 0: the last one alone")


class AdversarySection(Section):
    """The inner PGD of adversarial training: on fresh weights at each step, from the original image."""

    epsilon: NotNegative
    m: Count = 10
    alpha: Positive = Field(0.25, description="step size as a share of epsilon")
    random_start: bool = False
    clean_weight: Share = Field(0.0, description="weight of the clean loss, the rest is the adversarial one's")


class GaussianSection(Section):
    """Adv-BNN: a Gaussian posterior over the weights."""

    prior_sigma: Positive
    init_sigma: Positive | None = Field(None, description="prior_sigma if absent")
    alpha_kl: NotNegative = 0.02
    kl_scope: Literal["all", "last"] = "all"
    batch_norm: bool = Field(True, description="whether batch norm's scale and shift are random too")


class PNISection(Section):
    """Parametric noise injection."""

    alpha: Positive = 0.25
    granularity: Literal["layerwise", "channelwise", "elementwise"] = "layerwise"


class RSESection(Section):
    """Random self-ensemble: noise before the convolutions."""

    sigma_init: NotNegative = 0.2
    sigma_inner: NotNegative = 0.1


class MixupSection(Section):
    """Mixup inference, on a network trained with interpolated examples."""

    lam: Annotated[Real, Field(gt=0, le=1)] = 0.6
    partners: Literal["OL", "PL"] = "OL"
    pool: Count = Field(5000, description="partners are among the first so many training examples")


class GradDivSection(Section):
    """lam R_GradDiv(X; theta)."""

    regularizer: RegularizerName
    lam: NotNegative
    n: Annotated[int, Field(ge=2)] = 3
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
    graddiv: GradDivSection | None = None


TRAINING_EXAMPLES: dict[DataName, int] = {
    "mnist-mini": 4500,
    "mnist": 55000,
    "cifar10": 45000,
    "stl10": 4500,
}
FORWARD: dict[str, float] = {"mnist_cnn": 35.5e6, "vgg16": 313e6, "stl10_cnn": 150e6}
"""Multiplications of a forward pass of one image at width 1; they grow with the square of the width."""
TWO_CORES = 30e9
"""Multiplications per second in training, measured on two cores of 2020s servers: good to a factor of two."""

NOISE = ("gaussian", "pni", "rse", "mixup")


class Experiment(Section):
    """What `graddiv train` does, all of it: two experiments that are equal end in the same bits."""

    method: Name = Field("custom", description="the name of the defense in tables")
    scale: Name = Field("custom", description="paper, quick, demo: at which scale the paper's setting is followed")
    seed: int = 0
    data: DataSection
    network: NetworkSection
    training: TrainingSection
    adversary: AdversarySection | None = None
    gaussian: GaussianSection | None = None
    pni: PNISection | None = None
    rse: RSESection | None = None
    mixup: MixupSection | None = None
    graddiv: GradDivSection | None = None
    stages: tuple[StageSection, ...] = Field((), description="stages of training after the first")

    @model_validator(mode="after")
    def _fits_together(self) -> "Experiment":
        noise = [name for name in NOISE if getattr(self, name) is not None]
        if len(noise) > 1:
            raise ValueError(f"the sections {' and '.join(noise)} exclude each other: a network has one kind of noise")
        for g in (stage.graddiv for stage in self.schedule if stage.graddiv is not None):
            if not noise:
                raise ValueError(f"graddiv needs a randomized network: add one of the sections {', '.join(NOISE)}")
            if g.at == "adversarial" and self.adversary is None:
                raise ValueError("graddiv.at is 'adversarial', which needs the section adversary")
        return self

    @property
    def schedule(self) -> tuple[StageSection, ...]:
        """All stages; the first is what the sections training and graddiv say."""
        t = self.training
        first = StageSection(epochs=t.epochs, lr=t.lr, decays=t.decays, decay=t.decay, graddiv=self.graddiv)
        return (first, *self.stages)

    @property
    def epochs(self) -> int:
        """Of all stages together."""
        return sum(stage.epochs for stage in self.schedule)

    @property
    def regularization(self) -> GradDivSection | None:
        """GradDiv as the last stage that has it trains with it."""
        return next((stage.graddiv for stage in reversed(self.schedule) if stage.graddiv is not None), None)

    @property
    def random(self) -> bool:
        """Whether the network has noise."""
        return any(getattr(self, name) is not None for name in NOISE)

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
        return parse(values, "the recipe")

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
        """Multiplications that training takes, about: per image two passes for each step of the inner PGD, three for
        the loss and six for each gradient of R, a pass being a forward one of this architecture.
        """
        adversary = 2 * self.adversary.m if self.adversary is not None else 0
        halves = 2 if self.adversary is not None and 0 < self.adversary.clean_weight < 1 else 1
        examples = self.data.examples or TRAINING_EXAMPLES[self.data.name]
        passes = 0
        for stage in self.schedule:
            regularizer = 6 * stage.graddiv.n if stage.graddiv is not None and stage.graddiv.lam > 0 else 0
            passes += stage.epochs * examples * (adversary + 3 * halves + regularizer)
        return passes * FORWARD[self.network.architecture] * self.network.width**2

    @property
    def cost(self) -> str:
        """The time training takes on two CPU cores, about."""
        return duration(self.work / TWO_CORES)

    def to_toml(self) -> str:
        """The recipe, complete: what is absent is off."""
        return _toml(self.model_dump(mode="json", by_alias=True, exclude_none=True)).lstrip("\n")

    def training_set(self, root: str | None = None) -> "Dataset":
        """The examples it trains on."""
        from graddiv.data import load

        data = load(self.data.name, "train", root)
        wanted = self.data.examples
        if wanted is not None and wanted > len(data):
            raise GradDivError(f"data.examples is {wanted}, but {self.data.name} has {len(data)} training examples")
        return data if wanted is None else data.take(slice(0, wanted))

    def build(self, data: "Dataset") -> "RandomizedNetwork":
        """F as it is before training; `data` is the training set, from which mixup inference takes its partners."""
        from graddiv.networks import Dirac, architecture, bayesian, mixup_inference, pni, rse
        from graddiv.seeding import fold

        module = architecture(self.network.architecture, self.network.width, seed=fold(self.seed, "init"))
        if self.gaussian is not None:
            return bayesian(module, **self.gaussian.model_dump(exclude={"alpha_kl"}))
        if self.pni is not None:
            return pni(module, self.pni.alpha, granularity=self.pni.granularity)
        if self.rse is not None:
            return rse(module, tuple(data.images.shape[1:]), **self.rse.model_dump())
        if self.mixup is not None:
            pool = data.batch(slice(0, self.mixup.pool))
            return mixup_inference(module, pool, lam=self.mixup.lam, partners=self.mixup.partners)
        return Dirac(module)


LAST = "last.safetensors"
"""The checkpoint from which training goes on, and at its end the trained network."""


FORMAT = 1
"""Of run directories; a later version that changes them counts on."""


def check_format(directory: Path, *, begin: bool = False) -> None:
    """Refuse a directory that a later version made; mark one that begins."""
    path = directory / "version.json"
    if begin and not path.exists():
        store.write_json(path, {"format": FORMAT})
    elif path.exists() and (found := store.read_json(path)["format"]) > FORMAT:
        raise GradDivError(
            f"{directory} has format {found}, but this version of graddiv knows none above {FORMAT}: "
            "use the newer version that made it, or choose another directory with --out"
        )


def trained(
    directory: Path, data_root: str | None = None, checkpoint: str = LAST
) -> "tuple[Experiment, RandomizedNetwork]":
    """The experiment of a run directory and its network as the checkpoint has it, in eval mode."""
    if not (directory / "experiment.json").exists():
        raise GradDivError(f"{directory} is no run directory: 'graddiv train' makes one")
    check_format(directory)
    experiment = parse(store.read_json(directory / "experiment.json"), str(directory / "experiment.json"))
    path = directory / "checkpoints" / checkpoint
    tensors, state = store.read_tensors(path)
    data = experiment.training_set(data_root)
    step, steps = state["progress"]["step"], experiment.epochs * (len(data) // experiment.training.batch)
    if checkpoint == LAST and step < steps:
        raise GradDivError(
            f"{directory} is not trained to its end, but to step {step} of {steps}: run its training again"
        )
    F = experiment.build(data)
    load_state(F, network_part(tensors), path)
    return experiment, F.eval()


def network_part(tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """The network's own tensors of a checkpoint, which also holds the optimizer's."""
    return {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}


def network_of(path: Path) -> "dict[str, Tensor]":
    """The parameters and buffers that training can start from: of a finished run, or of a safetensors file."""
    if path.is_dir():
        last = path / "checkpoints" / LAST
        if not last.exists():
            raise GradDivError(f"{path} holds no trained network: expected a run directory or a safetensors file")
        return network_part(store.read_tensors(last)[0])
    return store.read_state(path)


def starting_point(path: Path) -> dict[str, str]:
    """What a recipe says of the network it starts from: where it lies, and the hash that tells it from others."""
    return {"path": str(path), "sha256": state_hash(network_of(path))}


def state_hash(state: "Mapping[str, Tensor]") -> str:
    """sha256 over the names, shapes and values of parameters and buffers."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def load_state(F: "RandomizedNetwork", state: "Mapping[str, Tensor]", path: Path) -> None:
    """Give F these parameters and buffers, which `path` holds."""
    wanted = F.state_dict()
    for name in [*wanted, *state]:
        found, expected = (tuple(t[name].shape) if name in t else None for t in (state, wanted))
        if found != expected:
            raise GradDivError(
                f"{path} belongs to another network: {name} has shape {found} there, expected {expected}"
            )
    F.load_state_dict(state)


def duration(seconds: float) -> str:
    """A time, roughly."""
    minutes = seconds / 60
    if minutes < 1:
        return "<1 min"
    for limit, unit, name in ((90, 1, "min"), (48 * 60, 60, "h")):
        if minutes < limit:
            return f"{minutes / unit:.0f} {name}"
    return f"{minutes / (24 * 60):.0f} days"


def parse(values: Mapping[str, Any], source: str) -> Experiment:
    """The experiment that these tables describe, or all of their mistakes at once."""
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        mistakes = [_explained(dict(e)) for e in error.errors()]
        raise GradDivError("\n  ".join([f"{source} has {_counted(mistakes)}:", *mistakes])) from None


def _counted(mistakes: list[str]) -> str:
    return "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"


def _explained(error: dict[str, Any]) -> str:
    """One mistake: where, what was found, what was expected."""
    where, found = ".".join(map(str, error["loc"])), error["input"]
    match error["type"]:
        case "extra_forbidden":
            fields = _table(error["loc"][:-1]).model_fields
            known = [field.alias or name for name, field in fields.items()]
            return f"{where}: there is no such key, {_nearest(str(error['loc'][-1]), known)}"
        case "missing":
            return f"{where}: is missing"
        case "literal_error":
            known = list(get_args(_table(error["loc"][:-1]).model_fields[str(error["loc"][-1])].annotation))
            return f"{where} is {found!r}, {_nearest(str(found), known)}"
        case "value_error":
            return str(error["ctx"]["error"])
        case _:
            return f"{where} is {found!r}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    nearest = get_close_matches(name, known, n=1, cutoff=0.5)
    return (f"did you mean {nearest[0]!r}? " if nearest else "") + f"expected one of {', '.join(known)}"


def _table(location: Iterable[str | int]) -> type[BaseModel]:
    """The model of the table at this location."""
    model: Any = Experiment
    for key in (part for part in location if not isinstance(part, int)):  # the position in a list of tables
        annotation = next(f.annotation for name, f in model.model_fields.items() if key in (name, f.alias))
        model = next(iter(get_args(annotation)), annotation)  # "Section | None", "tuple[Section, ...]" or "Section"
    return cast("type[BaseModel]", model)


def _toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """A table as TOML: its values, which TOML writes as JSON does, then the tables in it."""
    nested = {k: v for k, v in table.items() if isinstance(v, dict) or (v and isinstance(v, list) and _is_table(v[0]))}
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in table.items() if key not in nested and value != []]
    for key, value in nested.items():
        name = f"{prefix}{key}"
        for part in value if isinstance(value, list) else [value]:
            heading = f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
            lines.append(f"\n{heading}\n{_toml(part, f'{name}.')}")
    return "".join(lines)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)
