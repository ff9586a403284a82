import tomllib
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.utils.flop_counter import FlopCounterMode

from graddiv.errors import GradDivError
from graddiv.experiment import StartSection, parse
from graddiv.experiment.cost import BESIDES, training_work, work_of_steps
from graddiv.networks import ARCHITECTURES, architecture
from graddiv.recipes import recipe
from tests.helpers import SHAPES


def tables(**sections: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "data": {"name": "mnist-mini"},
        "network": {"architecture": "mnist_cnn"},
        "training": {"epochs": 1},
    }
    return plain | sections


def test_all_mistakes_are_told_at_once_with_the_nearest_name() -> None:
    wrong = tables(
        data={"name": "minst"},
        training={"epoch": 3, "lr": -1, "batch": "many"},
        adversary={"epsilon": "8/0"},
        graddivv={"lam": 1},
    )
    with pytest.raises(GradDivError) as caught:
        parse(wrong, "my.toml")
    head, *mistakes = str(caught.value).split("\n  ")
    assert head == "my.toml has 7 mistakes:"
    for start in (
        "data.name is 'minst', did you mean 'mnist'? expected one of mnist-mini, mnist, cifar10, stl10",
        "training.epochs: is missing",
        "training.epoch: there is no such key, did you mean 'epochs'? expected one of epochs, lr, decays",
        "training.lr is -1: input should be greater than 0",
        "training.batch is 'many': input should be a valid integer",
        "adversary.epsilon is '8/0': input should be a valid number",
        "graddivv: there is no such key, did you mean 'graddiv'?",
    ):
        assert any(mistake.startswith(start) for mistake in mistakes), start


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"rse": {}, "pni": {}}, "the sections rse and pni exclude each other"),
        ({"graddiv": {"regularizer": "dpp", "lam": 1}}, "graddiv needs a randomized network: add one of the sections"),
        (
            {"rse": {}, "graddiv": {"regularizer": "dpp", "lam": 1, "at": "adversarial"}},
            "'adversarial', which needs the section adversary",
        ),
        ({"adversary": {"epsilon": float("nan")}}, "adversary.epsilon is nan"),
        ({"adversary": {"epsilon": 8}}, "adversary: epsilon is 8.0, expected from 0 to 1"),
        ({"adversary": {"epsilon": 0.1, "mm": 1}}, "adversary.mm: there is no such key, did you mean 'm'?"),
        ({"mixup": {"partners": "XL"}}, "mixup.partners is 'XL', did you mean 'PL'? expected one of OL, PL"),
        (
            {"network": {"architecture": "mnist_ccn"}},
            "network.architecture is 'mnist_ccn', did you mean 'mnist_cnn'? expected one of mnist_cnn, vgg16",
        ),
        (
            {"rse": {}, "graddiv": {"regularizer": "ddp", "lam": 1}},
            "graddiv.regularizer is 'ddp', did you mean 'dpp'? expected one of kappa, mean, dpp, max, smoothmax",
        ),
        ({"gausian": {"prior_sigma": 1}}, "gausian: there is no such key, did you mean 'gaussian'? expected one of"),
        ({"data": {"name": 3}}, "data.name is 3: input should be a valid string"),
        ({"data": 5}, "data is 5: input should be a valid dictionary"),
        ({"method": "../up"}, "method is '../up': string should match pattern"),
    ],
)
def test_sections_that_do_not_fit(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(GradDivError, match="has 1 mistake:\n") as caught:
        parse(tables(**sections), "it")
    assert message in str(caught.value)


def test_fractions_and_frozen() -> None:
    experiment = parse(tables(adversary={"epsilon": "8/255", "alpha": "1 / 4"}), "it")
    assert experiment.adversary is not None
    assert (experiment.adversary.epsilon, experiment.adversary.alpha) == (8 / 255, 0.25)
    with pytest.raises(ValidationError, match="frozen"):
        experiment.seed = 3
    assert experiment.digest == parse(tables(adversary={"epsilon": 8 / 255}), "it").digest
    assert experiment.digest != parse(tables(adversary={"epsilon": 8 / 255}, training={"epochs": 2}), "it").digest


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_multiplications_agree_with_torchs_count(name: str) -> None:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        architecture(name).eval().to("meta")(torch.zeros(1, *SHAPES[name], device="meta"))
    assert ARCHITECTURES[name].multiplications == pytest.approx(counter.get_total_flops() / 2, rel=0.05)


def test_cost_counts_passes() -> None:
    measured = 61 * 512 * 6  # three gradients at 512 images, after each of 60 epochs and before the first

    def passes(name: str) -> float:
        work = training_work(recipe(f"mnist-mini/{name}"))
        return work / ARCHITECTURES["mnist_cnn"].multiplications / BESIDES - measured

    assert passes("no-defense") == pytest.approx(60 * 4500 * 3)
    assert passes("adv-train") == pytest.approx(60 * 4500 * 23)
    assert passes("pni") == pytest.approx(60 * 4500 * 26)
    assert passes("adv-bnn+graddiv") == pytest.approx(60 * 4500 * 41)
    assert recipe("mnist-mini/no-defense", "demo").cost == "<1 min"
    assert recipe("cifar10/adv-bnn+graddiv").cost.endswith(" days")


def test_more_examples_than_there_are() -> None:
    with pytest.raises(GradDivError, match=r"data\.examples is 5000, but mnist-mini has 4500 training examples"):
        recipe("mnist-mini/no-defense", overrides=["data.examples=5000"]).training_set()


def test_an_adversary_of_several_models_costs_as_many_passes() -> None:
    one, five = (work_of_steps(recipe("mnist/adv-bnn", "quick", [f"adversary.n={n}"])) for n in (1, 5))
    passes = 2 * 5 + recipe("mnist/adv-bnn", "quick").rules.passes
    assert five / one == pytest.approx((passes + 4 * 2 * 5) / passes)


def test_an_adversary_of_several_models_in_the_second_stage_costs_its_passes_there() -> None:
    one, five = (work_of_steps(recipe("mnist/adv-bnn+control", "quick", [f"stages.0.adversary_n={n}"])) for n in (1, 5))
    passes = 2 * 5 + recipe("mnist/adv-bnn", "quick").rules.passes
    assert five / one == pytest.approx((63 * passes + 3 * 4 * 2 * 5) / (63 * passes))


@pytest.mark.parametrize(
    "name",
    [
        "\N{GRINNING FACE}",
        "M\N{LATIN SMALL LETTER U WITH DIAERESIS}ller",
        'a "b" \\c \\ud83d',
        "".join(map(chr, range(1, 160))),
    ],
    ids=["emoji", "letters", "quotes", "control characters"],
)
def test_a_path_of_any_characters_is_read_again(name: str) -> None:
    e = recipe("mnist/adv-bnn", "quick")
    start = StartSection(path=f"/runs/{name}", sha256="0" * 64)
    e = e.model_copy(update={"network": e.network.model_copy(update={"start": start})})
    assert tomllib.loads(e.to_toml())["network"]["from"]["path"] == f"/runs/{name}"
