"""`help(graddiv.NAME)` is enough to use a public name: what goes in, what comes back, and an example that runs."""

import inspect
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import graddiv
from graddiv.evaluation.budget import BUDGETS
from graddiv.evaluation.card import Audit
from graddiv.evaluation.judgement import Estimate, ThreeNumbers
from tests.audit import planted
from tests.helpers import CLASSES, convnet, images, labels, no_type_checks, with_dropout

NOT_CALLED = {"GradDivError", "GradDivWarning", "attacks", "data", "networks"}
NAMES = [name for name in graddiv.__all__ if not name.startswith("__") and name not in NOT_CALLED]
SLOW = ("audit",)


def text_of(name: str) -> str:
    return inspect.getdoc(getattr(graddiv, name)) or ""


def example(text: str) -> str:
    """The first indented block of a docstring."""
    found = re.search(r"\n\n((?: {4}[^\n]*\n|\n)+)", f"{text}\n")
    return dedent(found[1]) if found else ""


def stand_ins() -> dict[str, Any]:
    """What examples leave to their reader: modules, a network, a batch, the records of an attack on it."""
    x, y = images(6), labels(6)
    F = graddiv.bayesian(convnet(), prior_sigma=0.1)
    return {
        **{name: getattr(graddiv, name) for name in NAMES},
        **{"torch": torch, "cross_entropy": cross_entropy, "F": F, "x": x, "y": y},
        **{"module": convnet(torch.nn.ReLU), "another": convnet(seed=1), "model": with_dropout(convnet())},
        **{"training_images": x.repeat(CLASSES, 1, 1, 1), "training_labels": torch.arange(6 * CLASSES) % CLASSES},
        "records": graddiv.evaluate(F, x, y, epsilon=0.1, attacks="fgsm", modes="eot", n=2),
    }


@pytest.mark.filterwarnings("ignore::graddiv.errors.GradDivWarning")  # the networks are untrained
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in NAMES])
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(BUDGETS["audit"], "quick", planted.BUDGET)
    code = example(text_of(name))
    assert re.search(rf"\b{name}\b|\bF\.", code), f"help(graddiv.{name}) has no example of it:\n{code}"
    with no_type_checks():
        exec(compile(code, f"help(graddiv.{name})", "exec"), stand_ins())


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_is_described(name: str) -> None:
    described = re.findall(r"^(\w+(?:, \w+)*): ", text_of(name), flags=re.MULTILINE)
    arguments = [argument for line in described for argument in line.split(", ")]
    assert arguments == list(inspect.signature(getattr(graddiv, name)).parameters)


@pytest.mark.parametrize("name", [n for n in NAMES if inspect.isfunction(getattr(graddiv, n))])
def test_what_comes_back_is_described(name: str) -> None:
    assert "\nReturns " in text_of(name)


def test_what_an_audit_returns_is_there() -> None:
    said = text_of("audit").partition("\nReturns ")[2].partition("\nmodel: ")[0]
    names = {word.partition("(")[0].partition("[")[0] for word in re.findall(r"`([^`]+)`", said)} - {"Audit"}
    known = {n for each in (Audit, ThreeNumbers, Estimate) for n in (*each.__annotations__, *dir(each))}
    assert names <= known
    assert {"clean", "robust", "shortcomings", "write"} <= names
