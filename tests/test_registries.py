"""What is registered is all there is to a new data set, architecture, defense, regularizer or attack."""

import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from graddiv.attacks import Attack
from graddiv.attacks.attack import Problem
from graddiv.attacks.suites import ATTACKS, RegisteredAttack, suite
from graddiv.cli import app
from graddiv.data import SOURCES, Source
from graddiv.data.dataset import Part
from graddiv.diversity import REGULARIZERS
from graddiv.errors import GradDivError
from graddiv.evaluation.measurements import MEASUREMENTS
from graddiv.networks import ARCHITECTURES, DEFENSES, Defense, RandomizedNetwork, Rules, WeightNoise
from graddiv.networks.architectures import Architecture
from graddiv.recipes import recipe
from graddiv.records import PAPER_ATTACKS, read_all
from graddiv.registries import MOST, Range, Registry
from graddiv.report.figures.gradients import MEASURES
from graddiv.runs import Run
from graddiv.seeding import isolated
from tests.helpers import no_type_checks

RECIPE = """
method = "toy-defense"

[data]
name = "toy-data"

[network]
architecture = "toy-network"

[training]
epochs = 2
batch = 10

[toy-defense]
sigma = 0.2

[graddiv]
regularizer = "toy-regularizer"
lam = 0.5
n = 2
"""


