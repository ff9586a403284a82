from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from graddiv import store
from graddiv.errors import GradDivError, GradDivWarning
from graddiv.experiment import Experiment
from graddiv.recipes import recipe
from graddiv.report.plan import copy_run
from graddiv.runs import Run, network_of
from graddiv.training import loop, train
from graddiv.training.stages import objective_of, stages_of
from tests.training.helpers import StopAfter, Stopped, assert_same_outcome, loader, outcome, tiny, two_stages


@pytest.fixture(autouse=True)
def eight_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graddiv.data.load", loader(8))


def first_stage_alone() -> Experiment:
    e = two_stages()
    return e.model_copy(update={"stages": (), "method": "adv-bnn"})


def test_decays_and_ramps_count_from_the_beginning_of_their_stage() -> None:
    first, second = stages_of(two_stages(), 8)
    assert (first.first_step, first.last_step, second.first_step, second.last_step) == (0, 4, 4, 8)
    assert [first.learning_rate(step) for step in range(4)] == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4])
    assert [second.learning_rate(step) for step in range(4, 8)] == pytest.approx([1e-3, 1e-3, 1e-3, 1e-4])
    assert second.settings.graddiv is not None
    assert second.ramp(second.settings.graddiv) == (4, 2)


def test_a_ramp_up_is_a_duration_or_an_end() -> None:
    periods = ["graddiv.warmup=2", "graddiv.rampup=5"]
    for counts_from, expected in (("warmup", (4, 10)), ("start", (4, 6))):
        e = tiny("mnist/adv-bnn+graddiv", *periods, f"graddiv.rampup_from={counts_from}")
        [stage] = stages_of(e, 8)
        assert stage.settings.graddiv is not None
        assert stage.ramp(stage.settings.graddiv) == expected


def test_the_second_stage_begins_with_adam_anew_and_regularizes(tmp_path: Path) -> None:
    train(two_stages(), tmp_path)
    tensors, _, lines = outcome(tmp_path)
    steps = {int(t) for name, t in tensors.items() if name.startswith("adam.step.")}
    assert steps == {4}
    epochs = [line for line in lines if line["event"] == "epoch"]
    assert [line["epoch"] for line in epochs] == [0, 1, 2, 3, 4]
    assert ["lam" in line for line in epochs] == [False, False, False, True, True]
    assert [line["lam"] for line in epochs[3:]] == [0.25, 1.0]  # 0 and 1/2, then 1 and 1


@pytest.mark.slow
def test_stopped_in_either_stage_or_between_them_it_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(two_stages(), tmp_path / "whole")
    monkeypatch.setattr(loop, "SAVE_AFTER", -1.0)  # after each step
    listener = StopAfter(0)
    for listener.steps in (2, 4, 6, 7):
        with pytest.raises(Stopped):
            train(two_stages(), tmp_path / "parts", listeners=[listener])
    listener.steps = -1
    train(two_stages(), tmp_path / "parts", listeners=[listener])
    assert listener.began == [0, 1, 3, 5, 6]
    assert_same_outcome(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.slow
def test_the_first_stage_is_taken_over_from_a_finished_run_beside_it(tmp_path: Path) -> None:
    both, alone = two_stages(), first_stage_alone()
    train(both, tmp_path / "apart" / both.run_name)
    train(alone, tmp_path / "runs" / alone.run_name)
    for e in (both, two_stages("control")):
        listener = StopAfter(-1)
        train(e, tmp_path / "runs" / e.run_name, listeners=[listener])
        assert listener.began == [4]
    assert_same_outcome(tmp_path / "runs" / both.run_name, tmp_path / "apart" / both.run_name)
    control = Run(tmp_path / "runs" / two_stages("control").run_name).network()
    regularized = Run(tmp_path / "runs" / both.run_name).network()
    assert any(not torch.equal(a, b) for a, b in zip(control.parameters(), regularized.parameters(), strict=True))


def test_a_copy_without_moments_is_not_taken_over(tmp_path: Path) -> None:
    both, alone, listener = two_stages(), first_stage_alone(), StopAfter(3)
    train(alone, tmp_path / "elsewhere")
    copy_run(Run(tmp_path / "elsewhere"), Run(tmp_path / "runs" / alone.run_name))
    with pytest.raises(Stopped):
        train(both, tmp_path / "runs" / both.run_name, listeners=[listener])
    assert listener.began == [0]


def test_a_finished_copy_is_not_trained_again(tmp_path: Path) -> None:
    alone, listener, copy = first_stage_alone(), StopAfter(0), Run(tmp_path / "copy")
    train(alone, tmp_path / "whole")
    copy_run(Run(tmp_path / "whole"), copy)
    kept, trained = network_of(copy.path), network_of(tmp_path / "whole")
    assert all(torch.equal(kept[name], trained[name]) for name in trained), "bit for bit"
    before = copy.last_checkpoint.read_bytes()
    train(alone, copy.path, listeners=[listener])
    assert copy.last_checkpoint.read_bytes() == before


def test_kept_checkpoints_are_taken_over_too(tmp_path: Path) -> None:
    both = two_stages("graddiv", "training.checkpoint_every=1")
    alone = both.model_copy(update={"stages": (), "method": "adv-bnn"})
    train(both, tmp_path / "apart" / both.run_name)
    train(alone, tmp_path / "runs" / alone.run_name)
    listener = StopAfter(-1)
    train(both, tmp_path / "runs" / both.run_name, listeners=[listener])
    assert listener.began == [4]
    for epoch in (1, 2, 3, 4):
        one, other = (Run(tmp_path / where / both.run_name).network(epoch=epoch) for where in ("runs", "apart"))
        for name, tensor in one.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name])


