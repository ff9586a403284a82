from pathlib import Path

import pytest

from graddiv.data import SOURCES
from graddiv.errors import GradDivError
from graddiv.experiment import Experiment
from graddiv.recipes import SCALES, names, recipe, title


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", names())
def test_every_recipe_loads_and_is_the_same_when_printed(name: str, scale: str, tmp_path: Path) -> None:
    experiment = recipe(name, scale)
    assert experiment.scale == scale
    path = tmp_path / "printed.toml"
    path.write_text(experiment.to_toml())
    assert recipe(str(path)) == experiment


def test_the_papers_eight_methods_are_there() -> None:
    methods = {name.partition("/")[2] for name in names()}
    assert {title(method) for method in methods} >= {
        "No defense", "Adv. train", "RSE", "PNI", "MI", "Adv-BNN", "Adv-BNN + GradDiv", "RSE + GradDiv",
    }  # fmt: skip


def graddiv_of(experiment: Experiment) -> tuple[str, float, int, int, int]:
    g = experiment.graddiv
    assert g is not None
    return g.regularizer, g.lam, g.n, g.warmup, g.rampup


def test_the_papers_settings() -> None:
    """Its experiments section and supplement."""
    mnist, cifar10, stl10 = (recipe(f"{data}/adv-bnn+graddiv") for data in ("mnist", "cifar10", "stl10"))
    assert [e.training.epochs for e in (mnist, cifar10, stl10)] == [60, 200, 120]
    assert [e.training.decays for e in (mnist, cifar10, stl10)] == [(30,), (80, 140, 180), (60, 100)]
    assert [e.adversary.epsilon for e in (mnist, cifar10, stl10) if e.adversary] == [0.3, 8 / 255, 0.03]
    assert [e.gaussian.prior_sigma for e in (mnist, cifar10, stl10) if e.gaussian] == [0.05, 0.1, 0.15]
    assert [graddiv_of(e) for e in (mnist, cifar10, stl10)] == [
        ("kappa", 1.0, 3, 3, 20),
        ("dpp", 1.0, 3, 6, 90),
        ("mean", 0.7, 3, 6, 60),
    ]
    for e in (mnist, cifar10, stl10):
        assert (e.training.lr, e.training.batch, e.training.decay) == (1e-3, 128, 0.1)
        assert e.gaussian is not None
        assert e.gaussian.alpha_kl == 0.02
        assert e.gaussian.init_sigma is None


def test_alpha_kl_over_the_examples_is_the_papers_at_every_scale() -> None:
    for data in ("mnist", "cifar10", "stl10"):
        for scale in ("quick", "demo"):
            e = recipe(f"{data}/adv-bnn", scale)
            assert e.gaussian is not None
            all_examples = SOURCES[e.data.name].training_examples
            ratio = e.gaussian.alpha_kl / (e.data.examples or all_examples) / (0.02 / all_examples)
            assert ratio == pytest.approx(1, rel=0.03), (data, scale)


TWELVE = ("training.epochs=12", "training.batch=64", "training.decays=[8]")


@pytest.mark.parametrize(
    ("name", "overrides", "run_name"),
    [
        ("mnist/adv-bnn", (), "mnist-adv-bnn-quick-eaed4f6c2f"),
        ("mnist/adv-bnn", ("seed=1",), "mnist-adv-bnn-quick-4d598b5774"),
        ("mnist/adv-bnn", TWELVE, "mnist-adv-bnn-quick-f6f3972229"),
        ("mnist/adv-bnn", (*TWELVE, "seed=1"), "mnist-adv-bnn-quick-9c572ec81b"),
        ("mnist/adv-bnn+graddiv", (*TWELVE, "stages.0.batch=none"), "mnist-adv-bnn+graddiv-quick-3c33cb5640"),
        ("mnist/adv-bnn+control", (*TWELVE, "stages.0.batch=none"), "mnist-adv-bnn+control-quick-4923fcb253"),
    ],
)
def test_runs_keep_their_names(name: str, overrides: tuple[str, ...], run_name: str) -> None:
    """Trained runs are found by them: whatever changes a name orphans the runs on people's disks."""
    assert recipe(name, "quick", overrides).run_name == run_name


def test_graddiv_with_another_regularizer_and_on_another_defense() -> None:
    assert graddiv_of(recipe("mnist/adv-bnn+graddiv-smoothmax"))[:2] == ("smoothmax", 1.0)
    assert graddiv_of(recipe("stl10/rse+graddiv"))[:2] == ("kappa", 1.0)
    assert recipe("mnist/rse+graddiv").adversary is None


def test_overrides() -> None:
    words = ["adversary.epsilon=8/255", "training.decays=[1, 2]", "seed=7", "gaussian.kl_scope=last", "graddiv=none"]
    e = recipe("mnist/adv-bnn+graddiv", "quick", [*words, "data.examples=none"])
    assert e.adversary is not None
    assert e.gaussian is not None
    assert (e.adversary.epsilon, e.training.decays, e.seed, e.gaussian.kl_scope) == (8 / 255, (1, 2), 7, "last")
    assert e.graddiv is None
    assert e.data.examples is None


@pytest.mark.parametrize(
    ("name", "scale", "overrides", "message"),
    [
        ("mnits/adv-bnn", "paper", (), r"^unknown data set 'mnits', did you mean 'mnist'\? expected one of .*, stl10$"),
        ("mnist/adv-bn", "paper", (), r"did you mean 'mnist/adv-bnn'\? expected one of mnist/no-defense"),
        ("mnist", "paper", (), "unknown recipe 'mnist'"),
        ("mnist/adv-bnn+graddiv-ddp", "paper", (), r"unknown regularizer 'ddp', did you mean 'dpp'\?"),
        ("mnist/adv-bnn+graddif", "paper", (), r"unknown recipe .*did you mean 'mnist/adv-bnn\+graddiv'"),
        ("mnist/adv-train+graddiv", "paper", (), r"adv-train is deterministic.*try adv-bnn\+graddiv"),
        ("mnist/adv-bnn", "qick", (), r"unknown scale 'qick', did you mean 'quick'\?"),
        ("mnist/adv-bnn", "paper", ("lr",), "--set 'lr': expected key=value"),
        ("mnist/adv-bnn", "paper", ("seed.x=1",), r"seed is \{'x': 1\}: input should be a valid integer"),
        ("mnist/adv-bnn", "paper", ("method.x=1",), "method is a value and has no keys of its own"),
        ("mnist/adv-bnn", "paper", ("training.l=1", "network.wdth=2"), "has 2 mistakes"),
        (
            "mnist/adv-bnn",
            "paper",
            ("lr", "method.x=1", "training.l=1"),
            r"(?s)'lr'.*'method.x=1'.*has 1 mistake.*\.l:",
        ),
        ("mnist/adv-bnn", "paper", ("lr", "method.x=1"), r"^--set 'lr': .*\n--set 'method.x=1': [^\n]*$"),
        ("nowhere.toml", "paper", (), r"there is no recipe nowhere\.toml: 'graddiv recipes NAME' prints one"),
    ],
)
def test_mistakes(name: str, scale: str, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(GradDivError, match=message):
        recipe(name, scale, overrides)


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "it.toml").write_text("a = = 1")
    with pytest.raises(GradDivError, match=r"cannot read .*it\.toml as TOML: Invalid value"):
        recipe(str(tmp_path / "it.toml"))