def toy_examples(part: Part, paths: Sequence[Path]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images of one brightness for each class."""
    count = {"train": 24, "test": 9}[part]
    ids = np.arange(count)
    images = np.broadcast_to((80 * (ids % 3)).astype(np.uint8)[:, None, None, None], (count, 1, 4, 4))
    return images.copy(), ids % 3, ids


TOY_DATA = Source("toy-data", (1, 4, 4), {"train": 24, "test": 9}, held_out=4, classes=tuple("abc"), read=toy_examples)


def toy_network(width: float, *, seed: int) -> nn.Module:
    with isolated(seed):
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


class ToyNoise(WeightNoise):
    """w~ = w + sigma * noise."""

    def __init__(self, module: nn.Module, sigma: float) -> None:
        super().__init__(module, [name for name, _ in module.named_parameters()])
        self.sigma = sigma

    def scale(self, name: str) -> Tensor:
        return torch.full_like(self.module.get_parameter(name), self.sigma)


@dataclass(frozen=True)
class ToyRules(Rules):
    """A penalty on the size of the weights."""

    weight: float = 1.0

    def penalties(self, F: RandomizedNetwork, examples: int) -> dict[str, Tensor]:
        return {"size": self.weight * sum(p.square().sum() for p in F.parameters()) / examples}


def toy_regularizer(v: Tensor) -> Tensor:
    """|sum_i v_i|^2."""
    return v.double().sum(0).square().sum(1)


@dataclass(frozen=True)
class ToyAttack(Attack):
    """Brighter and brighter."""

    m: int = 3

    name = "Brighter"

    @property
    def iterations(self) -> int:
        return self.m

    def run(self, problem: Problem, restart: int) -> Tensor:
        x = problem.x0
        for k in range(self.m):
            problem.view.loss(k, x, problem.y)
            x = self.geometry.project(x + problem.epsilon[:, None, None, None] / self.m, problem.x0, problem.epsilon)
            problem.tick()
        return x


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register one of each kind, for this test alone."""
    monkeypatch.setitem(SOURCES, "toy-data", TOY_DATA)
    monkeypatch.setitem(ARCHITECTURES, "toy-network", Architecture(toy_network, 48))
    monkeypatch.setitem(DEFENSES, "toy-defense", Defense(ToyNoise, ToyRules))
    monkeypatch.setitem(REGULARIZERS, "toy-regularizer", toy_regularizer)
    monkeypatch.setitem(ATTACKS, "toy-attack", RegisteredAttack(ToyAttack(), {"demo": 2}))
    monkeypatch.setattr("graddiv.performance.keep_memory", lambda: True)  # not for the other tests of this process


@pytest.fixture
def toy_recipe(tmp_path: Path) -> Path:
    path = tmp_path / "toy.toml"
    path.write_text(RECIPE)
    return path


def graddiv(*words: object) -> str:
    with no_type_checks():  # typer's context is of a class that its own annotation does not know
        result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.usefixtures("toys")
@pytest.mark.slow
def test_from_a_recipe_to_a_report(toy_recipe: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    said = graddiv("train", toy_recipe, "--out", run.path)
    assert "toy-defense on toy-data, scale custom: about <1 min on this machine" in said
    assert run.finished
    last = run.epochs[-1]
    assert last["loss"] == pytest.approx(last["clean"] + last["size"] + last["graddiv"])
    assert 0 < last["R_toy-regularizer"] <= 9
    F = run.network()
    assert isinstance(F, ToyNoise)
    assert F.sigma == 0.2

    said = graddiv("attack", run.path, "--attacks", "toy-attack,fgsm", "--n", 2, "--epsilon", 0.1)
    assert "EOT-Brighter" in said
    assert {"brighter-eot2-m3-eps0.1-r0.record", "fgsm-fixed-m1-eps0.1-r0.record"} <= {
        path.name for path in run.records.iterdir()
    }
    assert "EOT^1-Brighter" in graddiv("report", "--records", run.path)
    assert {r.method for r in read_all(run.records)} == {"toy-defense"}

    graddiv("measure", run.path, "--what", "concentration", "--n", 3, "--epsilon", 0.1)
    graddiv("report", run.path, "--epsilon", 0.1, "--out", tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "EOT-Brighter" in page
    assert {"attacks-eps0.1.md", "kappa.svg", "plan.json"} <= {path.name for path in (tmp_path / "report").iterdir()}

    graddiv("attack", run.path, "--attacks", "toy-attack", "--modes", "fixed")
    assert (run.records / "brighter-fixed-m3-eps0.0313725-r0.record").exists(), "8/255, as no recipe has another radius"


@pytest.mark.usefixtures("toys")
def test_the_toy_attack_is_part_of_its_suite(toy_recipe: Path, tmp_path: Path) -> None:
    graddiv("train", toy_recipe, "--out", tmp_path / "run")
    said = graddiv(
        "attack", tmp_path / "run", "--suite", "demo", "--modes", "fixed", "--epsilon", 0.1, "--out", tmp_path
    )
    assert [line.split()[1] for line in said.splitlines() if line.startswith("│")][:6] == [
        "clean", "FGSM", "PGD", "APGD-CE", "Square", "Brighter",
    ]  # fmt: skip
    assert (tmp_path / "brighter-fixed-m2-eps0.1-r0.record").exists()


@pytest.mark.usefixtures("toys")
def test_mistakes_suggest_what_was_registered(toy_recipe: Path) -> None:
    wrong = ["data.name=toi-data", "network.architecture=toi-network", "graddiv.regularizer=toi", "toi-defense.sigma=1"]
    with pytest.raises(GradDivError) as caught:
        recipe(str(toy_recipe), overrides=[*wrong, "toy-defense.sigm=1"])
    for nearest in ("toy-data", "toy-network", "toy-defense", "sigma"):
        assert f"did you mean '{nearest}'?" in str(caught.value)
    assert "has 5 mistakes" in str(caught.value)
    assert "smoothmax, toy-regularizer" in str(caught.value)
    with pytest.raises(GradDivError, match="the sections rse and toy-defense exclude each other"):
        recipe(str(toy_recipe), overrides=["rse.sigma_init=0.1"])


def test_what_is_not_registered_is_unknown(toy_recipe: Path) -> None:
    """The toys of the other tests are gone."""
    with pytest.raises(GradDivError, match=r"has 4 mistakes(?s:.)*toy-defense: there is no such key"):
        recipe(str(toy_recipe))


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "a number >= 1$"), (math.nan, "a number >= 1$"), ("a", "a number"), (2e9, "<= 1e")]
)
def test_a_range_names_the_limit_that_matters(value: float | str, expected: str) -> None:
    with pytest.raises(GradDivError, match=f"m is {value!r}, expected .*{expected}"):
        Range(ge=1, le=MOST).check("m", value)


