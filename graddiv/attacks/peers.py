"""Attacks of other libraries, run on the models of a view: rows of the same table, judged by the same rule.

A library is imported when it is first used, calls the view through `as_module`, and draws its random choices inside
`isolated`, since all of them draw from the global random state.
"""

import sys
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, count
from types import ModuleType
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graddiv.attacks.aim import Aimed
from graddiv.attacks.attack import Attack, Problem
from graddiv.attacks.suites import suite
from graddiv.attacks.view import NetworkView, View
from graddiv.errors import GradDivError
from graddiv.geometry import Images, Linf
from graddiv.losses import log_expectation
from graddiv.networks import SampleModel
from graddiv.registries import Count, Positive, Registry
from graddiv.seeding import fold, isolated

RESTART = 2**32  #: how many iterations apart the models of two restarts are


@dataclass(frozen=True)
class PeerAttack(Attack):
    """An attack of another library, with m iterations on the n models that the view shows in each.

    It is called as its documentation does, except that it starts from x0 where it can; in the l_inf norm and with
    pixels in [0, 1].  What it draws depends on the batch: these libraries have no randomness per example.
    """

    m: Count = 50  #: iterations; at least 1

    library: ClassVar[str]
    module: ClassVar[str]  #: the module of the library that has the attack
    algorithm: ClassVar[str]  #: the attack's name in our tables; our attack of that name sets its iterations in a suite
    packages: ClassVar[str]  #: what to install with pip, without the old pins that it declares
    averages: ClassVar[bool] = True  #: whether it calls the model n times an iteration; else it is shown the ensemble

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.geometry != Linf():
            raise GradDivError(f"the geometry is {self.geometry}, expected {Linf()} for an attack of {self.library}")

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.library} {self.algorithm}"

    def label(self, view: View) -> str:
        return f"{self.library} {view.label(self.algorithm)}"

    @abstractmethod
    def perturb(self, model: nn.Module, problem: Problem, epsilon: float) -> Any:
        """Call the library's attack on the model; the problem has all other inputs."""

    def run(self, problem: Problem, restart: int) -> Images:
        if isinstance(problem.view, Aimed):
            raise GradDivError(f"an attack of {self.library} was given a target, expected none: its own API takes them")
        if (problem.epsilon != problem.epsilon[0]).any():
            raise GradDivError(f"epsilon differs from image to image, but {self.library} takes one for the whole batch")
        problem = replace(problem, x0=problem.x0.contiguous())  # pyautoattack knows no other memory format
        model = as_module(problem.view, mean=not self.averages, first=restart * RESTART, like=problem.x0)
        calls, numbers = problem.view.n if self.averages else 1, count(1)

        def tick(*_: object) -> None:
            done = next(numbers)
            if done % calls == 0 and done <= calls * self.m:
                problem.tick()

        model.register_forward_hook(tick)
        with isolated(fold(problem.seed, self.name, restart, *problem.ids.tolist())), torch.enable_grad():
            x: Tensor = self.perturb(model, problem, float(problem.epsilon[0]))
        return x.detach().to(problem.x0)

    def imported(self) -> Any:
        """Import the module that has the attack, or raise an error that says what to install."""
        try:
            with _without_model_zoo(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what the library itself imports
                return import_module(self.module)
        except ImportError as error:
            raise GradDivError(
                f"{self.library} cannot be imported ({error}): install it with pip install --no-deps {self.packages}"
            ) from error


@dataclass(frozen=True)
class PeerPGD(PeerAttack):
    """PGD of another library, with steps as long as those of our own."""

    alpha: Positive = 0.25  #: length of a step as a share of epsilon
    algorithm = "PGD"


@dataclass(frozen=True)
class TorchattacksPGD(PeerPGD):
    """torchattacks' EOTPGD: the sign of the sum of n gradients of cross-entropy."""

    library = module = packages = "torchattacks"

    def perturb(self, model: nn.Module, problem: Problem, epsilon: float) -> Any:
        settings = {"steps": self.m, "eot_iter": problem.view.n, "random_start": False}
        attack = self.imported().EOTPGD(model, eps=epsilon, alpha=self.alpha * epsilon, **settings)
        return attack(problem.x0, problem.y)


@dataclass(frozen=True)
class FoolboxPGD(PeerPGD):
    """foolbox' LinfPGD behind its EOT wrapper: the gradient of cross-entropy at the mean of n logits.

    All n graphs are alive at once, so its memory grows with n.
    """

    library = module = "foolbox"
    packages = "foolbox eagerpy"

    def perturb(self, model: nn.Module, problem: Problem, epsilon: float) -> Any:
        foolbox = self.imported()
        seen = foolbox.PyTorchModel(model, bounds=Linf().bounds, device=problem.x0.device)
        if problem.view.n > 1:
            seen = foolbox.models.ExpectationOverTransformationWrapper(seen, n_steps=problem.view.n)
        attack = foolbox.attacks.LinfPGD(rel_stepsize=self.alpha, steps=self.m, random_start=False)
        return attack.run(seen, problem.x0, problem.y, epsilon=epsilon)


@dataclass(frozen=True)
class ArtPGD(PeerPGD):
    """The PGD of the Adversarial Robustness Toolbox; it averages over no models, so it is shown their ensemble."""

    library = "art"
    module = "art.attacks.evasion"
    packages = "adversarial-robustness-toolbox six scikit-learn joblib threadpoolctl cloudpickle narwhals"
    averages = False

    def perturb(self, model: nn.Module, problem: Problem, epsilon: float) -> Any:
        evasion, classification = self.imported(), import_module("art.estimators.classification")
        x, y = problem.x0.cpu().numpy(), problem.y.cpu().numpy()
        estimator = classification.PyTorchClassifier(
            model=model,
            loss=nn.CrossEntropyLoss(),
            input_shape=x.shape[1:],
            nb_classes=max(2, int(y.max()) + 1),  # used to write the labels as one-hot vectors, for nothing else
            clip_values=Linf().bounds,
            device_type="gpu" if problem.x0.is_cuda else "cpu",
        )
        settings = {"eps_step": self.alpha * epsilon, "max_iter": self.m, "batch_size": len(x), "verbose": False}
        attack = evasion.ProjectedGradientDescentPyTorch(estimator, eps=epsilon, **settings)
        return torch.from_numpy(attack.generate(x, y))


@dataclass(frozen=True)
class PyautoattackAPGD(PeerAttack):
    """APGD of AutoAttack's version "rand", which is APGD-CE and APGD-DLR on the mean of n gradients.

    It begins with a forward pass of one model and skips the images that this model misclassifies.  Of the others it
    returns the last iterate that the last model of an iteration misclassified, or the clean image if there is none.
    """

    library = packages = "pyautoattack"
    module = "pyautoattack.autopgd_base"

    @property
    def algorithm(self) -> str:  # type: ignore[override]
        return f"APGD-{self.objective.upper()}"

    def perturb(self, model: nn.Module, problem: Problem, epsilon: float) -> Any:
        settings = {"n_iter": self.m, "loss": self.objective, "eot_iter": problem.view.n}
        # it seeds the global state: with the seed that `isolated` has given it
        attack = self.imported().APGDAttack(model, eps=epsilon, seed=torch.initial_seed(), **settings)
        return attack.perturb(problem.x0, problem.y)


PEERS: Registry[tuple[PeerAttack, ...]] = Registry("library", {"torchattacks": (TorchattacksPGD(),)})
PEERS["pyautoattack"] = PyautoattackAPGD(), PyautoattackAPGD(objective="dlr")
PEERS["foolbox"] = (FoolboxPGD(),)
PEERS["art"] = (ArtPGD(),)


def peers(names: Sequence[str], suite_name: str, m: int | None = None) -> list[PeerAttack]:
    """Return the attacks of these libraries, each with m iterations or those of its counterpart in the suite.

    Libraries that cannot be imported are refused here, before anything long begins.
    """
    found = [attack for name in dict.fromkeys(names) for attack in PEERS[name]]
    for attack in found:
        attack.imported()
    return [replace(attack, m=suite(suite_name, [attack.algorithm.lower()], m)[0].iterations) for attack in found]


@contextmanager
def _without_model_zoo() -> Iterator[None]:
    """Let foolbox be imported without the packages that only its model zoo needs."""
    missing = [name for name in ("git", "requests") if name not in sys.modules and find_spec(name) is None]
    for name in missing:
        sys.modules[name] = ModuleType(name)
    if "git" in missing:
        sys.modules["git"].Repo = None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


class ViewModule(nn.Module):
    """A module x -> logits that shows, from call to call, the sample models of the view one after the other.

    view: what the adversary sees; its cost counts every pass and draw, also on a part of the batch.
    mean: each call is log sum_i q_i softmax f_i(x) over all n models of the next iteration, q_i = 1/n or the view's
        probabilities, for libraries that do not average by themselves.  Those that do call n times, a model each.
    first: the iteration of the view whose models come first.
    like: a tensor of the device and type that the models take; by default those of the network's parameters.

    Call it inside `seeding.isolated` if the library draws from the global random state: this module does not.
    """

    def __init__(self, view: View, *, mean: bool = False, first: int = 0, like: Tensor | None = None) -> None:
        super().__init__()
        if like is None:
            like = next(view.F.module.parameters(), None) if isinstance(view, NetworkView) else None
        if like is None:
            raise GradDivError("a view of given models does not tell where they lie: pass like=x, the images to attack")
        if view.probabilities is not None and not mean:
            raise GradDivError(
                "the models of the view are not equally likely, but calls in turn weigh them alike: pass mean=True"
            )
        self.view, self.mean, self._iterations = view, mean, map(view, count(first))
        self._models = chain.from_iterable(self._iterations)
        # libraries ask a network's parameters for its device; those of the models are constants of the view
        self.where = nn.Parameter(like.detach().new_empty(0), requires_grad=False)
        self.eval()

    def forward(self, x: Images) -> Float[Tensor, "b c"]:
        """Return the logits of the next model, or those of the ensemble of the next n."""
        with self.view.context():
            if not self.mean:
                return self._logits(next(self._models), x)
            log_p = torch.stack([self._logits(f, x).log_softmax(1) for f in next(self._iterations)])
            q = self.view.probabilities
            return log_expectation(log_p, None if q is None else q.to(log_p))

    def _logits(self, f: SampleModel, x: Tensor) -> Tensor:
        self.view.cost.forwards += 1
        x_seen = x.view_as(x)
        if x_seen.requires_grad:
            x_seen.register_hook(self._count_backward)  # type: ignore[no-untyped-call]
        return f(x_seen.to(self.where.dtype)).to(x.dtype)

    def _count_backward(self, _: Tensor) -> None:
        self.view.cost.backwards += 1


as_module = ViewModule
