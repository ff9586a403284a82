import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from graddiv import store
from graddiv.data import Dataset
from graddiv.errors import GradDivError
from graddiv.objective import Objective
from graddiv.runs import FORMAT, Run, read_log, state_hash
from graddiv.training import loop, objective_of, train
from graddiv.training.loop import DivergedError
from graddiv.training.probe import validation_accuracy
from graddiv.training.stages import stages_of
from tests.helpers import global_rng_untouched, no_type_checks
from tests.training.helpers import (
    METHODS,
    StopAfter,
    Stopped,
    assert_same_outcome,
    loader,
    outcome,
    random_data,
    tiny,
    two_stages,
)


@pytest.fixture(autouse=True)
def eight_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graddiv.data.load", loader(8))


@pytest.mark.parametrize(
    "data", ["mnist", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cifar10", "stl10"))]
)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_on_every_data_set(
    method: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if method.startswith("mi"):  # its pool needs an image of each class
        monkeypatch.setattr("graddiv.data.load", loader(10))
    experiment = tiny(f"{data}/{method}")
    with no_type_checks(), global_rng_untouched():  # the checks of types draw at random what they look at
        F = train(experiment, tmp_path)
    assert not any(module.training for module in F.modules())
    _, description, lines = outcome(tmp_path)
    assert description["progress"] == {"step": 2, "sums": {}, "best": None}
    assert [line["event"] for line in lines] == ["start", "epoch", "epoch"]
    for line in lines[1:]:
        assert {"R_kappa", "R_mean", "R_dpp", "R_max", "R_smoothmax", "rho", "norm", "usable"} <= line.keys()
        assert line["rho"] == pytest.approx(max(0, line["R_mean"]) ** 0.5)
    assert ("sigma" in lines[-1]) == (method.partition("+")[0] in ("adv-bnn", "pni"))
    if "graddiv" not in method and method in ("no-defense", "adv-train"):
        assert lines[-1]["R_mean"] == pytest.approx(1)  # a deterministic network has one gradient
    assert ("lam" in lines[-1]) == (experiment.graddiv is not None)
    again, found = Run(tmp_path).experiment, Run(tmp_path).network()
    assert again == experiment
    assert all(torch.equal(a, b) for a, b in zip(F.state_dict().values(), found.state_dict().values(), strict=True))


MODERATE = ("training.epochs=3", "training.decays=[2]", "graddiv.rampup=2", "training.checkpoint_every=2")


@pytest.mark.parametrize("name", ["mnist/adv-bnn+graddiv", "stl10/adv-bnn+graddiv", "mnist/dverge", "mnist/wca"])
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(name, *(setting for setting in MODERATE if "graddiv" in name or "graddiv" not in setting))
    train(experiment, tmp_path / "whole")
    listener = StopAfter(0)
    for listener.steps in (1, 3, 4, 5):
        with pytest.raises(Stopped):
            train(experiment, tmp_path / "parts", listeners=[listener])
        monkeypatch.setattr(loop, "SAVE_AFTER", -1.0 if listener.steps == 3 else 120.0)  # then after each step
    listener.steps = -1
    train(experiment, tmp_path / "parts", listeners=[listener])
    assert listener.began == [0, 0, 2, 3, 4]
    assert_same_outcome(tmp_path / "parts", tmp_path / "whole")
    start, *resumed = (line for line in read_log(tmp_path / "parts" / "metrics.jsonl") if line["event"] != "epoch")
    assert len(resumed) == 4
    assert all(line == start | {"event": "resume"} for line in resumed)
    names = sorted(path.name for path in (tmp_path / "parts" / "checkpoints").iterdir())
    assert names == ["epoch-0002.safetensors", "last.safetensors"]
    kept = [store.read_tensors(tmp_path / part / "checkpoints" / names[0])[0] for part in ("whole", "parts")]
    assert all(torch.equal(kept[0][key], kept[1][key]) for key in kept[0])


def test_another_seed_ends_elsewhere(tmp_path: Path) -> None:
    for seed in (0, 1):
        train(tiny("mnist/no-defense", f"seed={seed}"), tmp_path / str(seed))
    a, b = (outcome(tmp_path / str(seed))[0] for seed in (0, 1))
    assert not any(torch.equal(a[name], b[name]) for name in a if name.startswith("network.") and "weight" in name)


def test_a_finished_run_is_not_touched(tmp_path: Path) -> None:
    experiment, listener = tiny("mnist/no-defense"), StopAfter(-1)
    F = train(experiment, tmp_path)
    content = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.name != ".lock"}
    again = train(experiment, tmp_path, listeners=[listener])
    assert listener.began == [2]
    assert listener.epochs == []
    assert content == {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.name != ".lock"}
    assert all(torch.equal(a, b) for a, b in zip(F.state_dict().values(), again.state_dict().values(), strict=True))


def test_a_run_that_is_not_finished_is_not_evaluated(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(tiny("mnist/no-defense"), tmp_path, listeners=[StopAfter(1)])
    with pytest.raises(GradDivError, match="is not trained to its end, but to epoch 0 of 1"):
        Run(tmp_path).network()
    train(tiny("mnist/no-defense"), tmp_path)
    assert not Run(tmp_path).network().training


def test_other_settings_or_data_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny("mnist/no-defense"), tmp_path)
    with pytest.raises(GradDivError, match=r"was made with training\.lr = 0\.001, now it is 0\.1"):
        train(tiny("mnist/no-defense", "training.lr=0.1"), tmp_path)
    monkeypatch.setattr("graddiv.data.load", loader(9))
    with pytest.raises(GradDivError, match="was made with sha256 = "):
        train(tiny("mnist/no-defense"), tmp_path)


def test_a_directory_of_a_later_version_is_refused(tmp_path: Path) -> None:
    train(tiny("mnist/no-defense"), tmp_path)
    store.write_json(tmp_path / "version.json", {"format": FORMAT + 1})
    with pytest.raises(GradDivError, match=rf"has format {FORMAT + 1}, but this version of graddiv knows none abo"):
        train(tiny("mnist/no-defense"), tmp_path)


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with store.locked(tmp_path), pytest.raises(GradDivError, match=f"being written by process {os.getpid()} on"):
        train(tiny("mnist/no-defense"), tmp_path)


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        ("mnist/no-defense", ("training.batch=9",), "batch is 9, but there are only 8 training examples"),
        ("mnist/no-defense", ("training.epochs=0",), r"training\.epochs is 0: input should be greater"),
    ],
)
def test_settings_that_cannot_be(recipe: str, overrides: Sequence[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(GradDivError, match=message):
        train(tiny(recipe, *overrides), tmp_path)


def test_synchronised_batch_norm_needs_cuda(tmp_path: Path) -> None:
    with pytest.raises(GradDivError, match="--sync-batch-norm needs CUDA, but the device is cpu: leave it out"):
        train(tiny("stl10/no-defense"), tmp_path, sync_batch_norm=True, device="cpu")
    with pytest.raises(GradDivError, match="device 'warp' cannot be used"):
        train(tiny("mnist/no-defense"), tmp_path, device="warp")


def poisoned(value: float, at: int, part: str) -> Callable[..., torch.Tensor]:
    """An objective one of whose parts breaks at a step; "gradient" leaves the loss finite."""
    forward = Objective.forward

    def broken(self: Objective, x: torch.Tensor, y: torch.Tensor, *, step: int, ids: torch.Tensor) -> torch.Tensor:
        loss = forward(self, x, y, step=step, ids=ids)
        if step == at and part == "gradient":
            weight = next(self.F.parameters())
            return loss + (weight - weight.detach()).abs().sqrt().sum()
        if step == at:
            self.parts[part] = torch.tensor(value)
        return loss

    return broken


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("kl", float("nan"), "the loss is no longer finite, its part kl is nan"),
        ("adversarial", float("inf"), ".*its part adversarial is inf"),
        ("gradient", 0.0, "the norm of the loss's gradient is nan, though the loss is finite"),
    ],
)
def test_a_loss_that_is_not_finite(
    part: str, value: float, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Objective, "forward", poisoned(value, 3, part))
    experiment = tiny("mnist/adv-bnn", "training.epochs=2")
    with pytest.raises(DivergedError, match=rf"stopped at step 3 \(epoch 2\): {message}") as caught:
        train(experiment, tmp_path)
    last = tmp_path / "checkpoints" / "last.safetensors"
    assert f"The last good state is {last}; a smaller training.lr" in str(caught.value)
    tensors, description = store.read_tensors(last)
    assert description["progress"]["step"] == 2
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())


