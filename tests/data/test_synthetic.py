import torch

from graddiv.data import load


def test_shape_and_balance() -> None:
    train, test = load("synthetic", "train+validation"), load("synthetic", "test")
    assert train.images.shape == (500, 1, 12, 12)
    assert train.labels.bincount().tolist() == [50] * 10
    assert test.labels.bincount().tolist() == [20] * 10
    assert load("synthetic", "validation").labels.bincount().tolist() == [5] * 10


def test_is_the_same_everywhere() -> None:
    assert load("synthetic", "test").checksum.startswith("ea3e8b14")


def test_is_learnable() -> None:
    """Nearest class mean of the training images."""
    train, test = load("synthetic"), load("synthetic", "test")
    x, y = train.batch(slice(None))
    means = torch.stack([x[y == label].flatten(1).mean(0) for label in range(10)])
    x, y = test.batch(slice(None))
    assert (torch.cdist(x.flatten(1), means).argmin(1) == y).float().mean() > 0.95


def test_test_images_are_not_training_images() -> None:
    train, test = load("synthetic", "train+validation"), load("synthetic", "test")
    assert not (train.images[None, :200] == test.images[:, None]).flatten(2).all(2).any()
