"""Randomness is found, wherever it comes from; what no seed reaches is named."""

import os
import random
import secrets
import time
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from graddiv import Dirac, GradDivWarning, bayesian, evaluate, randomize
from graddiv.attacks import EOT, PGD
from graddiv.evaluation.audit import examine
from graddiv.evaluation.examples import examples_of
from graddiv.evaluation.inspection import Item
from graddiv.evaluation.models import Model, network_of
from graddiv.networks import RandomizedNetwork
from graddiv.networks.foreign import CALLS, draws_by_itself, sources
from tests.audit.planted import Linear, Noisy, examples
from tests.helpers import global_rng_untouched, no_type_checks

X, Y = examples(20)
ONES = np.ones(3)


class Chosen(nn.Module):
    """One of three members, which Python's generator chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList([Linear(2.0), Linear(3.0), Linear(4.0)])

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = random.choice(list(self.members))(x)
        return answer


class Rare(nn.Module):
    """Another answer at some calls, as `when` says."""

    def __init__(self, when: Callable[[int], bool]) -> None:
        super().__init__()
        self.inner, self.when, self.calls = Linear(), when, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        answer: Tensor = self.inner(x)
        return answer + self.when(self.calls)


class Moving(nn.Module):
    """Moves the image by what `number` returns."""

    def __init__(self, number: Callable[[], float]) -> None:
        super().__init__()
        self.inner, self.number = Linear(), number

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.inner(x + 0.1 * self.number())
        return answer


def examined(model: Model) -> tuple[RandomizedNetwork, dict[str, Item]]:
    with no_type_checks():
        found = examine(network_of(model, X), examples_of(X, Y), seed=0)
    return found[0], found[2]


def test_the_chance_of_a_miss_is_as_stated() -> None:
    """All calls agree with probability p^N + (1 - p)^N, which is largest for the rarest difference."""

    def missed(calls: int) -> float:
        return max(p**calls + (1 - p) ** calls for p in np.linspace(0.1, 0.5, 41))

    assert missed(CALLS) < 0.001 < missed(CALLS - 1)
    late = Rare(lambda call: call == CALLS)
    assert draws_by_itself(late, late, X)
    never = Rare(lambda call: call > CALLS)
    assert not draws_by_itself(never, never, X)
    assert never.calls == CALLS


def test_it_stops_at_the_first_difference() -> None:
    third = Rare(lambda call: call == 3)
    assert draws_by_itself(third, third, X)
    assert third.calls == 3


def test_a_call_that_asks_a_generator_is_followed_up_however_few_calls_were_wanted() -> None:
    for number in (random.random, np.random.rand, lambda: float(torch.rand(()))):
        rare = Rare(lambda call, number=number: number() < 0.1)  # type: ignore[misc]
        with no_type_checks(), global_rng_untouched():  # which draw, too
            assert draws_by_itself(rare, rare, X, calls=2)
        assert rare.calls > 2
    unused = Rare(lambda call: random.random() < 0)
    assert not draws_by_itself(unused, unused, X, calls=2), "it draws numbers that change nothing"
    quiet = Linear()
    assert not draws_by_itself(quiet, quiet, X, calls=2)


def test_an_answer_that_is_not_a_number_does_not_differ_from_itself() -> None:
    def broken(x: Tensor) -> Tensor:
        return x.flatten(1) * torch.nan

    assert not draws_by_itself(broken, nn.Identity(), X)


def test_a_choice_among_members_is_random_and_is_replayed() -> None:
    F, checks = examined(Chosen())
    assert F.random
    assert [checks[name].verdict for name in ("random", "replay")] == ["pass", "pass"]
    assert "99.9 %" in checks["replay"].sentence
    assert "99.9 %" in examined(Linear())[1]["random"].sentence


@pytest.mark.parametrize(
    "model",
    [Dirac(Chosen()), [Noisy(Linear()), Noisy(Linear(2.0))], bayesian(Noisy(Linear()), prior_sigma=0.1)],
    ids=["said to be deterministic", "members that draw", "weights and more"],
)
def test_a_failed_replay_is_remedied(model: Model) -> None:
    with no_type_checks(), global_rng_untouched():
        F, checks = examined(model)
        f, *others = F.sample(8, seed=3)
        first, again, *rest = (each(X) for each in (f, f, *others))
    assert F.random
    assert "warn" in (checks["random"].verdict, checks["replay"].verdict)
    assert "fail" not in (checks["random"].verdict, checks["replay"].verdict)
    assert torch.equal(first, again)
    assert not all(torch.equal(first, other) for other in rest)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (lambda g=torch.Generator(): float(torch.rand((), generator=g)), None),
        (time.perf_counter, "time"),
        (lambda: float(ONES.sum()) * time.time() % 1, "time"),
        (lambda: secrets.randbelow(9) / 9, "secrets"),
        (lambda: os.urandom(1)[0] / 255, "os.urandom"),
    ],
)
def test_noise_that_no_seed_reaches_is_named(number: Callable[[], float], name: str | None) -> None:
    _, checks = examined(Moving(number))
    said = checks["replay"]
    assert said.verdict == "fail"
    assert (name or "a counter of calls") in said.sentence
    assert said.evidence["sources"] == ([name] if name else [])


def test_generators_of_its_own_are_named() -> None:
    module = Moving(lambda: 0.0)
    for name, value in {"rng": torch.Generator(), "other": np.random.default_rng(0), "old": random.Random(0)}.items():
        setattr(module, name, value)
    held = np.random.RandomState(0)
    module.number = lambda: float(held.rand())
    found = sources(nn.Sequential(module))
    assert found == ["0.rng (Generator)", "0.other (Generator)", "0.old (Random)", "held (RandomState)"]
    assert sources(Noisy(Linear())) == []
    assert "held (RandomState)" in examined(module)[1]["replay"].sentence


def test_dropout_that_is_switched_off_stays_so_beside_other_noise() -> None:
    class Input(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if torch.rand(()) < 0.5 else x + 0.1

    F, checks = examined(nn.Sequential(Input(), nn.Dropout(0.5), Linear()).eval())
    assert F.random
    assert checks["support"].evidence["seen"] == 2, "its own two answers, none of dropout"


def test_a_direct_attack_on_a_module_that_draws_warns() -> None:
    for module in (Chosen(), Noisy(Linear()), Dirac(Chosen()), EOT(Chosen(), 2)):
        with pytest.warns(GradDivWarning, match=r"attack EOT\(randomize\(module\), n=10\)"):
            PGD(m=1)(module, X, Y, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PGD(m=1)(Linear(), X, Y, 0.1)
        PGD(m=1)(EOT(randomize(Chosen()), 2), X, Y, 0.1)


def test_evaluate_finds_the_same() -> None:
    how = {"epsilon": 0.01, "attacks": "fgsm", "modes": "eot", "n": 2, "n_ensemble": 2}
    records = evaluate(Chosen(), X, Y, **how)  # type: ignore[arg-type]
    assert [record.label for record in records] == ["clean", "EOT-FGSM"]
    with pytest.warns(GradDivWarning) as found:
        evaluate(Moving(time.perf_counter), X, Y, **how)  # type: ignore[arg-type]
    assert any("where no seed reaches (time)" in str(each.message) for each in found)