def test_weights_that_explode_are_told_with_the_step(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"stopped at step \d .*not finite.*last\.safetensors"):
        train(tiny("mnist/adv-bnn+graddiv", "training.lr=1e30", "training.epochs=3"), tmp_path)


def test_a_network_without_gradients_still_logs_plain_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All input gradients are 0: no direction, no measure, no NaN."""
    monkeypatch.setattr("graddiv.experiment.Experiment.build", _dead(_build))
    listener = StopAfter(-1)
    train(tiny("mnist/no-defense"), tmp_path, listeners=[listener])

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in the log")

    lines = [json.loads(line, parse_constant=refuse) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("usable") for line in lines] == [None, 0, 0]
    assert not any(key.startswith("R_") or key == "rho" for line in lines for key in line)


_build = loop.Experiment.build


def _dead(build: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    def built(*arguments: object) -> torch.nn.Module:
        F = build(*arguments)
        for p in F.parameters():
            torch.nn.init.zeros_(p)
        return F

    return built


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, fsync, calls = tiny("mnist/no-defense", "training.epochs=3"), os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) > 16:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(GradDivError, match=r"cannot write .*: No space left on device"):
            train(experiment, tmp_path / "full")
    step = store.read_tensors(tmp_path / "full" / "checkpoints" / "last.safetensors")[1]["progress"]["step"]
    assert 0 < step < 6
    train(experiment, tmp_path / "full")
    train(experiment, tmp_path / "whole")
    assert_same_outcome(tmp_path / "full", tmp_path / "whole")


def test_the_order_is_new_in_each_epoch_and_covers_the_data() -> None:
    first, second = loop._order(0, 0, 8), loop._order(0, 1, 8)
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(8))
    assert first.tolist() != second.tolist()


def test_the_best_epoch_is_kept_and_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny("mnist/adv-bnn", "training.epochs=4", "training.select=best")
    accuracies = iter([0.4, 0.7, 0.7, 0.5])
    states = []

    def judged(objective: Objective, data: Dataset, step: int) -> float:
        assert data.split == "validation"
        states.append({name: t.clone() for name, t in objective.F.state_dict().items()})
        return next(accuracies)

    monkeypatch.setattr(loop, "validation_accuracy", judged)
    F = train(experiment, tmp_path)
    for found in (F, Run(tmp_path).network()):  # the first of equals
        assert all(torch.equal(t, states[1][name]) for name, t in found.state_dict().items())
    assert [line.get("validation") for line in Run(tmp_path).epochs] == [None, 0.4, 0.7, 0.7, 0.5]
    assert any(not torch.equal(t, states[3][name]) for name, t in states[1].items())
    later = tiny("mnist/adv-bnn", f"network.from={tmp_path}")
    assert later.network.start is not None
    assert later.network.start.sha256 == state_hash(Run(tmp_path).state())


@pytest.mark.slow
def test_the_choice_of_the_best_epoch_survives_a_kill(tmp_path: Path) -> None:
    experiment = tiny("mnist/adv-bnn", "training.epochs=3", "training.select=best")
    train(experiment, tmp_path / "whole")
    for steps in (1, 3, 5, 6):
        with pytest.raises(Stopped):
            train(experiment, tmp_path / "stopped", listeners=[StopAfter(steps)])
    train(experiment, tmp_path / "stopped")
    assert_same_outcome(tmp_path / "whole", tmp_path / "stopped")
    whole, stopped = (store.read_tensors(Run(tmp_path / name).best_checkpoint)[0] for name in ("whole", "stopped"))
    assert all(torch.equal(t, stopped[name]) for name, t in whole.items())


def test_only_epochs_with_the_whole_lambda_compete() -> None:
    early, late = stages_of(two_stages("graddiv", "training.select=best"), 8)
    assert early.settled == 0
    assert late.settled == late.first_step + late.steps_per_epoch  # its ramp-up takes an epoch


def test_validation_accuracy_is_that_of_attacked_images() -> None:
    experiment = tiny("mnist/adv-train", "network.width=0.25", "adversary.epsilon=1", "adversary.m=5")
    F, blank = experiment.build(), random_data("mnist", 20, "validation")
    x, _ = blank.batch(slice(0, 20))
    y = F.bind(F.draw(0))(x).argmax(1)  # so that all clean images are right
    data = Dataset(blank.name, blank.split, blank.images, y, blank.ids, blank.classes)
    objective = objective_of(F, experiment, 20)
    assert objective.adversary is not None
    right = F.bind(F.draw(0))(objective.attacked(objective.adversary, x, y, data.ids, 5)).argmax(1) == y
    assert validation_accuracy(objective, data, 5) == float(right.double().mean()) < 1
