"""Two settings that make convolutions on the CPU faster; both only on request, neither at import."""

import ctypes
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

TensorOrModule = TypeVar("TensorOrModule", Tensor, nn.Module)


def channels_last(what: TensorOrModule) -> TensorOrModule:
    """Return images (b c h w), or a module changed in place, in the memory format in which convolutions are fastest."""
    if isinstance(what, nn.Module):
        return cast(TensorOrModule, what.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    if what.dim() == 4 and what.shape[1] == 1 and what.is_contiguous():
        _, _, h, w = what.shape  # one channel fits both formats, and torch takes the slower one unless strides differ
        return what.as_strided(what.shape, (h * w, 1, w, 1))
    return what.contiguous(memory_format=torch.channels_last) if what.dim() == 4 else what


def keep_memory() -> bool:
    """Let malloc keep freed pages for this process instead of returning them; return whether that worked.

    Otherwise glibc fetches the megabytes of activations page by page in every pass.  Elsewhere this does nothing.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another libc or system
        return False
    trim_threshold, mmap_threshold, most = -1, -3, 2**31 - 1
    return bool(mallopt(trim_threshold, most)) and bool(mallopt(mmap_threshold, most))