def test_an_unfinished_run_or_one_on_other_data_is_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, alone, listener = two_stages(), first_stage_alone(), StopAfter(3)
    with pytest.raises(Stopped):
        train(alone, tmp_path / alone.run_name, listeners=[listener])
    with pytest.raises(Stopped):
        train(both, tmp_path / both.run_name, listeners=[listener])
    assert listener.began == [0, 0]
    monkeypatch.setattr("graddiv.data.load", loader(9))
    train(alone, tmp_path / "other" / alone.run_name)
    monkeypatch.setattr("graddiv.data.load", loader(8))
    with pytest.raises(Stopped):
        train(both, tmp_path / "other" / both.run_name, listeners=[listener])
    assert listener.began == [0, 0, 0]


def test_from_takes_the_place_of_the_first_stage(tmp_path: Path) -> None:
    source = tmp_path / "source"
    train(tiny("mnist/adv-bnn"), source)
    small = ["network.width=0.05", "training.batch=4", "adversary.m=1", "training.epochs=1"]
    e = recipe("mnist/adv-bnn+graddiv", "quick", [*small, "training.lr=1e-30", "training.decays=[]"], source)
    assert e.stages == ()
    assert e.graddiv is not None
    assert e.network.start is not None
    train(e, tmp_path / "run")
    before, after = network_of(source), network_of(tmp_path / "run")
    assert all(
        torch.equal(before[name], after[name]) for name in before if "running" not in name and "num_" not in name
    )
    elsewhere = tmp_path / "moved"
    source.rename(elsewhere)
    again = recipe("mnist/adv-bnn+graddiv", "quick", [*small, "training.lr=1e-30", "training.decays=[]"], elsewhere)
    assert again.digest == e.digest  # the network counts, not where it lies
    train(e, tmp_path / "run")  # finished: the source is not needed any more


def test_a_file_of_parameters_will_do(tmp_path: Path) -> None:
    train(tiny("mnist/adv-bnn"), tmp_path / "source")
    state = network_of(tmp_path / "source")
    save_file(state, tmp_path / "mine.safetensors")
    e = tiny("mnist/adv-bnn", f"network.from={tmp_path / 'mine.safetensors'}")
    assert e.network.start is not None
    assert e.network.start.sha256 == tiny("mnist/adv-bnn", f"network.from={tmp_path / 'source'}").network.start.sha256
    assert store.read_state(tmp_path / "mine.safetensors").keys() == state.keys()
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    with pytest.raises(GradDivError, match=r"cannot read .*broken\.safetensors as safetensors"):
        tiny("mnist/adv-bnn", f"network.from={tmp_path / 'broken.safetensors'}")


def test_another_network_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    train(tiny("mnist/adv-train"), source)
    expected = "network.from needs mnist_cnn of width 0.05, gaussian, as the recipe has"
    with pytest.raises(GradDivError, match=rf"source belongs to another .*: it lacks log_sigma.*{expected}") as told:
        train(tiny("mnist/adv-bnn", f"network.from={source}"), tmp_path / "run")
    assert str(told.value).endswith(f"and {source} is mnist_cnn of width 0.05, deterministic")
    save_file(network_of(source), tmp_path / "mine.safetensors")
    with pytest.raises(GradDivError, match=rf"mine.safetensors belongs to another network: it lacks .*{expected}$"):
        train(tiny("mnist/adv-bnn", f"network.from={tmp_path / 'mine.safetensors'}"), tmp_path / "run1")
    e = tiny("mnist/adv-train", f"network.from={source}")
    train(tiny("mnist/adv-train", "seed=1"), tmp_path / "other")
    (tmp_path / "other" / "checkpoints" / "last.safetensors").rename(source / "checkpoints" / "last.safetensors")
    with pytest.raises(GradDivError, match="holds another network than the recipe was made for"):
        train(e, tmp_path / "run2")
    with pytest.raises(GradDivError, match="holds no trained network"):
        tiny("mnist/adv-train", f"network.from={tmp_path}")
    source.rename(tmp_path / "elsewhere")
    with pytest.raises(GradDivError, match=rf"network.from: there is no {source}: copy the run .* or use --from"):
        train(e, tmp_path / "run3")


