"""Attacks of other libraries, run on the models of a view: rows of the same table, judged by the same rule.

The libraries are optional.  Each is imported when it is first used, calls the view through `as_module`, and draws its
own random choices inside `isolated`, since all of them draw from the global random state.
"""

import sys
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graddiv.attacks.attack import Attack, Problem
from graddiv.attacks.module import as_module
from graddiv.attacks.registry import suite
from graddiv.attacks.view import View
from graddiv.errors import GradDivError
from graddiv.geometry import Linf
from graddiv.registries import Registry
from graddiv.seeding import fold, isolated

RESTART = 2**32
"""By so many iterations the models of one restart lie behind those of the one before."""


@dataclass(frozen=True)
class PeerAttack(Attack):
    """An attack of another library, with m iterations on the n models that the view shows in each.

    It is called as its documentation does, except that it starts from x0 where it can, as our attacks do.  In the l_inf
    norm and with pixels in [0, 1].  What it draws depends on the batch: its libraries have no randomness per example.
    """

    m: int = 50
    """Iterations; at least 1."""

    library: ClassVar[str]
    """The name of the library."""
    module: ClassVar[str]
    """The module of it that has the attack."""
    algorithm: ClassVar[str]
    """The attack's name in our tables."""
    counterpart: ClassVar[str]
    """The name of our attack whose iterations in a suite it is given."""
    packages: ClassVar[str]
    """What pip installs, without what it declares to need: that would bring torchvision and old pins along."""
    averages: ClassVar[bool] = True
    """Whether it calls the model n times in an iteration; if not, it is shown the ensemble of the n models."""

    def __post_init__(self) -> None:
        if self.m < 1:
            raise GradDivError(f"m is {self.m}, expected at least one iteration")
        if self.geometry != Linf():
            raise GradDivError(f"the geometry is {self.geometry}, expected {Linf()} for an attack of {self.library}")

    @property
    def name(self) -> str:  # type: ignore[override]
        """The library and the attack."""
        return f"{self.library} {self.algorithm}"

    def label(self, view: View) -> str:
        return f"{self.library} {view.label(self.algorithm)}"

    @property
    def iterations(self) -> int:
        return self.m

    @abstractmethod
    def perturb(self, model: nn.Module, problem: Problem, epsilon: float) -> Float[Tensor, "b ..."]:
        """Call the library's attack on the model; the problem says the rest."""

    def run(self, problem: Problem, restart: int) -> Float[Tensor, "b ..."]:
        if (problem.epsilon != problem.epsilon[0]).any():
            raise GradDivError(f"epsilon differs from image to image, but {self.library} takes one for the whole batch")
        problem = replace(problem, x0=problem.x0.contiguous())  # pyautoattack knows no other memory format
        model = as_module(problem.view, mean=not self.averages, first=restart * RESTART, like=problem.x0)
        _tick_after(model, problem.view.n if self.averages else 1, self.m, problem)
        with isolated(fold(problem.seed, self.name, restart, *problem.ids.tolist())), torch.enable_grad():
            x = self.perturb(model, problem, float(problem.epsilon[0]))
        return x.detach().to(problem.x0)

    def imported(self) -> Any:
        """Return the module that has the attack; where it cannot be imported, one sentence says what to install."""
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

    alpha: float = 0.25
    """Length of a step as a share of epsilon."""

    algorithm = "PGD"
    counterpart = "pgd"


@dataclass(frozen=True)
class TorchattacksPGD(PeerPGD):
    """torchattacks' EOTPGD: the sign of the sum of n gradients of cross-entropy."""

    library = module = packages = "torchattacks"

    def perturb(self, model: nn.Module, problem: Problem, epsilon: float) -> Float[Tensor, "b ..."]:
        settings = {"steps": self.m, "eot_iter": problem.view.n, "random_start": False}
        attack = self.imported().EOTPGD(model, eps=epsilon, alpha=self.alpha * epsilon, **settings)
        x: Tensor = attack(problem.x0, problem.y)
        return x


