"""Random crop and flip for training, as a function of the example and the epoch."""

import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int64
from torch import Tensor

from graddiv.seeding import fold, uniform

PADDING = 4
"""How many pixels an image is shifted by at most, in each direction."""


def crop_and_flip(
    images: Float32[Tensor, "b c h w"], ids: Int64[Tensor, " b"], seed: int, epoch: int
) -> Float32[Tensor, "b c h w"]:
    """Shift each image by up to 4 pixels, zeros coming in, and mirror half of them, as Adv-BNN does in training.

    images: the batch.
    ids: the data-set indices of the images; a crop depends on (seed, epoch, id), not on the batch.
    seed: the seed of the training run.
    epoch: its number, so that every epoch crops differently.
    """
    batch, channels, height, width = images.shape
    device = images.device
    top, left, mirror = uniform(fold(seed, "augment", epoch), ids.to(device), 3).unbind(1)
    rows = (top * (2 * PADDING + 1)).long()[:, None] + torch.arange(height, device=device)
    columns = (left * (2 * PADDING + 1)).long()[:, None] + torch.arange(width, device=device)
    columns = torch.where(mirror[:, None] < 0.5, columns.flip(1), columns)
    padded = F.pad(images, (PADDING,) * 4)
    image = torch.arange(batch, device=device)[:, None, None, None]
    channel = torch.arange(channels, device=device)[None, :, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
