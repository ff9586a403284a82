from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from graddiv.cli import app
from graddiv.errors import GradDivError
from tests.helpers import no_type_checks
from tests.training.helpers import loader, tiny

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """run(*words) runs `graddiv` in an empty directory, where every data set has twelve images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("graddiv.data.load", loader(12))
    monkeypatch.setattr("graddiv.data.files.locate", lambda *_: tmp_path)  # there are no files
    monkeypatch.setattr("graddiv.performance.keep_memory", lambda: True)  # not for the other tests of this process

    return invoke


def invoke(*words: object) -> Result:
    with no_type_checks():  # typer's context is of a class that its own annotation does not know
        return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def tiny_recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(tiny("mnist/adv-bnn+graddiv").to_toml())
    return path


def test_train_then_nothing_is_left_to_do(run: Run, tiny_recipe: Path, tmp_path: Path) -> None:
    result = run("train", tiny_recipe)
    assert result.exit_code == 0, result.exception
    first, second, *epochs, last = result.stdout.splitlines()
    assert first == "Adv-BNN + GradDiv on mnist, scale paper: about <1 min on this machine"
    directory = second.removeprefix("run directory: ")
    assert directory.startswith("runs/mnist-adv-bnn+graddiv-paper-")
    assert any("epoch 1: loss " in line for line in epochs)
    assert last == f"trained: {directory}"
    found = {path.name for path in (tmp_path / directory).rglob("*") if path.is_file()}
    settings = {"version.json", "experiment.json", "recipe.toml", "data.json"}
    assert found == {*settings, "metrics.jsonl", "last.safetensors", ".lock"}
    again = run("train", tiny_recipe)
    assert "nothing left to do, all 3 steps are done" in again.stdout
    printed = run("recipes", tmp_path / directory / "recipe.toml")
    assert printed.stdout == tiny_recipe.read_text()


def test_train_with_overrides_and_seed(run: Run, tiny_recipe: Path, tmp_path: Path) -> None:
    result = run("train", tiny_recipe, "--set", "adversary.epsilon=8/255", "--seed", 3, "--out", "here")
    assert result.exit_code == 0, result.exception
    text = (tmp_path / "here" / "recipe.toml").read_text()
    assert "seed = 3" in text
    assert f"epsilon = {8 / 255}" in text


def test_mistakes_are_graddivs(run: Run, tiny_recipe: Path) -> None:
    for words, message in (
        (("train", "minst/adv-bnn"), "unknown data set"),
        (("train", tiny_recipe, "--set", "training.epoch=2"), "did you mean 'epochs'"),
        (("tune", "mnist/adv-bnn"), "no section graddiv"),
        (("tune", tiny_recipe, "--lambdas", "a,b"), "'a' is no number"),
        (("tune", tiny_recipe, "--n", 0), "n is 0, expected a number >= 1"),
    ):
        result = run(*words)
        assert isinstance(result.exception, GradDivError), words
        assert message in str(result.exception)


def test_recipes_are_listed_with_their_cost(run: Run) -> None:
    result = run("recipes")
    assert result.exit_code == 0
    line = next(line for line in result.stdout.splitlines() if line.startswith("mnist-mini/rse+graddiv "))
    assert "RSE + GradDiv" in line
    assert line.rstrip().endswith("min")


@pytest.mark.slow
def test_tune(run: Run, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graddiv.tuning.load", loader(12))
    words = ("--lambdas", "0.7", "--regularizers", "kappa,mean", "--n", 1, "--m", 1, "--examples", 5, "--out", "t")
    result = run("tune", tiny_recipe, *words)
    assert result.exit_code == 0, result.exception
    lines = result.stdout.splitlines()
    assert lines[0] == "2 trials, each about <1 min on this machine, in t"
    assert [line.split()[:2] for line in lines if line.startswith("0.7")] != []
    assert lines[-1].startswith("best: --set graddiv.regularizer=")
    assert lines[-1].endswith("--set graddiv.lam=0.7")
    found = {path.name for path in (tmp_path / "t").iterdir()}
    assert found == {
        "kappa-0.7",
        "mean-0.7",
        ".queue",
        "study.db",
        "tuning.csv",
        "tuning.pdf",
        "tuning.png",
        "tuning.svg",
    }


@pytest.mark.parametrize("verb", ["train", "tune"])
def test_missing_data_is_told_before_the_plan(tmp_path: Path, verb: str) -> None:
    result = invoke(verb, "mnist/adv-bnn+graddiv", "--data-root", tmp_path)
    assert result.stdout == ""
    message = str(result.exception)
    assert "data set 'mnist' is missing" in message
    assert f"graddiv data fetch mnist --data-root {tmp_path}" in message
    assert "graddiv train mnist-mini/adv-bnn" in message
