import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graddiv.distributed import accelerator
from graddiv.errors import GradDivError
from graddiv.seeding import fold, isolated, uniform
from tests.helpers import no_type_checks

names = st.lists(st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=8)), max_size=4)


@given(st.integers(), names, names)
@pytest.mark.slow
def test_addresses_fold_to_the_same_seed_only_if_equal(seed: int, a: list[int | str], b: list[int | str]) -> None:
    assert (fold(seed, *a) == fold(seed, *b)) == (a == b)
    assert 0 <= fold(seed, *a) < 2**63


def test_fold_is_the_same_on_every_machine() -> None:
    assert fold(0, "model", 3) == 4431682717382369302


@pytest.mark.parametrize("seed", ["7", 1.5, None])
def test_a_seed_is_a_whole_number(seed: object) -> None:
    with no_type_checks(), pytest.raises(GradDivError, match=f"seed is {seed!r}, expected a whole number"):
        fold(seed)  # type: ignore[arg-type]


def test_the_number_one_and_its_name_are_different_addresses() -> None:
    assert fold(0, 1) != fold(0, "1")
    assert fold(0, "ab") != fold(0, "a", "b")


def test_uniform_numbers_are_uniform_and_uncorrelated() -> None:
    u = uniform(5, torch.arange(50_000), 3)
    assert u.min() >= 0
    assert u.max() < 1
    counts = torch.histc(u[:, 0].float(), 20, 0, 1)
    assert ((counts - 2500).square() / 2500).sum() < 45  # chi^2 with 19 degrees of freedom, level 0.001
    pairs = torch.stack([*u.T, uniform(6, torch.arange(50_000), 1)[:, 0], u[:, 0].roll(1)])
    assert (torch.corrcoef(pairs) - torch.eye(5)).abs().max() < 0.02


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=6), st.integers(0, 2**40), st.integers(1, 5))
def test_uniform_depends_on_the_example_not_on_its_batch(ids: list[int], seed: int, k: int) -> None:
    together = uniform(seed, torch.tensor(ids), k)
    apart = torch.cat([uniform(seed, torch.tensor([i]), k) for i in ids])
    assert torch.equal(together, apart)


def test_isolated_blocks_are_functions_of_their_seed() -> None:
    def draw(seed: int) -> tuple[float, ...]:
        import random

        import numpy as np

        with isolated(seed):
            return random.random(), float(np.random.rand()), torch.rand(()).item()

    first = draw(1)
    assert draw(1) == first
    assert all(a != b for a, b in zip(draw(2), first, strict=True))


def test_no_accelerator_is_none_also_where_torch_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:  # torch 2.6, built for the CPU
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", missing)
    assert accelerator() is None