def test_a_registry_suggests_the_nearest_name() -> None:
    registry = Registry("fruit", {"apple": 1, "pear": 2})
    assert registry["pear"] == 2
    with pytest.raises(
        GradDivError, match=r"^unknown fruit 'aple', did you mean 'apple'\? expected one of apple, pear$"
    ):
        _ = registry["aple"]


PLUGIN = """
from graddiv.attacks import PGD
from graddiv.attacks.suites import ATTACKS, RegisteredAttack
from graddiv.data import SOURCES
from graddiv.diversity import REGULARIZERS
from graddiv.evaluation.inspection import CHECKS, check
from graddiv.evaluation.measurements import MEASUREMENTS
from graddiv.networks import bayesian, defense
from graddiv.report.output import RENDERERS

REGULARIZERS["first"] = lambda v: v[0].double().sum(1)
ATTACKS["one-step"] = RegisteredAttack(PGD(m=1), {})
SOURCES["digits"] = SOURCES["mnist-mini"]
MEASUREMENTS["loudness"] = RENDERERS["loudness"] = None

@check("nothing is wrong")
def nothing(look): ...

@defense("loud")
def loud(module, sigma: float = 3.0):
    return bayesian(module, sigma)
"""

ASKED = """
import pkgutil, graddiv
from importlib import import_module
from graddiv.registries import MOST, Range, Registry
for module in pkgutil.walk_packages(graddiv.__path__, "graddiv."):
    if not module.name.endswith("__main__"):
        import_module(module.name)
assert Registry.plugins, "the package is imported before plugins are: they import it"
from graddiv.attacks.suites import ATTACKS
from graddiv.evaluation.inspection import CHECKS
from graddiv.evaluation.measurements import MEASUREMENTS
from graddiv.recipes import recipe
from graddiv.report.output import RENDERERS
e = recipe("mnist-mini/rse", "demo", ["rse=none", "loud.sigma=2", "graddiv.regularizer=first", "graddiv.lam=1",
    "data.name=digits"])
print(e.build().prior_sigma, "one-step" in ATTACKS, "nothing" in CHECKS)
print("loudness" in MEASUREMENTS, "loudness" in RENDERERS)
"""


@pytest.mark.slow
def test_another_package_registers_through_an_entry_point(tmp_path: Path) -> None:
    """A distribution of two plugins, one of which is broken: that one is told of and left out."""
    (tmp_path / "loudness.py").write_text(PLUGIN)
    (tmp_path / "loudness-1.0.dist-info").mkdir()
    (tmp_path / "loudness-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: loudness\nVersion: 1.0\n"
    )
    entries = "[graddiv.plugins]\nbroken = loudness:missing\nloud = loudness\n"
    (tmp_path / "loudness-1.0.dist-info" / "entry_points.txt").write_text(entries)
    path = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parent.parent}", "PATH": ""}
    run = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=False, env=path)
    assert run.stdout.split() == ["2.0", *["True"] * 4], run.stderr
    assert "the plugin broken (loudness:missing) fails: AttributeError" in run.stderr


def test_lists_that_reports_keep_without_torch_are_those_of_the_registries() -> None:
    assert sorted(PAPER_ATTACKS) == sorted(attack.name for attack in suite("paper"))
    assert list(MEASURES) == [f"R_{name}" for name in REGULARIZERS]


def test_the_help_of_measure_names_every_measurement() -> None:
    shown = CliRunner().invoke(app, ["measure", "--help"]).output
    assert all(f"{name}: {(entry.record.__doc__ or '').split()[0]}" in shown for name, entry in MEASUREMENTS.items())