@dataclass(frozen=True)
class FoolboxPGD(PeerPGD):
    """foolbox' LinfPGD behind its EOT wrapper: the gradient of cross-entropy at the mean of n logits.

    All n graphs are alive at once, so its memory grows with n.
    """

    library = module = "foolbox"
    packages = "foolbox eagerpy"

    def perturb(self, model: nn.Module, problem: Problem, epsilon: float) -> Float[Tensor, "b ..."]:
        foolbox = self.imported()
        seen = foolbox.PyTorchModel(model, bounds=Linf().bounds, device=problem.x0.device)
        if problem.view.n > 1:
            seen = foolbox.models.ExpectationOverTransformationWrapper(seen, n_steps=problem.view.n)
        attack = foolbox.attacks.LinfPGD(rel_stepsize=self.alpha, steps=self.m, random_start=False)
        x: Tensor = attack.run(seen, problem.x0, problem.y, epsilon=epsilon)
        return x


@dataclass(frozen=True)
class ArtPGD(PeerPGD):
    """The PGD of the Adversarial Robustness Toolbox; it averages over no models, so it is shown their ensemble."""

    library = "art"
    module = "art.attacks.evasion"
    packages = "adversarial-robustness-toolbox six scikit-learn joblib threadpoolctl cloudpickle narwhals"
    averages = False

    def perturb(self, model: nn.Module, problem: Problem, epsilon: float) -> Float[Tensor, "b ..."]:
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
        settings = {"max_iter": self.m, "batch_size": len(x), "verbose": False}
        attack = evasion.ProjectedGradientDescentPyTorch(
            estimator, eps=epsilon, eps_step=self.alpha * epsilon, **settings
        )
        return torch.from_numpy(attack.generate(x, y))


@dataclass(frozen=True)
class PyautoattackAPGD(PeerAttack):
    """APGD of AutoAttack's version "rand", which is APGD-CE and APGD-DLR on the mean of n gradients.

    It begins with a forward pass of one model and leaves the images alone that this model gets wrong; of the others it
    returns the last iterate that the last model of an iteration got wrong, or the clean image where there is none.
    """

    library = packages = "pyautoattack"
    module = "pyautoattack.autopgd_base"

    @property
    def algorithm(self) -> str:  # type: ignore[override]
        """APGD-CE or APGD-DLR."""
        return f"APGD-{self.objective.upper()}"

    @property
    def counterpart(self) -> str:  # type: ignore[override]
        """apgd-ce or apgd-dlr."""
        return self.algorithm.lower()

    def perturb(self, model: nn.Module, problem: Problem, epsilon: float) -> Float[Tensor, "b ..."]:
        settings = {"n_iter": self.m, "loss": self.objective, "eot_iter": problem.view.n}
        # it seeds the global state anew: with the seed that this state has anyway, inside `isolated`
        attack = self.imported().APGDAttack(model, eps=epsilon, seed=torch.initial_seed(), **settings)
        x: Tensor = attack.perturb(problem.x0, problem.y)
        return x


PEERS: Registry[tuple[PeerAttack, ...]] = Registry(
    "library",
    {
        "torchattacks": (TorchattacksPGD(),),
        "pyautoattack": (PyautoattackAPGD(), PyautoattackAPGD(objective="dlr")),
        "foolbox": (FoolboxPGD(),),
        "art": (ArtPGD(),),
    },
)
"""The attacks of each library."""


def peers(names: Sequence[str], suite_name: str, m: int | None = None) -> list[PeerAttack]:
    """Return the attacks of these libraries, each with m iterations or those of its counterpart in the suite.

    Libraries that cannot be imported are refused here, before anything long begins.
    """
    found = [attack for name in dict.fromkeys(names) for attack in PEERS[name]]
    for attack in found:
        attack.imported()
    return [replace(attack, m=suite(suite_name, [attack.counterpart], m)[0].iterations) for attack in found]


def _tick_after(model: nn.Module, calls: int, iterations: int, problem: Problem) -> None:
    """Report an iteration of the problem after every so many calls of the model, at most as many as there are."""
    done = 0

    def count(*_: object) -> None:
        nonlocal done
        done += 1
        if done % calls == 0 and done <= calls * iterations:
            problem.tick()

    model.register_forward_hook(count)


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
