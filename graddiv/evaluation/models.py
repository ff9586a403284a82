"""Makes a `RandomizedNetwork` of any model, without changing it."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from graddiv import store
from graddiv.errors import GradDivError
from graddiv.evaluation.examples import Bounds, unscaled
from graddiv.evaluation.inspection import Item
from graddiv.networks import Dirac, Noise, RandomizedNetwork, SampleModel, Theta, randomize
from graddiv.networks.architectures import Normalize
from graddiv.networks.ensemble import ensemble
from graddiv.networks.foreign import draws_by_itself
from graddiv.networks.inputs import HALF, NO_ARRAY, check_takes, naming_the_shape, running_statistics
from graddiv.references import called, is_code, made
from graddiv.seeding import isolated
from graddiv.store import digest

#: What can be evaluated and audited.
Model = RandomizedNetwork | nn.Module | Callable[[Tensor], Tensor] | Sequence[nn.Module] | str | Path
ROBUSTBENCH = "robustbench:"
REFERENCES = "a run, file.py:name of a model or what makes one, robustbench:NAME, or a folder in Hugging Face's format"
ARRAYS: frozenset[Any] = frozenset((Tensor.numpy, Tensor.__array__))  #: Those that refuse a graph.
NO_ANSWER = 30.0  #: How far the logit of no answer lies from the others.


def _of_inner(name: str) -> Any:
    """A property that reads this attribute of the inner network."""
    return property(lambda self: getattr(self.inner, name))


class Adapted(RandomizedNetwork):
    """A network around another one, with sample models f'(x) = call(f, x)."""

    module, random, pointwise, proxy_gradient = map(_of_inner, ("module", "random", "pointwise", "proxy_gradient"))
    draw, realise, theta, mean, support = map(_of_inner, ("draw", "realise", "theta", "mean", "support"))

    def __init__(self, inner: RandomizedNetwork, call: Callable[[SampleModel, Tensor], Tensor]) -> None:
        nn.Module.__init__(self)  # the architecture is the inner network's, and registered there
        self.inner = inner
        self.call = call

    def bind(self, noise: Noise, theta: Theta | None = None) -> SampleModel:
        f = self.inner.bind(noise, theta)
        return lambda x: self.call(f, x)


class Frozen(Adapted):
    """f(x) = log 1/k sum_i softmax f_i(x): the ensemble of the sample models of k values of the noise."""

    random = False

    def __init__(self, inner: RandomizedNetwork, noises: tuple[Noise, ...]) -> None:
        super().__init__(inner, lambda f, x: f(x))
        self.noises = noises

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> Noise:
        return {}

    def bind(self, noise: Noise, theta: Theta | None = None) -> SampleModel:
        models = [self.inner.bind(value, theta) for value in self.noises]
        if len(models) == 1:
            return models[0]
        return lambda x: torch.stack([f(x).log_softmax(1) for f in models]).logsumexp(0) - math.log(len(models))


class Replayed(Adapted):
    """A network that draws beside its noise: the noise is a seed, of its own and of what it asks the generators for."""

    random, pointwise = True, False

    def __init__(self, inner: RandomizedNetwork) -> None:
        super().__init__(inner, lambda f, x: f(x))

    def draw(self, seed: int, batch: Int64[Tensor, " b"] | None = None) -> int:
        return seed

    def bind(self, noise: Noise, theta: Theta | None = None) -> SampleModel:
        assert isinstance(noise, int)
        f = self.inner.bind(self.inner.draw(noise), theta)

        def call(x: Tensor) -> Tensor:
            with isolated(noise):
                return f(x)

        return call

    def mean(self) -> None:
        return None

    def support(self) -> None:
        return None


