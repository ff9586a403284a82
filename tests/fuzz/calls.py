"""Calls of attacks and of `evaluate` with arguments that nobody should pass, and some that everybody does."""

import random
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from graddiv.attacks import APGD, BB, EOT, FAB, FGSM, PGD, Attack, Given, Square
from graddiv.data import load
from graddiv.errors import GradDivError
from graddiv.evaluation import evaluate, predict
from graddiv.networks import Dirac, bayesian, randomize
from tests.fuzz.fuzzer import Outcome
from tests.helpers import convnet, images, labels

X, Y = images(3).float(), labels(3)
ATTACKS: tuple[Attack, ...] = (FGSM(), PGD(m=2), APGD(m=2), Square(m=2), FAB(m=1), BB(m=1))


class Odd(nn.Module):
    """A small network whose output, or whose code, is odd."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.module, self.change = convnet().float(), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.module(x))


def inferred(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


NETWORKS: dict[str, Callable[[], Any]] = {
    "plain": lambda: convnet().float(),
    "Dirac": lambda: Dirac(convnet().float()),
    "random": lambda: bayesian(convnet().float(), 0.1),
    "dropout": lambda: randomize(nn.Sequential(convnet().float(), nn.Dropout(0.2))),
    "float64": lambda: convnet().double(),
    "float16": lambda: convnet().half(),
    "bfloat16": lambda: convnet().bfloat16(),
    "a class": lambda: nn.Linear,
    "a function": lambda: lambda x: x.flatten(1)[:, :4],
    "a list": lambda: [convnet().float()],
    "nothing": lambda: None,
    "one class": lambda: Odd(lambda z: z[:, :1]),
    "no class": lambda: Odd(lambda z: z[:, :0]),
    "two classes": lambda: Odd(lambda z: z[:, :2]),
    "a tuple": lambda: Odd(lambda z: (z, z.sum())),
    "an empty tuple": lambda: Odd(lambda z: ()),
    "a dictionary": lambda: Odd(lambda z: {"logits": z}),
    "one dimension": lambda: Odd(lambda z: z[:, 0]),
    "integers": lambda: Odd(lambda z: z.long()),
    "no graph": lambda: Odd(lambda z: z.detach()),
    "constant": lambda: Odd(lambda z: 0 * z),
    "NaN": lambda: Odd(lambda z: z * float("nan")),
    "infinite": lambda: Odd(lambda z: z / 0),
    "an array": lambda: Odd(lambda z: z.detach().numpy()),
    "a row too few": lambda: Odd(lambda z: z[1:]),
}
IMAGES: dict[str, Callable[[], Any]] = {
    "as they are": lambda: X,
    "with a history": lambda: X.clone().requires_grad_(),
    "of inference": lambda: inferred(X),
    "float64": lambda: X.double(),
    "float16": lambda: X.half(),
    "bfloat16": lambda: X.bfloat16(),
    "bytes": lambda: (255 * X).byte(),
    "0 to 255": lambda: 255 * X,
    "NaN": lambda: X * float("nan"),
    "meta": lambda: X.to("meta"),
    "an array": lambda: X.numpy(),
    "a list": lambda: X.tolist(),
    "none": lambda: X[:0],
    "half an image": lambda: X[:, :, :3],
    "colours": lambda: X.expand(-1, 3, -1, -1),
    "flat": lambda: X.flatten(1),
    "one image": lambda: X[0],
    "strided": lambda: X.flip(3).transpose(2, 3),
    "nothing": lambda: None,
    "a word": lambda: "x",
}
LABELS: dict[str, Callable[[], Any]] = {
    "as they are": lambda: Y,
    "int32": lambda: Y.int(),
    "floats": lambda: Y.float(),
    "too large": lambda: Y + 99,
    "negative": lambda: Y - 9,
    "too few": lambda: Y[:2],
    "one for each class": lambda: nn.functional.one_hot(Y, 4),
    "an array": lambda: Y.numpy(),
    "a list": lambda: Y.tolist(),
    "of inference": lambda: inferred(Y),
    "missing": lambda: None,
}
RADII: dict[str, Callable[[], Any]] = {
    "0.1": lambda: 0.1,
    "0": lambda: 0.0,
    "a whole number": lambda: 1,
    "8": lambda: 8,
    "negative": lambda: -0.1,
    "NaN": lambda: float("nan"),
    "infinite": lambda: float("inf"),
    "numpy": lambda: np.float32(0.1),
    "one for each": lambda: torch.full((3,), 0.1),
    "two for three": lambda: torch.full((2,), 0.1),
    "a word": lambda: "8/255",
    "nothing": lambda: None,
    "a list": lambda: [0.1, 0.2],
}
HOLDERS: dict[str, Callable[[], Any]] = {
    "a data set of torch": lambda: TensorDataset(X, Y),
    "a loader": lambda: DataLoader(TensorDataset(X, Y), 2),
    "a data set of the package": lambda: load("mnist-mini", "test").take(slice(0, 3)),
    "images alone": lambda: TensorDataset(X),
}
SETTINGS: tuple[dict[str, Any], ...] = (
    *({}, {}, {"modes": "eot"}, {"modes": ["EOT"]}, {"modes": []}, {"attacks": [PGD]}, {"attacks": "pgd"}),
    *({"attacks": None}, {"attacks": 3}, {"n": 0}, {"n": 2.5}, {"n": True}, {"repeats": 0}, {"n_ensemble": 0}),
    *({"batch": 0}, {"batch": 2}, {"suite": "qick", "attacks": ()}, {"directory": 3}),
)


def odd_call(chance: random.Random) -> Outcome:
    """One call in which one or two things are odd; it must work, or be refused by name."""
    usual = {"network": "plain", "x": "as they are", "y": "as they are", "epsilon": "0.1"}
    choices = {"network": NETWORKS, "x": IMAGES, "y": LABELS, "epsilon": RADII}
    for odd in chance.sample(list(choices), chance.choice([1, 1, 2])):
        usual[odd] = chance.choice(list(choices[odd]))
    F, x, y, epsilon = (choices[name][usual[name]]() for name in choices)
    attack, settings = chance.choice(ATTACKS), {}
    whole = chance.random() < 0.35
    if whole:
        settings = chance.choice(SETTINGS)
        if chance.random() < 0.2:
            holder = chance.choice(list(HOLDERS))
            x, y, usual["x"] = HOLDERS[holder](), None, holder
    how = f"{'evaluate' if whole else attack.name} {usual} {settings}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if whole:
                evaluate(F, x, y, **{"epsilon": epsilon, "attacks": [attack], "n": 2, "n_ensemble": 2, **settings})
                return Outcome("accepted")
            view = chance.choice([lambda: F, lambda: EOT(F, 2), lambda: Given([F])])()
            found = attack(view, x, y, epsilon)
            predict(Dirac(convnet().float()), found.float())
    except GradDivError as error:
        return Outcome("refused", str(error))
    except Exception:
        return Outcome("crashed", f"{how}\n{traceback.format_exc()}")
    apart = (found - torch.as_tensor(x)).abs().flatten(1).amax(1) if len(x) else torch.zeros(0)
    outside = bool((apart > torch.as_tensor(epsilon).to(apart)).any()) or not bool(found.isfinite().all())
    return Outcome("fooled", f"{how}: outside of the ball") if outside else Outcome("accepted")
