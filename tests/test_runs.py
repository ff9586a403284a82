from pathlib import Path

import pytest
import torch

from graddiv import store
from graddiv.errors import GradDivError
from graddiv.networks import Dirac, architecture
from graddiv.recipes import recipe
from graddiv.runs import FORMAT, Run, load_state, network_of, starting_point, state_hash
from graddiv.training import train
from tests.training.helpers import loader, tiny


@pytest.fixture
def trained_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("graddiv.data.load", loader(8))
    train(tiny("mnist/adv-bnn", "training.epochs=2", "training.checkpoint_every=1"), tmp_path / "run")
    return Run(tmp_path / "run")


def test_a_finished_run(trained_run: Run) -> None:
    assert trained_run.finished
    assert trained_run.epochs_done == 2
    assert [line["epoch"] for line in trained_run.epochs] == [0, 1, 2]
    assert trained_run.log[0]["event"] == "start"
    assert trained_run.experiment == tiny("mnist/adv-bnn", "training.epochs=2", "training.checkpoint_every=1")
    assert recipe(str(trained_run.recipe_file)) == trained_run.experiment
    assert not store.is_locked(trained_run.path)
    with store.locked(trained_run.path):
        assert store.is_locked(trained_run.path)


def test_every_file_of_a_training_has_a_name_here(trained_run: Run) -> None:
    named = {
        trained_run.version_file, trained_run.experiment_file, trained_run.data_file, trained_run.recipe_file,
        trained_run.log_file, trained_run.last_checkpoint, trained_run.checkpoint(1), trained_run.checkpoint(2),
        trained_run.path / store.LOCK,
    }  # fmt: skip
    assert {path for path in trained_run.path.rglob("*") if path.is_file()} == named


def test_networks_of_the_end_and_of_an_epoch(trained_run: Run) -> None:
    last, second, first = trained_run.network(), trained_run.network(epoch=2), trained_run.network(epoch=1)
    assert not last.training
    weights = [F.state_dict()["module.0.weight"] for F in (last, second, first)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(trained_run.state()["module.0.weight"], weights[0])
    assert torch.equal(network_of(trained_run.path)["module.0.weight"], weights[0])


def test_a_run_that_is_still_to_come(tmp_path: Path) -> None:
    run = Run(tmp_path / "later")
    assert (run.epochs_done, run.finished, store.is_locked(run.path)) == (0, False, False)
    with pytest.raises(GradDivError, match="later holds no trained network: expected a run directory"):
        run.state()
    with pytest.raises(GradDivError, match=r"there is no .*metrics\.jsonl"):
        _ = run.log


def test_a_directory_of_a_later_version(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.begin()
    assert store.read_json(run.version_file) == {"format": FORMAT}
    store.write_json(run.version_file, {"format": FORMAT + 1})
    with pytest.raises(GradDivError, match=f"has format {FORMAT + 1}, but this version of graddiv knows none above"):
        run.begin()


def test_what_is_no_run_directory(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with pytest.raises(GradDivError, match="is no run directory: 'graddiv train' makes one"):
        run.network()
    experiment = recipe("mnist-mini/no-defense", "demo", ["network.width=0.05"])
    store.write_json(run.experiment_file, experiment.dump())
    with pytest.raises(GradDivError, match=r"there is no .*last\.safetensors"):
        run.network()


def test_the_checkpoint_of_another_network() -> None:
    F, other = Dirac(architecture("mnist_cnn", 0.05)), Dirac(architecture("mnist_cnn", 0.1))
    state = other.state_dict()
    with pytest.raises(GradDivError, match=r"here belongs to another network: module\.\S+ has shape \(\d"):
        load_state(F, state, Path("here"))
    load_state(other, state, Path("here"))
    with pytest.raises(GradDivError, match="it has more, which was not expected"):
        load_state(other, state | {"more": torch.zeros(1)}, Path("here"))


def test_a_network_in_bfloat16_is_hashed_and_then_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path, F = tmp_path / "brain.safetensors", tiny("mnist/adv-train").build()
    state = {name: t.bfloat16() if t.is_floating_point() else t for name, t in F.state_dict().items()}
    save_file(state, path)
    assert starting_point(path) == {"path": str(path), "sha256": state_hash(state)}
    name = next(iter(state))
    assert starting_point(path)["sha256"] != state_hash(state | {name: state[name] + 1})
    with pytest.raises(
        GradDivError, match=r"brain\.safetensors: \S+ is of type torch\.bfloat16, expected torch\.float32"
    ):
        load_state(F, network_of(path), path)


def test_the_hash_of_a_network_stays_what_it_was() -> None:
    """Recipes name networks by it."""
    values = {
        "a": torch.arange(6.0).view(2, 3),
        "b": torch.tensor(3),
        "c": torch.zeros(2, 0),
        "d": torch.tensor([True]),
    }
    assert state_hash(values).startswith("81057b6133d69823")


def test_a_path_that_no_recipe_can_hold_is_refused(trained_run: Run) -> None:
    odd = trained_run.path.rename(trained_run.path.with_name("run\udc80"))  # a byte that is no UTF-8
    with pytest.raises(
        GradDivError, match=r"the path '\S+run\\udc80' is no UTF-8, expected one that a recipe can hold"
    ):
        starting_point(odd)