class FunctionModule(nn.Module):
    """A function x -> logits as a module without parameters."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.forward = function


class GivenModel(NamedTuple):
    """A model as it was given."""

    F: RandomizedNetwork
    name: str
    declared: bool | None  #: Whether the caller declared it random; None if we find out.


def network_of(
    model: Model, x: Float[Tensor, "b ..."], data_root: str | Path | None = None, device: torch.device | None = None
) -> GivenModel:
    """Make a randomized network of a model; images x, as it takes them, show whether a module draws by itself."""
    given = _network_of(model, x, data_root, device)
    return given._replace(F=with_arrays(given.F)) if _makes_arrays(given.F, x[:2]) else given


def _makes_arrays(F: RandomizedNetwork, x: Float[Tensor, "b ..."]) -> bool:
    """Whether a call fails because it makes an array of a tensor that has a graph."""
    try:
        with torch.enable_grad(), running_statistics(F), isolated(0):
            F.bind(F.draw(0))(x.detach().to(F.device).requires_grad_())
    except Exception as error:  # any other is told by who calls the network next
        return NO_ARRAY in str(error)
    return False


def _network_of(
    model: Model, x: Float[Tensor, "b ..."], data_root: str | Path | None, device: torch.device | None
) -> GivenModel:
    model = load_model(str(model)) if isinstance(model, str | Path) else model
    if isinstance(model, Path):
        from graddiv.runs import Run

        run = Run(model)
        return GivenModel(run.network(data_root).to(device), run.experiment.run_name, run.experiment.random)
    if isinstance(model, RandomizedNetwork):
        return GivenModel(model.to(device), type(model.module).__name__, model.random)
    if isinstance(model, Sequence):
        if not model or not all(isinstance(each, nn.Module) for each in model):
            kinds = ", ".join(sorted({type(each).__name__ for each in model})) or "nothing"
            raise GradDivError(f"the model is a list of {kinds}, expected modules: the members of a random ensemble")
        members = [each for each in model if isinstance(each, nn.Module)]
        return GivenModel(ensemble(members).to(device), f"ensemble of {len(model)} {type(model[0]).__name__}", True)
    if isinstance(model, type):
        raise GradDivError(f"the model is the class {model.__name__}, expected what it makes: {model.__name__}()")
    if isinstance(model, nn.Module):
        return GivenModel(_randomized(model.to(device), x), type(model).__name__, None)
    if callable(model):
        return GivenModel(_randomized(FunctionModule(model), x), _name(model), None)
    raise GradDivError(
        f"the model is {type(model).__name__}, expected a module, a RandomizedNetwork, a function x -> logits, a list "
        "of modules or the directory of a run"
    )


def _randomized(module: nn.Module, x: Float[Tensor, "b ..."]) -> RandomizedNetwork:
    """Treat a module as random if its calls draw noise."""
    x = x.to(next((p.device for p in module.parameters()), x.device))
    check_takes(module, x)
    with naming_the_shape(x):
        return randomize(module, active=()) if draws_by_itself(module, module, x[:2]) else Dirac(module)


def dtype_of(model: Model) -> torch.dtype | None:
    """The type of a model's parameters, and so of its images; None if it has none, or in half precision."""
    modules = model if isinstance(model, Sequence) else [model]
    parameters = (p for module in modules if isinstance(module, nn.Module) for p in module.parameters())
    found = next((p.dtype for p in parameters if p.is_floating_point()), None)
    return None if found in HALF else found


def _name(function: Callable[[Tensor], Tensor]) -> str:
    """The name of a function with a hash of its source, so that an edited function has another name."""
    name = getattr(function, "__qualname__", type(function).__name__)
    try:
        return f"{name}-{digest(inspect.getsource(function))[:8]}"
    except (OSError, TypeError):
        return name


def load_model(reference: str) -> Model:
    """The model of a reference.

    A run, or a folder in the format of Hugging Face; robustbench:NAME, or robustbench:DATASET/THREAT/NAME;
    `file.py:name` or `package.module:name` of a model, a list of modules, or a function or class that makes one.
    """
    path = Path(reference)
    if store.is_directory(path):
        return _of_hugging_face(path) if (path / "config.json").exists() else path
    if reference.startswith(ROBUSTBENCH):
        return _of_robustbench(reference.removeprefix(ROBUSTBENCH))
    if not is_code(reference):
        raise GradDivError(f"there is no model {reference!r}, expected {REFERENCES}")
    return called(reference, expected=REFERENCES, take=lambda found: _model_of(reference, found))


def _model_of(reference: str, found: Any) -> Model:
    """The object that a reference names, or what it makes."""
    if isinstance(found, nn.Module | list | tuple):
        return found
    if not callable(found):
        raise GradDivError(f"{reference} is of type {type(found).__name__}, expected {REFERENCES}")
    model: Model = made(reference, found)
    return model


def _of_hugging_face(folder: Path) -> nn.Module:
    """An image classifier of the library transformers, which takes pixels in [0, 1]."""
    try:
        from transformers import AutoModelForImageClassification
    except ImportError:
        raise GradDivError(f"{folder} is in Hugging Face's format: pip install transformers") from None
    try:
        model = AutoModelForImageClassification.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError) as error:
        raise GradDivError(f"{folder} holds no image classifier: {str(error).splitlines()[0]}") from None
    about = folder / "preprocessor_config.json"
    found = store.read_json(about) if about.exists() else {}
    normalized = found.get("do_normalize") and found.get("image_mean") and found.get("image_std")
    return ImageClassifier(model, Normalize(found["image_mean"], found["image_std"]) if normalized else nn.Identity())


