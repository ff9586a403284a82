"""A model and data of the user's own, at every command."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.main import get_command
from typer.testing import CliRunner, Result

import graddiv
from graddiv.attacks import Attack
from graddiv.cli import app
from graddiv.errors import GradDivError, GradDivWarning
from graddiv.evaluation.budget import BUDGETS
from graddiv.evaluation.models import load_model
from graddiv.recipes import recipe
from graddiv.records import AttackRecord, read_all
from graddiv.runs import Run
from tests.audit import planted
from tests.helpers import no_type_checks
from tests.markdown import ROOT

MODELS = """
from __future__ import annotations  # dataclasses then look up their module by name
from dataclasses import dataclass

import torch
from torch import nn

from layers import Scaled

@dataclass
class Size:
    hidden: int = 4

class Net(nn.Module):
    def __init__(self, size: Size | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 36 * 4).reshape(4, 36))
        self.scaled = Scaled()

    def forward(self, x):
        return self.scaled(x.flatten(1) @ self.weight.T)

def other():
    net = Net()
    net.weight.data.neg_()
    return net

members = [Net().eval(), other().eval()]

def make(channels, shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * shape[1] * shape[2], classes))

def small(classes):
    return nn.Linear(3, classes)

def wide(width, depth):
    return Net()
"""
LAYERS = "from torch import nn\nclass Scaled(nn.Module):\n    def forward(self, z):\n        return 3 * z\n"
ATTACK = ("--attacks", "fgsm", "--modes", "eot", "--n", 2)
TINY = [
    option
    for setting in ("training.epochs=1", "training.batch=8", "training.decays=[]", "adversary.m=1", "network.width=0.1")
    for option in ("--set", setting)
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with models.py and two archives of the same examples, as bytes and as floats."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("graddiv.performance.keep_memory", lambda: True)  # not for the other tests of this process
    Path("models.py").write_text(MODELS)
    Path("layers.py").write_text(LAYERS)
    x, y = planted.examples(40)
    x = x.clamp(0, 1)
    np.savez("xs.npz", x=(255 * x).round().to(torch.uint8).numpy(), y=y.numpy())
    np.savez("floats.npz", x=((255 * x).round() / 255).numpy(), y=y.numpy())
    return tmp_path


def run(*words: object) -> Result:
    with no_type_checks():  # typer's context is of a class that its own annotation does not know
        return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def attacked(directory: str) -> list[AttackRecord]:
    return [record for record in read_all(Path(directory)) if isinstance(record, AttackRecord)]


def test_a_model_of_ones_own_is_attacked_and_goes_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("attack", "models.py:Net", "--data", "xs.npz", *ATTACK)
    first = run(*words)
    assert "epsilon 0.03137: 8/255" in first.stderr
    assert "records: records/Net" in first.stdout
    found = attacked("records/Net")
    assert {record.target for record in found} == {"Net"}
    assert {(record.data.name, record.data.split, record.examples) for record in found} == {("xs", "given", 40)}
    assert "Net: epsilon 0.03137, 40 given examples" in run("report", "records/Net").stdout
    with monkeypatch.context() as patch:
        patch.setattr(Attack, "__call__", lambda *_, **__: pytest.fail("what is on disk was computed again"))
        assert run(*words).stdout == first.stdout
    with pytest.raises(GradDivError, match="choose another directory with --out"):
        run("attack", "models.py:other", "--name", "Net", *words[2:])
    run("attack", "models.py:Net", "models.py:other", *words[2:], "--out", "both")
    assert {record.target for record in attacked("both")} == {"Net", "other"}


def test_bytes_are_shares_of_the_range_of_a_pixel(here: Path) -> None:
    """A model of bytes, one of floats in [0, 1], and one in [-1, 1] are the same network."""
    Path("bytes.py").write_text(
        "from models import Net\n"
        "from torch import nn\n"
        "class Of(nn.Module):\n"
        "    def __init__(self, low, high):\n"
        "        super().__init__()\n"
        "        self.inner, self.low, self.high = Net(), low, high\n"
        "    def forward(self, x):\n"
        "        return self.inner((x - self.low) / (self.high - self.low))\n"
        "counted, centered = Of(0, 255), Of(-1, 1)\n"
    )
    ways = [("models.py:Net", "floats.npz", ""), ("models.py:Net", "xs.npz", "")]
    ways += [("bytes.py:counted", "xs.npz", "0,255"), ("bytes.py:centered", "xs.npz", "-1,1")]
    margins = []
    for i, (model, data, bounds) in enumerate(ways):
        run("attack", model, "--data", data, "--bounds", bounds, *ATTACK, "--out", f"out{i}")
        margins.append([record.correct for record in attacked(f"out{i}")])
    assert 0 < np.mean(margins[0][1]) < 1
    assert all(np.array_equal(a, b) for other in margins for a, b in zip(margins[0], other, strict=True))
    with pytest.raises(GradDivError, match="--bounds is '1', expected two numbers"):
        run("attack", "models.py:Net", "--data", "xs.npz", "--bounds", "1")


def test_measure_takes_the_same_references(here: Path) -> None:
    done = run("measure", "models.py:members", "--data", "xs.npz", "--what", "concentration", "--n", 2, "--examples", 4)
    assert "concentration of 2 gradients" in done.stdout
    assert "s on this machine" in done.stderr
    assert Path("records/members/concentration.record").exists()


@pytest.mark.slow
def test_audit_takes_the_same_references(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUDGETS["audit"], "quick", planted.BUDGET)
    assert run("audit", "models.py:Net", "--data", "xs.npz", "--name", "mine").exit_code in (0, 3)
    assert Path("audits/mine/report.html").exists()
    with pytest.raises(GradDivError, match=r"audits/mine is an audit, whose page is audits/mine/report\.html"):
        run("report", "audits/mine")


@pytest.mark.filterwarnings("ignore::graddiv.errors.GradDivWarning")  # the network is not trained
def test_references_in_python(here: Path) -> None:
    by_name = graddiv.evaluate("models.py:Net", "xs.npz", epsilon=0.05, attacks="fgsm")
    by_object = graddiv.evaluate(load_model("models.py:Net"), *planted.examples(40), epsilon=0.05, attacks="fgsm")
    assert by_name[0].data.name == "xs"
    assert abs(by_name[1].accuracy - by_object[1].accuracy) <= 0.05  # pixels are rounded to bytes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("models.py:Net",), "--data is missing, expected an .npz file with the arrays x and y, a folder of images"),
        (("models.py:wide",), "models.py:wide needs width, depth, expected a function or class without required"),
        (("models.py:Size",), "the model is Size, expected a module"),
        (("models.py:nope",), "models.py has no 'nope', expected a run, file.py:name of a model"),
        (("models.py",), "there is no model 'models.py', expected a run, file.py:name"),
        (("nowhere.py:Net",), "there is no nowhere.py"),
        (("no.such.package:Net",), "there is no module 'no.such.package'"),
        (("layers:Scaled", "models.py:Net", "--name", "a"), "--name is given with 2 models"),
        (("robustbench:Carmon",), "robustbench:Carmon needs the package: pip install robustbench"),
        (("hub",), "hub is in Hugging Face's format: pip install transformers"),
    ],
)
def test_mistakes_are_told(here: Path, words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("robustbench", "robustbench.utils", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    Path("hub").mkdir()
    Path("hub/config.json").write_text("{}")
    data = () if "--data is missing" in message else ("--data", "xs.npz")
    with pytest.raises(GradDivError, match=message):
        run("attack", *words, *data, *ATTACK)


def test_models_of_zoos(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for the libraries that have their interface."""
    asked = list[Any]()

    def of_zoo(**names: str) -> nn.Module:
        asked.append(names)
        return planted.Linear()

    zoo = ModuleType("robustbench.utils")
    zoo.load_model = of_zoo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "robustbench", ModuleType("robustbench"))
    monkeypatch.setitem(sys.modules, "robustbench.utils", zoo)
    run("attack", "robustbench:cifar100/L2/Some", "--data", "xs.npz", *ATTACK)
    assert asked == [{"model_name": "Some", "dataset": "cifar100", "threat_model": "L2"}]
    assert {record.target for record in attacked("records/Some")} == {"Some"}

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = planted.Linear()

        def forward(self, pixel_values: Tensor) -> Any:
            return SimpleNamespace(logits=self.inner((pixel_values + 1) / 2))  # the mean 0.5 and std 0.5 below

    hub = ModuleType("transformers")
    hub.AutoModelForImageClassification = SimpleNamespace(  # type: ignore[attr-defined]
        from_pretrained=lambda folder, local_files_only: Classifier().eval()
    )
    monkeypatch.setitem(sys.modules, "transformers", hub)
    Path("hub").mkdir()
    Path("hub/config.json").write_text("{}")
    Path("hub/preprocessor_config.json").write_text('{"do_normalize": true, "image_mean": [0.5], "image_std": [0.5]}')
    model = load_model("hub")
    assert isinstance(model, nn.Module)
    x = planted.examples(8)[0]
    assert not model.training
    assert torch.allclose(model(x), planted.Linear()(x), atol=1e-5)


