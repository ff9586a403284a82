"""Random crop and flip, addressed by example and epoch."""

import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int64
from torch import Tensor

from graddiv.seeding import fold, uniform

PADDING = 4


def crop_and_flip(
    images: Float32[Tensor, "b c h w"], ids: Int64[Tensor, " b"], seed: int, epoch: int
) -> Float32[Tensor, "b c h w"]:
    """Shift each image by up to 4 pixels, zeros coming in, and mirror half of them, as Adv-BNN does in training.

    An example's crop is a function of (seed, epoch, its id), whatever batch it is in.
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