class ImageClassifier(nn.Module):
    """A model of transformers as a function of pixels in [0, 1] that returns logits alone."""

    def __init__(self, model: nn.Module, normalize: nn.Module) -> None:
        super().__init__()
        self.model, self.normalize = model, normalize
        self.training = model.training

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        logits: Tensor = self.model(pixel_values=self.normalize(x)).logits
        return logits


def _of_robustbench(reference: str) -> nn.Module:
    """A model of the zoo robustbench; CIFAR-10 and Linf unless the reference says otherwise."""
    try:
        from robustbench.utils import load_model as load
    except ImportError:
        raise GradDivError(f"{ROBUSTBENCH}{reference} needs the package: pip install robustbench") from None
    *where, name = reference.split("/")
    dataset, threat = where if len(where) == 2 else ("cifar10", "Linf")
    module: nn.Module = load(model_name=name, dataset=dataset, threat_model=threat)
    return module


def original(F: RandomizedNetwork) -> RandomizedNetwork:
    """The innermost network, without adapters."""
    return original(F.inner) if isinstance(F, Adapted) else F


def rescaled(F: RandomizedNetwork, bounds: Bounds) -> RandomizedNetwork:
    """The network, which expects pixels between the bounds, on images with pixels in [0, 1]."""
    if np.all(np.equal(bounds[0], 0)) and np.all(np.equal(bounds[1], 1)):
        return F
    return Adapted(F, lambda f, x: f(unscaled(x, bounds)))


def with_logits(F: RandomizedNetwork) -> RandomizedNetwork:
    """The network with the logarithm of its probabilities as logits, so that softmax returns them."""
    return Adapted(F, lambda f, x: (z := f(x)).clamp_min(torch.finfo(z.dtype).tiny).log())


def with_gradients(F: RandomizedNetwork) -> RandomizedNetwork:
    """The network with gradient 0 where autograd finds none, or one that is not finite: attacks can then be run."""

    def call(f: SampleModel, x: Tensor) -> Tensor:
        x = x * 1
        if x.requires_grad:
            x.register_hook(lambda g: torch.nan_to_num(g, 0.0, 0.0, 0.0))  # type: ignore[no-untyped-call]
        return f(x) + 0 * x.flatten(1).sum(1, keepdim=True)

    return Adapted(F, call)


def with_no_answer(F: RandomizedNetwork) -> RandomizedNetwork:
    """The network with a class more, no answer, where a logit is NaN: it is no label, so that the answer is wrong."""

    def call(f: SampleModel, x: Tensor) -> Tensor:
        z = f(x)
        missing = z.isnan().any(1, keepdim=True)
        z = torch.where(missing, 0.0, z)
        other = torch.where(missing, NO_ANSWER, z.detach().amin(1, keepdim=True) - NO_ANSWER)
        return torch.cat([z, other], 1)

    return Adapted(with_gradients(F), call)


def answering(F: RandomizedNetwork, numbers: Item) -> tuple[RandomizedNetwork, Item]:
    """The network, in which NaN is a wrong answer if some answers are NaN; the check of it, told so."""
    if numbers.verdict == "fail":
        raise GradDivError(numbers.sentence)
    if numbers.verdict == "pass":
        return F, numbers
    return with_no_answer(F), numbers.remedied("each counts as a wrong answer")


class _Detached(TorchFunctionMode):
    """While active, the gradient ends where an array is made: x.numpy() is x.detach().numpy()."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in ARRAYS:  # not by `detach`, which another mode may take for the identity
            args = (args[0].data, *args[1:])
        return func(*args, **(kwargs or {}))


def with_arrays(F: RandomizedNetwork) -> RandomizedNetwork:
    """The network, which may make arrays of tensors: its gradient is that of the other ways to its output."""

    def call(f: SampleModel, x: Tensor) -> Tensor:
        with _Detached():
            return f(x)

    return Adapted(F, call)


def settled(F: RandomizedNetwork, draws: bool) -> RandomizedNetwork:
    """The network as checks found it: made random if it draws, frozen if it does not."""
    if draws == F.random:
        return F
    return replayed(F) if draws else Frozen(F, (F.draw(0),))


def replayed(F: RandomizedNetwork) -> RandomizedNetwork:
    """The network with all that its calls draw as its noise."""
    return randomize(F.module, active=()) if isinstance(F, Dirac) else Replayed(F)
