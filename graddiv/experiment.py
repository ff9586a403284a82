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
Name = Annotated[str, Field(pattern=r"^[\w.+-]+$")]
"""Part of the name of a directory."""


class Section(BaseModel):
    """One table of a recipe: frozen, and with no other keys than these."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataSection(Section):
    """Which examples are trained on."""

    name: DataName
    examples: Count | None = Field(None, description="the first so many training examples; all if absent")


class NetworkSection(Section):
    """The architecture, before any noise."""

    architecture: Architecture
    width: Positive = Field(1.0, description="multiplies the number of channels")


class TrainingSection(Section):
    """Adam and its schedule."""

    epochs: Count
    batch: Count = 128
    lr: Positive = 1e-3
    decays: tuple[Epochs, ...] = Field((), description="after these epochs the learning rate is multiplied by decay")
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
    warmup: Epochs = Field(0, description="epochs with lam = 0")
    rampup: Epochs = Field(0, description="epochs in which lam grows to its value")
    at: Literal["clean", "adversarial"] = Field("clean", description="the x at which gradients are compared")
    low_memory: bool = False


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

    @model_validator(mode="after")
    def _fits_together(self) -> "Experiment":
        noise = [name for name in NOISE if getattr(self, name) is not None]
        if len(noise) > 1:
            raise ValueError(f"the sections {' and '.join(noise)} exclude each other: a network has one kind of noise")
        if self.graddiv is not None and not noise:
            raise ValueError(f"graddiv needs a randomized network: add one of the sections {', '.join(NOISE)}")
        if self.graddiv is not None and self.graddiv.at == "adversarial" and self.adversary is None:
            raise ValueError("graddiv.at is 'adversarial', which needs the section adversary")
        return self

    @property
    def digest(self) -> str:
        """Names the run: the same settings, the same digest."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json")).encode()).hexdigest()[:10]

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
        regularizer = 6 * self.graddiv.n if self.graddiv is not None and self.graddiv.lam > 0 else 0
        examples = self.data.examples or TRAINING_EXAMPLES[self.data.name]
        passes = self.training.epochs * examples * (adversary + 3 * halves + regularizer)
        return passes * FORWARD[self.network.architecture] * self.network.width**2

    @property
    def cost(self) -> str:
        """The time training takes on two CPU cores, about."""
        return duration(self.work / TWO_CORES)

    def to_toml(self) -> str:
        """The recipe, complete: what is absent is off."""
        values = self.model_dump(mode="json", exclude_none=True)
        lines = [f"{key} = {_toml(value)}" for key, value in values.items() if not isinstance(value, dict)]
        for section, table in values.items():
            if isinstance(table, dict):
                lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"

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
    step, steps = state["progress"]["step"], experiment.training.epochs * (len(data) // experiment.training.batch)
    if checkpoint == LAST and step < steps:
        raise GradDivError(
            f"{directory} is not trained to its end, but to step {step} of {steps}: run its training again"
        )
    F = experiment.build(data)
    load_state(F, tensors, path)
    return experiment, F.eval()


def load_state(F: "RandomizedNetwork", tensors: "Mapping[str, Tensor]", path: Path) -> None:
    """Give F the parameters and buffers of a checkpoint."""
    state = {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}
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
            known = list(_table(error["loc"][:-1]).model_fields)
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
    for key in location:
        annotation = model.model_fields[str(key)].annotation
        model = next(iter(get_args(annotation)), annotation)  # "Section | None" or "Section"
    return cast("type[BaseModel]", model)


def _toml(value: object) -> str:
    """A scalar or a list as TOML, which for these agrees with JSON."""
    return json.dumps(value)