def test_ones_own_data_and_network_train_from_a_recipe(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ("--set", "data.name=xs.npz", "--set", "network.architecture=models.py:make")
    assert run("train", "mnist-mini/adv-bnn", *own, *TINY, "--out", "runs/mine").exit_code == 0
    trained = Run(here / "runs" / "mine")
    data, network = trained.experiment.data, trained.experiment.network
    assert (data.name, data.shape, data.classes, network.architecture) == ("xs", (1, 6, 6), 4, "make")
    assert trained.network().module[1].weight.shape == (4, 36)
    assert trained.experiment.data.source.sizes == {"train": 36, "test": 4}
    run("attack", "runs/mine", *ATTACK)
    run("attack", "runs/mine", "--data", "xs.npz", *ATTACK)  # its own, of which it trained on nine tenths
    assert {(r.data.split, r.examples) for r in attacked("runs/mine")} == {("test", 4)}
    run("attack", "runs/mine", "--data", "floats.npz", *ATTACK)
    assert {r.examples for r in attacked("runs/mine/records-floats")} == {40}

    # from the recipe that it wrote, elsewhere, and copied together with what it names
    again = recipe(str(trained.recipe_file))
    assert again.digest == trained.experiment.digest
    assert run("train", trained.recipe_file, "--out", "runs/mine").stdout.count("nothing left to do") == 1
    (here / "there").mkdir()
    monkeypatch.chdir(here / "there")
    assert run("attack", "../runs/mine", *ATTACK).exit_code == 0

    monkeypatch.chdir(here)
    with pytest.raises(GradDivError, match=r"runs holds 1 runs: 'graddiv report runs/mine' compares them"):
        run("report", "runs")
    with Path("models.py").open("a") as file:
        file.write("# changed\n")
    with pytest.warns(GradDivWarning, match="make is not as it was when the recipe was made"):
        trained.network()
    x, y = planted.examples(30)
    np.savez("xs.npz", x=x.clamp(0, 1).numpy(), y=y.numpy())
    for words in (("train", trained.recipe_file, "--out", "runs/mine"), ("attack", "runs/mine", *ATTACK)):
        with pytest.raises(GradDivError, match=r"xs\.npz holds other examples than the recipe was made for"):
            run(*words)
    with pytest.raises(GradDivError, match=r"data\.file\.sha256"):
        run("train", "mnist-mini/adv-bnn", *own, *TINY, "--out", "runs/mine")


def test_recipes_name_files_as_seen_from_there(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = recipe("mnist-mini/adv-bnn", "demo").to_toml()
    changed = text.replace('name = "mnist-mini"', 'file = "xs.npz"\nfile_test = "floats.npz"')
    Path("mine.toml").write_text(changed.replace("mnist_cnn", "models.py:make"))
    (here / "there").mkdir()
    monkeypatch.chdir(here / "there")
    e = recipe("../mine.toml")
    assert (e.data.name, e.network.architecture) == ("xs", "make")
    assert e.data.source.sizes == {"train": 40, "test": 40}
    assert len(e.training_set()) == 36, "at most as many as the recipe says"
    monkeypatch.chdir(here)
    assert recipe("mine.toml").digest == e.digest, "paths do not count"
    assert recipe("mine.toml", overrides=["network.architecture=vgg16"]).network.file is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("network.architecture=vgg16",), "vgg16 takes images of at least 32 x 32 pixels, and the data's have 6 x 6"),
        (("network.architecture=models.py:small",), r"cannot be called with images of shape \(1, 6, 6\)"),
        (("network.architecture=models.py:wide",), "models.py:wide needs depth, .* besides shape, classes, channels"),
        (("network.architecture=models.py:nope",), "models.py has no 'nope'"),
        (("network.architecture=nope",), "network.architecture is 'nope'"),
        (("data.name=nope",), "data.name is 'nope'"),
        (("data.file=nope.npz",), "there is no nope.npz"),
    ],
)
def test_what_does_not_fit_is_told(here: Path, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(GradDivError, match=message):
        recipe("mnist-mini/adv-bnn", "demo", ["data.name=xs.npz", *overrides]).build()


def test_reproduce_trains_and_judges_on_ones_own_data(here: Path) -> None:
    done = run("reproduce", "table1", "--scale", "demo", "--data", "xs.npz", "--dry-run", "--set", "data.examples=20")
    assert "train Adv-BNN on xs" in done.stdout
    assert "measure suite of Adv-BNN on xs" in done.stdout


def test_every_help_shows_a_model_or_data_of_ones_own() -> None:
    program: Any = get_command(app)
    for name in ("attack", "measure", "audit", "train", "tune", "reproduce", "report", "board", "recipes"):
        shown = " ".join((program.commands[name].help or "").split())
        assert any(own in shown for own in ("models.py:", "xs.npz", "records/CNN")), name
    assert "models.py:CNN" in (ROOT / "docs" / "howto.md").read_text()