def test_another_prior_than_the_sources_is_told(tmp_path: Path) -> None:
    source = tmp_path / "source"
    train(tiny("mnist/adv-bnn"), source)
    train(tiny("mnist/adv-bnn", f"network.from={source}"), tmp_path / "same")  # warnings are errors
    other = tiny("mnist/adv-bnn", f"network.from={source}", "gaussian.prior_sigma=0.2", "gaussian.alpha_kl=0.5")
    told = rf"{source} was trained otherwise: gaussian\.prior_sigma was 0\.05 and is 0\.2 now$"
    with pytest.warns(GradDivWarning, match=told):
        train(other, tmp_path / "other")


def test_copied_runs_find_each_other(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "elsewhere"
    train(tiny("mnist/adv-bnn"), here / "source")
    train(tiny("mnist/adv-bnn", f"network.from={here / 'source'}"), here / "run")
    assert str(tmp_path) not in Run(here / "run").experiment_file.read_text()
    here.rename(there)
    for found in (Run(there / "run").experiment, recipe(str(there / "run" / "recipe.toml"))):
        assert found.network.start is not None
        assert Path(found.network.start.path).samefile(there / "source")
        train(found, there / "run")  # nothing is left to do: the settings are the same
        assert len(Run(there / "run").log) == 3


def test_the_log_says_which_run_it_started_from(tmp_path: Path) -> None:
    first = tiny("mnist/adv-bnn", "seed=3")
    train(first, tmp_path / "source")
    save_file(network_of(tmp_path / "source"), tmp_path / "mine.safetensors")
    for source, known in (("source", {"run": first.run_name, "seed": 3}), ("mine.safetensors", None)):
        train(tiny("mnist/adv-bnn", f"network.from={tmp_path / source}"), tmp_path / f"from {source}")
        begun = Run(tmp_path / f"from {source}").log[0]
        assert (begun["event"], begun.get("from")) == ("start", known)


def test_a_stage_may_have_an_adversary_of_more_models(tmp_path: Path) -> None:
    e = two_stages("control", "stages.0.adversary_n=5")
    F = e.build()
    for stage, n in zip(stages_of(e, 8), (1, 5), strict=True):
        adversary = objective_of(F, e, 8, stage).adversary
        assert adversary is not None
        assert (adversary.n, adversary.m, adversary.epsilon) == (n, 1, 0.3)
    train(first_stage_alone(), tmp_path / "first")
    (tmp_path / "recipe.toml").write_text(e.to_toml())
    alone = recipe(str(tmp_path / "recipe.toml"), start=tmp_path / "first")
    assert alone.adversary is not None
    assert (alone.adversary.n, alone.adversary.m, alone.stages) == (5, 1, ())


def test_a_stage_may_have_smaller_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    e = two_stages("control", "stages.0.batch=2")
    first, second = stages_of(e, 8)
    assert (first.batch, first.steps_per_epoch, second.batch, second.steps_per_epoch) == (4, 2, 2, 4)
    assert [second.place(step) for step in (4, 7, 8)] == [(2, 0), (2, 3), (3, 0)]
    train(e, tmp_path / "whole")
    epochs = [line["epoch"] for line in Run(tmp_path / "whole").log if line["event"] == "epoch"]
    assert epochs == [0, 1, 2, 3, 4]
    monkeypatch.setattr(loop, "SAVE_AFTER", -1.0)  # after each step
    listener = StopAfter(7)
    with pytest.raises(Stopped):
        train(e, tmp_path / "parts", listeners=[listener])
    listener.steps = -1
    train(e, tmp_path / "parts", listeners=[listener])
    assert_same_outcome(tmp_path / "parts", tmp_path / "whole")
    with pytest.raises(GradDivError, match="batch is 16, but there are only 8"):
        train(two_stages("control", "stages.0.batch=16"), tmp_path / "large")


def test_without_an_adversary_a_stage_has_none_of_more_models() -> None:
    with pytest.raises(GradDivError, match="adversary_n, which needs the section adversary"):
        two_stages("control", "stages.0.adversary_n=5", "adversary=none")
