import pytest
import torch
from torch import Tensor

from graddiv.data import augmented, load
from graddiv.data.dataset import crop_and_flip
from graddiv.seeding import fold, uniform
from tests.helpers import global_rng_untouched, no_type_checks


def images(count: int = 64, size: int = 10) -> Tensor:
    return torch.rand(count, 3, size, size + 2, generator=torch.Generator().manual_seed(0))


def test_matches_one_image_at_a_time() -> None:
    x, ids = images(), torch.arange(64) * 31
    u = uniform(fold(5, "augment", 2), ids, 3)
    shown = crop_and_flip(x, ids, seed=5, epoch=2)
    for image, (top, left, mirror), result in zip(x, u.tolist(), shown, strict=True):
        row, column = int(9 * top), int(9 * left)
        padded = torch.zeros(3, 18, 20)
        padded[:, 4:14, 4:16] = image
        crop = padded[:, row : row + 10, column : column + 12]
        assert torch.equal(result, crop.flip(2) if mirror < 0.5 else crop)


def test_does_not_depend_on_the_batch() -> None:
    x, ids = images(), torch.arange(64)
    whole = crop_and_flip(x, ids, seed=1, epoch=0)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(crop_and_flip(x[order], ids[order], seed=1, epoch=0), whole[order])
    assert torch.equal(crop_and_flip(x[7:8], ids[7:8], seed=1, epoch=0), whole[7:8])


def test_seed_and_epoch_matter() -> None:
    x, ids = images(), torch.arange(64)
    views = [crop_and_flip(x, ids, seed, epoch) for seed, epoch in [(0, 0), (0, 1), (1, 0)]]
    for first, second in [(0, 1), (0, 2), (1, 2)]:
        same = (views[first] == views[second]).flatten(1).all(1)
        assert same.float().mean() < 0.1


def test_every_shift_and_flip_is_as_likely() -> None:
    """A single bright pixel shows where each of 81 x 2 views went."""
    count = 20_000
    x = torch.zeros(count, 1, 20, 20)
    x[:, 0, 9, 9] = 1
    shown = crop_and_flip(x, torch.arange(count), seed=3, epoch=0)
    position = shown.flatten(1).argmax(1)
    row, column = position // 20, position % 20
    assert set(row.tolist()) == set(range(5, 14))
    # unflipped the pixel lands in columns 5..13, flipped in 6..14: the ends tell them apart
    assert set(column.tolist()) == set(range(5, 15))
    assert abs((column == 5).double().mean().item() - 1 / 18) < 0.006
    assert abs((column == 14).double().mean().item() - 1 / 18) < 0.006
    assert abs((row == 5).double().mean().item() - 1 / 9) < 0.009


def test_only_the_colour_data_sets_are_augmented() -> None:
    x, ids = images(), torch.arange(64)
    for name in ("mnist", "mnist-mini", "synthetic"):
        assert augmented(name, x, ids, seed=0, epoch=0) is x
    for name in ("cifar10", "stl10"):
        assert torch.equal(augmented(name, x, ids, seed=0, epoch=0), crop_and_flip(x, ids, seed=0, epoch=0))
        assert not torch.equal(augmented(name, x, ids, seed=0, epoch=0), x)


@pytest.mark.parametrize("name", ["synthetic", "mnist-mini"])
def test_global_random_state_is_untouched(name: str) -> None:
    with no_type_checks(), global_rng_untouched():  # beartype picks the list items that it checks at random
        data = load(name, "validation")
        x, _ = data.batch(range(20))
        crop_and_flip(x, data.ids[:20], seed=0, epoch=0)
