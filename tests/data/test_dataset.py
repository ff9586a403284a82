import torch
from torch.utils.data import DataLoader

from graddiv.data import Dataset


def tiny(**changes: object) -> Dataset:
    images = torch.arange(5 * 2 * 3 * 3, dtype=torch.uint8).view(5, 2, 3, 3)
    fields = {"name": "tiny", "split": "train", "images": images, "labels": torch.arange(5), "ids": torch.arange(5) + 7}
    return Dataset(**{**fields, "classes": tuple("abcde"), **changes})  # type: ignore[arg-type]


def test_batch_is_in_the_unit_interval() -> None:
    data = tiny(images=torch.full((5, 2, 3, 3), 255, dtype=torch.uint8))
    images, labels = data.batch(torch.tensor([3, 1]))
    assert images.dtype == torch.float32
    assert images.shape == (2, 2, 3, 3)
    assert (images == 1).all()
    assert labels.tolist() == [3, 1]
    assert (data.images == 255).all()


def test_batch_takes_any_rows() -> None:
    data = tiny()
    for rows in (torch.tensor([1, 2]), [1, 2], range(1, 3), slice(1, 3)):
        images, labels = data.batch(rows)
        assert torch.equal(images, data.images[1:3] / 255)
        assert labels.tolist() == [1, 2]


def test_a_loader_of_torch_makes_the_same_batches() -> None:
    data = tiny()
    images, labels = next(iter(DataLoader(data, batch_size=5)))
    assert torch.equal(images, data.batch(range(5))[0])
    assert torch.equal(labels, data.labels)
    assert len(list(data)) == 5


def test_take_keeps_ids() -> None:
    subset = tiny().take([4, 0])
    assert len(subset) == 2
    assert subset.ids.tolist() == [11, 7]
    assert subset.labels.tolist() == [4, 0]
    assert torch.equal(subset.images, tiny().images[[4, 0]])


def test_checksum_depends_on_everything() -> None:
    data = tiny()
    changed = data.images.clone()
    changed[4, 1, 2, 2] += 1
    others = [
        tiny(name="other"),
        tiny(split="test"),
        tiny(images=changed),
        tiny(images=data.images.view(5, 1, 3, 6)),
        tiny(labels=data.labels.flip(0)),
        tiny(ids=data.ids + 1),
    ]
    assert len({data.checksum, *(other.checksum for other in others)}) == 7
    assert tiny().checksum == data.checksum
    # memory layout is not content
    assert tiny(images=data.images.to(memory_format=torch.channels_last)).checksum == data.checksum
