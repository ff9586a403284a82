"""Ten blocky patterns under noise: tiny, easy to learn and the same on every machine, for tests."""

from collections.abc import Sequence
from pathlib import Path

import torch

from graddiv.data.dataset import Part, RawExamples, Source
from graddiv.seeding import fold, uniform

SEED = 20190717  #: Addresses the patterns and the noise; part of the data set, so never to be changed.


def read(part: Part, paths: Sequence[Path], count: int) -> RawExamples:
    """Generate `count` images, half pattern of their class and half noise, with the classes in turn."""
    ids = torch.arange(count)
    labels = ids % 10
    blocks = uniform(fold(SEED, "patterns"), torch.arange(10), 16).view(10, 4, 4)
    patterns = blocks.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)
    noise = uniform(fold(SEED, "noise", part), ids, 144).view(count, 12, 12)
    images = (patterns[labels] + noise).mul(127.5).to(torch.uint8).unsqueeze(1)
    return RawExamples(images.numpy(), labels.numpy(), ids.numpy())


SOURCE = Source(
    name="synthetic",
    shape=(1, 12, 12),
    sizes={"train": 500, "test": 200},
    held_out=50,
    classes=tuple("0123456789"),
    read=read,
)
